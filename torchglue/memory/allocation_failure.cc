#include "torchglue/memory/allocation_failure.h"

#include <mutex>

#include "runtime/fork_lock.h"
#include "torchglue/rescue/events.h"
#include "torchglue/rescue/oom.h"
#include "torchglue/session.h"

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
  if (!session().rescue) {
    const bool track = session().runtime->settings->mode == KOILA_MODE_TRACK;
    report_refusal(describe_out_of_memory(""), track ? "KOILA_MODE=track only counts." : "koila stays out of this process.", 0);
  } else if (!session().owned_by_this_thread()) {
    report_refusal({failure.device, KOILA_FORWARD, "", failure.requested, failure.live},
                   "it happened on a thread whose operators koila does not follow: only the thread that imported torch is rescued.", 0);
  }
}

AllocationFailure last_allocation_failure() {
  const std::lock_guard lock(mutex);
  return last;
}

}  // namespace koila
