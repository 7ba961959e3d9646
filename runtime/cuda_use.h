// What PyTorch's CUDA allocator (libc10_cuda.so) has got from a device, as far as koila was there.
#ifndef KOILA_RUNTIME_CUDA_USE_H_
#define KOILA_RUNTIME_CUDA_USE_H_

#include <cstddef>
#include <cstdint>

namespace koila {

// Becomes 1, from 0, with the first memory that it gets. To be read atomically.
extern int torch_uses_cuda;
void note_torch_uses_cuda();

// Memory that it got before koila came: counted from now on, also against a budget, which holds for what comes next. Throws nothing.
void on_earlier_segment(int device, std::uintptr_t address, std::size_t bytes);

}  // namespace koila

#endif  // KOILA_RUNTIME_CUDA_USE_H_
