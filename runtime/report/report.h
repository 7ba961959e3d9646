// The report: where the memory went, what was rescued or refused, and what to try next. Pure functions over a snapshot, and a writer.
//
// The JSON has "schema": 1; bytes are integers, rows too, seconds are numbers. Fields are only ever added within a schema.
#ifndef KOILA_RUNTIME_REPORT_H_
#define KOILA_RUNTIME_REPORT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/config.h"
#include "runtime/device_memory.h"
#include "runtime/events.h"

namespace koila {

struct DeviceFigures {
  int device = KOILA_CPU;
  std::int64_t live_bytes = 0;
  std::int64_t peak_bytes = 0;
  std::int64_t budget_bytes = 0;
  std::int64_t allocations = 0;
  std::int64_t frees = 0;
  std::int64_t outside_bytes = 0;       // tensors of the device that koila keeps outside its memory
  std::int64_t outside_peak_bytes = 0;
  std::int64_t outside_written_bytes = 0;  // all that was ever put there
  // What follows is of memory that CUDA gives.
  std::int64_t failed_allocations = 0;  // over the budget, or refused by CUDA; a caching allocator asks again
  std::int64_t tensor_bytes = 0;        // alive inside the blocks of PyTorch's caching allocator, as asked for
  std::int64_t tensor_peak_bytes = 0;
  std::int64_t used_bytes = 0;          // on the device, by everybody, when CUDA was last asked; 0: never
  std::int64_t untracked_bytes = 0;     // of these, what koila had not seen given: CUDA's own, of static runtimes, of other processes
  std::vector<std::int64_t> sizes;      // allocations by size class, see DeviceMemory
};

struct ReportData {
  int mode = KOILA_MODE_RESCUE;
  std::int64_t microbatch = 0;  // forced rows; 0: none
  std::int64_t pid = 0;
  std::string host;
  std::string command;  // of the process, as far as it is known
  std::string torch_version;
  std::vector<DeviceFigures> devices;  // those with allocations, or a budget
  std::vector<SourceFigures> sources;  // who asked for memory that CUDA gives
  EventList events;

  // Whether there is more to tell than that the process ran: a step, an out-of-memory, or a budget.
  bool is_worth_a_line() const;
};

// "cpu", "cuda:0".
std::string device_name(int device);
const char* phase_name(int phase);
const char* rung_name(int rung);  // "retry", "micro-batches", "offload"; "refuse" for 0
const char* mode_name(int mode);

// "rescued: out of memory in aten::linear (forward) on cpu: wanted 32.0 MiB ...": the line of the log and of the text report.
std::string describe(const OomEvent& event);

std::string report_text(const ReportData& data);
std::string report_json(const ReportData& data);

// What a person could do next, one sentence; "" when there is nothing to do.
std::string next_thing_to_try(const ReportData& data);

// Writes whole or not at all (a file beside it that is then renamed). Answers with what went wrong, "" when nothing.
std::string write_report(const ReportTarget& target, const ReportData& data);

}  // namespace koila

#endif  // KOILA_RUNTIME_REPORT_H_
