// What an optimizer has done so far, for whom its error stops.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include "torchglue/op_traits.h"

namespace koila {

// An operator that makes no graph has written to these arguments, or will have: after a backward pass an optimizer is at work.
void note_updates(const c10::OperatorHandle& op, const OpTraits& traits, at::ArrayRef<c10::IValue> arguments);

}  // namespace koila
