// Writes without gradients of which an autograd.Function may say something else afterwards.
#pragma once

#include <ATen/core/Tensor.h>

namespace koila {

// Note [Quiet writes]
// Within an autograd.Function operators write without gradients, and the Function may say afterwards that its graph is that of what was written to (mark_dirty). Of a view PyTorch makes the graph
// of the base anew with it, and of all other views; a region's tensors have its node, each for itself, and only the one that was marked gets another. The same where the write has its value handed out first. Whether it did shows once gradients are on again.
// An operator is about to write to the tensor. Nothing is done where gradients are on.
void note_quiet_write(const at::Tensor& t);
// Throws out of memory where a Function has marked one of several tensors that share their memory. To be called where gradients are on, before the next operator or pass.
void check_quiet_writes();

}  // namespace koila
