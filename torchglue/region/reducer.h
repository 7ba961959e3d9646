// DistributedDataParallel's search for parameters that the outputs of a forward pass do not depend on.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace koila {

using PrepareForBackwardFn = void (*)(void* reducer, const std::vector<at::Tensor>& outputs);

// Stands in for c10d::Reducer::prepare_for_backward; `set_real_prepare_for_backward` names the real one first.
void set_real_prepare_for_backward(PrepareForBackwardFn real);
void prepare_for_backward(void* reducer, const std::vector<at::Tensor>& outputs);

}  // namespace koila
