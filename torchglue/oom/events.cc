#include "torchglue/oom/events.h"

#include <c10/core/AutogradState.h>
#include <c10/util/Exception.h>

#include <atomic>
#include <cstring>
#include <string>

#include "torchglue/base/process.h"
#include "torchglue/base/source_line.h"
#include "torchglue/oom/allocation_failure.h"
#include "torchglue/oom/error_text.h"
#include "torchglue/oom/oom_watch.h"

namespace koila {

namespace {

std::atomic<int64_t> told{0};

void report(const OutOfMemory& oom, int outcome, int rung, const std::string& reason, int64_t micro_batch, int64_t batch) {
  const Process& s = process();
  koila_oom_event event{};
  event.device = oom.device;
  event.phase = oom.phase;
  event.op = oom.op.c_str();
  event.requested_bytes = oom.requested;
  event.live_bytes = oom.live;
  event.budget_bytes = s.runtime->budget_bytes(oom.device);
  event.outcome = outcome;
  event.reason = reason.c_str();
  event.micro_batch = micro_batch;
  event.batch = batch;
  event.rung = rung;
  event.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - oom.at).count();
  s.runtime->on_oom(&event);
}

// " It was called at train.py:31 in forward."; "" where that is not known. A refusal is rare: its line is looked up without KOILA_STACKS too, but where a watch
// stands only: else an allocator may have called, whose lock it holds while this would wait for Python's.
std::string called_at() {
  if (!works_for_owner() || !process().rescue || !OutOfMemoryWatch::stands()) return "";
  const std::string line = source_line_text(python_line_now());
  return line.empty() ? "" : " It was called at " + line + ".";
}

}  // namespace

OutOfMemory describe_out_of_memory(const std::string& op) {
  const AllocationFailure failure = last_allocation_failure();
  const bool backward = moment().engine_depth > 0;
  const bool grad = c10::AutogradState::get_tls_state().get_grad_mode();
  return {failure.device, backward ? KOILA_BACKWARD : grad ? KOILA_FORWARD : KOILA_NO_GRAD, op, failure.requested, failure.live};
}

void report_rescue(const OutOfMemory& oom, int64_t micro_batch, int64_t batch) { report(oom, KOILA_RESCUED, KOILA_RUNG_SPLIT, "", micro_batch, batch); }

void report_rescue(const OutOfMemory& oom, koila_rung rung) { report(oom, KOILA_RESCUED, rung, "", 0, 0); }

void report_refusal(const OutOfMemory& oom, const std::string& reason, int64_t batch) {
  report(oom, KOILA_REFUSED, 0, reason + called_at(), 0, batch);
  if (works_for_owner()) told.fetch_add(1, std::memory_order_relaxed);
}

int64_t refusals_told() noexcept { return told.load(std::memory_order_relaxed); }

std::string reason_of(const std::exception& error) {
  const std::string text = error_text(error);
  const size_t begin = text.find(kUnderKoila);
  return begin == std::string::npos ? kOneRowDoesNotFit : text.substr(begin + std::strlen(kUnderKoila));
}

void refuse_split_step(const OutOfMemory& oom, const std::string& reason, int64_t batch) {
  report_refusal(oom, reason, batch);
  TORCH_CHECK_WITH(OutOfMemoryError, false, kUnderKoila, reason);
}

}  // namespace koila
