// What is told of an out-of-memory: to the log, and to the report.
#pragma once

#include <c10/core/Device.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <string>

#include "runtime/abi.h"

namespace koila {

struct OutOfMemory {
  int device = -1;
  int phase = 0;  // enum koila_phase
  std::string op;
  int64_t requested = 0;
  int64_t live = 0;
  std::chrono::steady_clock::time_point at = std::chrono::steady_clock::now();
};

// The out-of-memory that was thrown last on this thread's watch: what the allocator noted, with the phase as it is now.
OutOfMemory describe_out_of_memory(const std::string& op);

// By micro-batches.
void report_rescue(const OutOfMemory& oom, int64_t micro_batch, int64_t batch);
// By another rung.
void report_rescue(const OutOfMemory& oom, koila_rung rung);
void report_refusal(const OutOfMemory& oom, const std::string& reason, int64_t batch);
// Refusals reported so far, but for those of threads that koila does not follow: who throws an error on asks whether it has been told of.
int64_t refusals_told() noexcept;

// Begins the errors whose reason is koila's own; the reason follows.
inline constexpr const char* kUnderKoila = "out of memory: this step runs in micro-batches under koila, and ";

inline constexpr const char* kOneRowDoesNotFit = "one row of the batch does not fit, or what ran out is outside the split part of the step.";

// Why splitting a step ran out of memory: the reason that koila gave, or that not even one row fits.
std::string reason_of(const std::exception& error);

// Reports it, and throws the error that a step too large for the memory gives, with koila's reason.
[[noreturn]] void refuse_split_step(const OutOfMemory& oom, const std::string& reason, int64_t batch);

}  // namespace koila
