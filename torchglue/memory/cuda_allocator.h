// PyTorch's caching allocator for CUDA devices: what it tells koila, and what koila asks of it.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>

namespace koila {

// Note [Meeting the CUDA allocator]
// The allocator takes observers only once it is initialised, by the program's first use of a device, and forgets none: there is no
// detaching. So koila waits for the first memory that the preload sees it get on a device, and attaches before the operator after it. What
// was allocated by then is read off the allocator's own statistics. Where koila comes into a process that runs already, the allocator may be ready: then that is at once.

// Attaches if the allocator is there and ready and has not been attached to; else does nothing. Any thread. To be called once
// the allocator has got something on a device (koila_runtime.torch_uses_cuda).
void attach_cuda_allocator();

// Gives the blocks that nobody uses back to the device: a region's micro-batches need other sizes than the full batch did. Does nothing for
// a device that is no CUDA device.
void release_cached_blocks(c10::Device device);

// Memory of a CUDA device that may still be had, in bytes.
struct CudaRoom {
  int64_t free;    // nobody has it
  int64_t cached;  // the caching allocator keeps it for what comes
};
// Nothing when PyTorch's CUDA allocator has not been met, or the device does not say.
std::optional<CudaRoom> cuda_room(c10::Device device);

}  // namespace koila
