// A budget on the CPU: PyTorch's CPU allocator, counted and capped.
#pragma once

namespace koila {

// From now on CPU tensor memory is reserved with the runtime first; what does not fit raises c10::OutOfMemoryError, as CUDA's allocator
// does. Tensors allocated before keep their memory and are not counted. Call once.
void install_cpu_allocator();

}  // namespace koila
