// What the autograd node of an operator may save for backward.
#pragma once

#include <ATen/core/function_schema.h>

namespace koila {

// Whether the operator's node may save operands, or the result, for backward, as themselves: what is written there unseen changes the gradients. True where that is not known.
bool may_save_operands(const c10::FunctionSchema& schema);
bool may_save_result(const c10::FunctionSchema& schema);
// Whether its node compares what it has saved, the result with the operand, for being equal: of two that were made in different ways, to the last bit, nothing is equal, and the gradient is 0 / 0.
bool compares_what_it_saves(const c10::FunctionSchema& schema);
// Whether it may save anything at all: then its node does not run a second time once that has been let go. False only where it is known to save nothing, whatever its arguments.
bool may_save_anything(const c10::FunctionSchema& schema);

// Why a step is refused.
inline constexpr const char* kEffectInCheckpoint = "the step updates running statistics, or another buffer, or draws random numbers without preserve_rng_state, or reads such statistics, inside a checkpoint, which would do so again in backward.";
inline constexpr const char* kSavedByHookAndWritten = "a tensor that an operator under saved-tensor hooks (a checkpoint, save_on_cpu) may have saved was written to since.";

}  // namespace koila
