// torch.utils.swap_tensors().
#pragma once

namespace koila {

// Note [Tensors that are swapped]
// swap_tensors() exchanges two tensors for who holds them in Python; Module.to() and load_state_dict() do so with parameters of tensor subclasses, and wherever
// torch.__future__.set_swap_module_params_on_conversion() is on. It takes no tensor that anything else refers to, weakly or not, and the tape refers to all that the step has seen. So the tape ends
// before the swap: what ran before it is not split any more. A parameter comes first, and then its gradient, which the tape would hold if it is small: in a process that swaps it holds none.
//
// Has torch._C._swap_tensor_impl do so, as soon as Python goes on; in a program without Python nothing. To be called by a thread that holds Python's lock.
void let_go_of_swapped_tensors();

}  // namespace koila
