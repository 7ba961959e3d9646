// Indices that lie outside of what they point into.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

namespace koila {

// Note [Errors that hang on values]
// PyTorch's kernels for the CPU raise where a label, a token or another index lies outside. An operator that joins a region is run later, and would raise from the backward pass, outside of what the
// program has put around the call; or never, where nobody reads its result. So an index that has its value already is looked at when the operator is called, and one that lies outside makes the
// operator run whole, there and then. An index that is itself deferred is not looked at. Other devices say nothing at the call: theirs are not looked at, and nothing waits for them.
bool has_index_outside(const c10::OperatorHandle& op, at::ArrayRef<c10::IValue> arguments);

}  // namespace koila
