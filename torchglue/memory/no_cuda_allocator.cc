// In the place of cuda_allocator.cc in a build without CUDA's headers.
#include "torchglue/memory/cuda_allocator.h"

namespace koila {

void attach_cuda_allocator() {}
void release_cached_blocks(c10::Device) {}
std::optional<CudaRoom> cuda_room(c10::Device) { return std::nullopt; }

}  // namespace koila
