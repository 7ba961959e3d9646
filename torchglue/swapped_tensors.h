// torch.utils.swap_tensors().
#pragma once

namespace koila {

// Note [Tensors that are swapped]
// swap_tensors(a, b) makes the Python object `a` stand for the tensor of `b`, and the other way round. Module.to() and load_state_dict() call it for parameters that are tensor subclasses, and for all
// parameters once the program has called torch.__future__.set_swap_module_params_on_conversion(True). It raises an error where anything but the Python object refers to one of the tensors, even
// weakly, and the tape refers to every tensor of the step. So the tape ends before a swap, and what ran before it is not split. A parameter is swapped first, and then its gradient. The tape would
// hold a small gradient, and so it holds no small tensor any more once the process has swapped one.
//
// Replaces torch._C._swap_tensor_impl by a function that does so first, as soon as Python runs its pending calls; in a program without Python it does nothing. The calling thread holds Python's lock.
void let_go_of_swapped_tensors();

}  // namespace koila
