// The first operators of a step that is known, and where a step begins in micro-batches.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <cstdint>

namespace koila {

// Where a constant is to be made: on its own device argument, else beside its first tensor, else on the CPU.
at::Device device_asked_for(const c10::OperatorHandle& op, at::ArrayRef<c10::IValue> arguments);

// Marks the arguments of the call that an earlier step was split by. `named`: rows of the batch, where the program has said so of a tensor that the call reads; else 0.
void mark_learned_seeds(const c10::OperatorHandle& op, at::ArrayRef<c10::IValue> arguments, int64_t named);

}  // namespace koila
