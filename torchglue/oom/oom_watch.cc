#include "torchglue/oom/oom_watch.h"

#include <thread>

#include "runtime/abi.h"
#include "torchglue/base/hot.h"
#include "torchglue/base/process.h"
#include "torchglue/oom/allocation_failure.h"
#include "torchglue/oom/events.h"
#include "torchglue/oom/oom.h"
#include "torchglue/oom/python_error.h"

namespace koila {

namespace {

KOILA_HOT thread_local int standing = 0;

}  // namespace

OutOfMemoryWatch::OutOfMemoryWatch(const std::string& op) noexcept : op_(op), outermost_(standing++ == 0 && process().is_owner()), told_(outermost_ ? refusals_told() : 0) {}

OutOfMemoryWatch::~OutOfMemoryWatch() {
  --standing;
  if (!outermost_ || !take_allocator_ran_out()) return;
  // A CUDA library that has no room for one algorithm takes another: that is no error of the program's.
  if (last_allocation_failure().device != KOILA_CPU) return;
  try {
    report_refusal(describe_out_of_memory(op_), "the program has caught it where koila does not follow it.", 0);
  } catch (const std::exception&) {  // no memory to tell of it
  }
}

void OutOfMemoryWatch::leaves(const std::exception& error, const char* reason) const {
  if (!outermost_ || !says_out_of_memory(error) || refusals_told() != told_) return;
  report_refusal(describe_out_of_memory(op_), reason, 0);
}

bool OutOfMemoryWatch::stands() noexcept { return standing > 0; }

}  // namespace koila
