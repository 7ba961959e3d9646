// KOILA_MODE=lazy: which tensor of a step that nobody knows yet is the batch.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

namespace koila {

// Note [Lazy from the first step]
// In the lazy mode nothing is run at the full batch to find out that it does not fit. So what is the batch cannot be told from a step that has been
// seen, and is guessed at the first operator where data meets a parameter: a tensor that needs no gradient, and was not made from nothing by this step
// (positions, masks), along the first dimension that the operator's rule splits with a parameter beside it. Later operators where more data of so many
// rows meets a parameter are taken for seeds of the same step. A wrong guess costs memory and time, and never changes a result: what cannot
// be split runs whole. The first two rows run alongside the program, as the first micro-batch always does; what they took says how many the others
// may be: see Region::choose_size().

// Remembers the call's seed, if it has one and nothing is known of the call. To be called before the seeds that are known are marked.
void guess_seed(const c10::OperatorHandle& op, at::ArrayRef<c10::IValue> arguments);

}  // namespace koila
