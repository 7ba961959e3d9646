// As much of CUDA's types as the hooks' signatures need. The preload is built without CUDA's headers, and works beside any cudart from 12 on;
// tests/cuda/header_test.cc holds all this against the header.
#ifndef KOILA_SHIM_CUDA_TYPES_H_
#define KOILA_SHIM_CUDA_TYPES_H_

#include <cstddef>

namespace koila::cuda {

// Enumerations by value; a newer cudart may answer with values that are not named here.
using Error = int;
constexpr Error kSuccess = 0;
constexpr Error kOutOfMemory = 2;  // cudaErrorMemoryAllocation, CUDA_ERROR_OUT_OF_MEMORY
constexpr Error kUnloading = 4;    // cudaErrorCudartUnloading
constexpr Error kNoDevice = 100;

struct PitchedPtr {
  void* ptr;
  std::size_t pitch, xsize, ysize;
};
struct Extent {
  std::size_t width, height, depth;
};
struct ChannelFormat {
  int x, y, z, w;  // bits
  int kind;
};
// A leading part of CUmemAllocationProp (that of cuMemCreate).
struct AllocationProp {
  int type;
  int handle_types;
  int location_type;
  int location_id;
};

using Handle = void*;                      // cudaArray_t, cudaStream_t, cudaMemPool_t, ...
using AllocationHandle = unsigned long long;  // CUmemGenericAllocationHandle
using DevicePointer = unsigned long long;     // CUdeviceptr

}  // namespace koila::cuda

#endif  // KOILA_SHIM_CUDA_TYPES_H_
