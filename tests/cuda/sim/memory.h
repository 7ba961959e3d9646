// What the runtime's and the driver's functions share; they differ in their names and in whether they set a last error.
#pragma once

#include "tests/cuda/sim/call.h"
#include "tests/cuda/sim/heap.h"

namespace sim {

// On the current device. Zero bytes succeed with a null pointer.
cudaError_t allocate(void** address, Kind kind, std::size_t bytes);
cudaError_t allocate_pitched(void** address, std::size_t* pitch, std::size_t width, std::size_t height);

// Null is fine.
cudaError_t release(const void* address, unsigned kinds);

cudaError_t memory_info(std::size_t* free, std::size_t* total);

constexpr unsigned freed_by_cuda_free = linear | pooled | managed;

cudaError_t register_host(void* address, std::size_t bytes);
cudaError_t unregister_host(void* address);
bool is_registered(const void* address);
std::size_t registered_bytes();
void forget_registered();

void forget_arrays();

}  // namespace sim
