// An operator at the full batch, and what is done when it runs out of memory.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <exception>
#include <optional>

#include "torchglue/memory/origin.h"
#include "torchglue/op_traits.h"
#include "torchglue/step/ladder.h"
#include "torchglue/oom/oom_watch.h"

namespace koila {

// Runs the call as PyTorch would, the interceptor left out. No tape.
void run_plainly(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

// The same, on the tape; and when it runs out of memory, the step so far becomes a region and the call is made again. Throws the
// operator's own error when that cannot be done.
void run_eagerly(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

inline constexpr const char* kNotMadeAgain = "what ran out could not be made again.";

// run_eagerly() for a call that comes with no stack, and in which nothing is to be looked after but memory (is_ordinary() in typed_calls.cc): whoever has the
// arguments runs the kernel while this lives, and says what became of it.
class OrdinaryCall {
 public:
  // `arguments` must live as long as this.
  OrdinaryCall(const c10::OperatorHandle& op, const OpTraits& traits, c10::DispatchKeySet keys, at::ArrayRef<c10::IValue> arguments);
  OrdinaryCall(const OrdinaryCall&) = delete;
  OrdinaryCall& operator=(const OrdinaryCall&) = delete;

  // See Offload::MustNotFail.
  bool must_not_fail() const { return must_not_fail_; }

  void came_through(at::ArrayRef<c10::IValue> results) const;

  // In a handler, of the kernel's error: returns the results, where the call could be made again. Throws that error, or another, where not.
  torch::jit::Stack make_up_for(const std::exception& error);

 private:
  const c10::OperatorHandle& op_;
  const OpTraits& traits_;
  const c10::DispatchKeySet keys_;
  const at::ArrayRef<c10::IValue> arguments_;
  const OpInProgress progress_;
  const OutOfMemoryWatch watch_;
  std::optional<WrittenArguments> written_;
  bool must_not_fail_ = false;
};

// Makes an operator of a step that is being converted again, with these arguments, which its results replace. What runs out is tried again once there is room, see
// Note [An operator that is made again]; throws out of memory when there is none to be had.
void call_again(const c10::OperatorHandle& op, torch::jit::Stack& stack);

// Whether this thread runs an operator again that ran out of memory: what fails within is the rescue's affair.
bool in_rescue();

}  // namespace koila
