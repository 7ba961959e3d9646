// Where a tensor's memory comes from: what the program is doing while it is asked for, by which operator, at which source line.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include "runtime/abi.h"
#include "torchglue/base/hot.h"

namespace koila {

namespace detail {
KOILA_HOT inline constinit thread_local const c10::OperatorHandle* op_in_progress = nullptr;
}

// Of this thread, now. Takes no lock of PyTorch's or Python's, unless `with_place` (KOILA_STACKS): then the source line is looked up, which
// needs the GIL. Without, it is the line of the operator in progress.
koila_origin origin_now(bool with_place);

// The line of the operator in progress; 0 without KOILA_STACKS.
uint32_t place_in_progress();

// The operator that this thread runs, while it lives, and where source lines are asked for also its line: the one that the thread is at, or for an operator that
// is run again the one that it was recorded at.
class OpInProgress {
 public:
  explicit OpInProgress(const c10::OperatorHandle& op);
  OpInProgress(const c10::OperatorHandle& op, uint32_t place);
  ~OpInProgress();
  OpInProgress(const OpInProgress&) = delete;
  OpInProgress& operator=(const OpInProgress&) = delete;

 private:
  const c10::OperatorHandle* before_;
  uint32_t place_before_;
};

// Whether this thread is inside an operator of the program's, or of koila's in its place.
inline bool operator_in_progress() { return detail::op_in_progress != nullptr; }

// While it lives this thread runs again what was recorded at that line: operators take it for theirs.
class PlaceScope {
 public:
  explicit PlaceScope(uint32_t place);
  ~PlaceScope();
  PlaceScope(const PlaceScope&) = delete;
  PlaceScope& operator=(const PlaceScope&) = delete;

 private:
  uint32_t before_;
};

// What this thread does while it lives is part of a forward or a backward pass, whatever it looks like: regions run both within backward.
class WhenScope {
 public:
  explicit WhenScope(koila_when when);
  ~WhenScope();
  WhenScope(const WhenScope&) = delete;
  WhenScope& operator=(const WhenScope&) = delete;

 private:
  int before_;
};

// Whether an optimizer's step() is under way on this thread, of those that say so.
bool optimizer_at_work();

// How many such steps this thread has come to the end of.
uint64_t optimizer_steps_over();

// Has optimizers that say so (PyTorch's, in Python) noticed while they work on this thread.
void watch_optimizers();

// While it lives a backward pass of this thread is under way, in which optimizers are not watched: whatever runs in it is backward's. PyTorch's engine goes over
// all that watches twice for each node, which would be a fiftieth of a small step.
class NoWatchInBackward {
 public:
  NoWatchInBackward();
  ~NoWatchInBackward();
  NoWatchInBackward(const NoWatchInBackward&) = delete;
  NoWatchInBackward& operator=(const NoWatchInBackward&) = delete;
};

// An outermost backward pass of this thread is over: what comes next is another step's.
void origin_step_over();

}  // namespace koila
