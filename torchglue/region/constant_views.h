// The autograd metadata of deferred tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

#include "torchglue/region/deferred.h"

namespace koila {

// Note [Views of constants]
// `y = x * mask`, `v = y[:, 1:]`, and then `v.copy_(h)`, where h has a graph: PyTorch gives y the graph of the write, since v is a view of y. Where the write joins the region, the region does
// so; where it runs for real, PyTorch has to know that v is a view. So a deferred view of a constant is one from the start. Once a write in the region makes it differentiable, it hangs on the
// region's node as its base does, and is no view to PyTorch any more: a write for real to the one is then refused while the other is alive (Region::hand_out_group).

// Makes `view`, which shares the memory of `of` and has no metadata yet, a view of it, or of what that is a view of. `one_of_several`: split() gave it, and the like. Nothing happens where one of
// them takes a gradient, or is an inference tensor.
void stand_as_view(const at::Tensor& view, const at::Tensor& of, bool one_of_several);

bool is_constant_view(const at::Tensor& tensor);

// Gives the tensor metadata that tell of its death. `as_view`: of the same base as now.
void watch_for_death(c10::TensorImpl& tensor, DeathWatch&& watch, bool as_view);

// Null where it was never deferred.
DeathWatch* watch_of(c10::TensorImpl& tensor);

// It is no view any more.
void stand_alone(const at::Tensor& view);

// Whether PyTorch knows that the two share memory: a write to the one with a graph shows in the other.
bool are_related(const at::Tensor& a, const at::Tensor& b);

}  // namespace koila
