#include "torchglue/oom/allocation_failure.h"

#include <mutex>
#include <thread>

#include "runtime/fork_lock.h"
#include "torchglue/base/process.h"
#include "torchglue/oom/events.h"
#include "torchglue/oom/oom.h"
#include "torchglue/oom/oom_watch.h"

namespace koila {

namespace {

ForkLock mutex;
AllocationFailure last;

}  // namespace

void note_allocation_failure(const AllocationFailure& failure) {
  {
    const std::lock_guard lock(mutex);
    last = failure;
  }
  allocator_ran_out();
  if (!process().rescue) {
    const bool track = process().runtime->settings->mode == KOILA_MODE_TRACK;
    report_refusal(describe_out_of_memory(""), track ? "KOILA_MODE=track only counts." : "koila stays out of this process.", 0);
  } else if (!works_for_owner()) {
    report_refusal({failure.device, KOILA_FORWARD, "", failure.requested, failure.live},
                   "it happened on a thread whose operators koila did not follow: it follows the steps of one thread at a time.", 0);
  } else if (process().is_owner() && !OutOfMemoryWatch::stands()) {
    take_allocator_ran_out();
    report_refusal(describe_out_of_memory(""), "no operator that koila sees asked for the memory: a compiled graph (torch.compile) did, or code that calls the allocator itself.", 0);
  }
}

AllocationFailure last_allocation_failure() {
  const std::lock_guard lock(mutex);
  return last;
}

}  // namespace koila
