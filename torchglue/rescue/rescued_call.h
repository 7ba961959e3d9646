// A call that ran out of memory at the full batch, and for which rung 0 of the ladder was no help.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <exception>
#include <optional>

#include "torchglue/kept_arguments.h"
#include "torchglue/pack_once.h"
#include "torchglue/region/random_scope.h"
#include "torchglue/stages/running_statistics.h"

namespace koila {

// Regions that are alive let go of what they hold and can make again. Whether there was any.
bool shrink_regions();

// Splits the step so far and makes the call again, or serves it from outside: its results are on the stack then. Throws `ran_out` where nothing helps, and
// has said why. `before`: the state of the generator that it drew from; `statistics`: what it may have updated, or null.
void rescue_call(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack, const KeptArguments& arguments, const SavedStatistics* statistics,
                 std::optional<RandomState>& before, PackOnce& packs, std::exception_ptr ran_out);

}  // namespace koila
