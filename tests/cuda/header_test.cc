// The preload is built without CUDA's headers, from declarations of its own; here both meet. Most of it is checked by the compiler.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <type_traits>

#include "shim/cuda/types.h"

namespace koila::cuda {

namespace {

// Passed in the same place: both pointers, both integers of one size, or both structures of one size.
template <class A, class B>
constexpr bool pass_alike() {
  const auto is_number = []<class T>(std::type_identity<T>) { return std::is_integral_v<T> || std::is_enum_v<T>; };
  if (std::is_pointer_v<A> != std::is_pointer_v<B>) return false;
  if (is_number(std::type_identity<A>{}) != is_number(std::type_identity<B>{})) return false;
  return sizeof(A) == sizeof(B) && alignof(A) == alignof(B);
}

template <class A, class B>
struct Alike : std::false_type {};
template <class RA, class... A, class RB, class... B>
  requires(sizeof...(A) == sizeof...(B))
struct Alike<RA(A...), RB(B...)> : std::bool_constant<pass_alike<RA, RB>() && (pass_alike<A, B>() && ...)> {};

static_assert(Alike<int(void*, unsigned), cudaError_t(void**, unsigned)>::value);
static_assert(!Alike<int(void*), cudaError_t(void**, unsigned)>::value, "arity");
static_assert(!Alike<int(unsigned), cudaError_t(std::size_t)>::value, "size");
static_assert(!Alike<int(std::size_t), cudaError_t(void*)>::value, "kind");

TEST(Header, LayoutsAreTheHeaders) {
  static_assert(sizeof(PitchedPtr) == sizeof(cudaPitchedPtr) && offsetof(PitchedPtr, ptr) == offsetof(cudaPitchedPtr, ptr) &&
                offsetof(PitchedPtr, pitch) == offsetof(cudaPitchedPtr, pitch) && offsetof(PitchedPtr, xsize) == offsetof(cudaPitchedPtr, xsize) &&
                offsetof(PitchedPtr, ysize) == offsetof(cudaPitchedPtr, ysize));
  static_assert(sizeof(Extent) == sizeof(cudaExtent) && offsetof(Extent, width) == offsetof(cudaExtent, width) &&
                offsetof(Extent, height) == offsetof(cudaExtent, height) && offsetof(Extent, depth) == offsetof(cudaExtent, depth));
  static_assert(sizeof(ChannelFormat) == sizeof(cudaChannelFormatDesc) && offsetof(ChannelFormat, x) == offsetof(cudaChannelFormatDesc, x) &&
                offsetof(ChannelFormat, y) == offsetof(cudaChannelFormatDesc, y) && offsetof(ChannelFormat, z) == offsetof(cudaChannelFormatDesc, z) &&
                offsetof(ChannelFormat, w) == offsetof(cudaChannelFormatDesc, w) && offsetof(ChannelFormat, kind) == offsetof(cudaChannelFormatDesc, f));
  // A leading part.
  static_assert(sizeof(AllocationProp) <= sizeof(CUmemAllocationProp) && offsetof(AllocationProp, type) == offsetof(CUmemAllocationProp, type) &&
                offsetof(AllocationProp, handle_types) == offsetof(CUmemAllocationProp, requestedHandleTypes) &&
                offsetof(AllocationProp, location_type) == offsetof(CUmemAllocationProp, location) + offsetof(CUmemLocation, type) &&
                offsetof(AllocationProp, location_id) == offsetof(CUmemAllocationProp, location) + offsetof(CUmemLocation, id));
  static_assert(sizeof(CUmemAllocationProp::location.type) == sizeof(int) && sizeof(CUmemAllocationProp::location.id) == sizeof(int));
  static_assert(sizeof(AllocationHandle) == sizeof(CUmemGenericAllocationHandle) && sizeof(DevicePointer) == sizeof(CUdeviceptr));
  static_assert(sizeof(Handle) == sizeof(cudaArray_t) && sizeof(Handle) == sizeof(cudaStream_t) && sizeof(Handle) == sizeof(cudaMemPool_t) &&
                sizeof(Handle) == sizeof(cudaMipmappedArray_t) && sizeof(Handle) == sizeof(CUstream) && sizeof(Handle) == sizeof(CUmemoryPool));
}

TEST(Header, ErrorsAreTheHeaders) {
  static_assert(kSuccess == cudaSuccess && kOutOfMemory == cudaErrorMemoryAllocation && kUnloading == cudaErrorCudartUnloading &&
                kNoDevice == cudaErrorNoDevice);
  static_assert(static_cast<int>(CUDA_SUCCESS) == kSuccess && static_cast<int>(CUDA_ERROR_OUT_OF_MEMORY) == kOutOfMemory);
  static_assert(CU_MEM_LOCATION_TYPE_DEVICE == 1, "kOnDevice of driver.cc");
}

#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

// A twin has its original's signature; the header declares none of them.
#define cudaMallocAsync_ptsz cudaMallocAsync
#define cudaMallocFromPoolAsync_ptsz cudaMallocFromPoolAsync
#define cudaFreeAsync_ptsz cudaFreeAsync
#define cudaGetDriverEntryPoint_ptsz cudaGetDriverEntryPoint
#define cudaGetDriverEntryPointByVersion_ptsz cudaGetDriverEntryPointByVersion
#define cudaStreamBeginCapture_ptsz cudaStreamBeginCapture
#define cudaStreamBeginCaptureToGraph_ptsz cudaStreamBeginCaptureToGraph
#define cudaStreamEndCapture_ptsz cudaStreamEndCapture

TEST(Header, RuntimeSignaturesAreTheHeaders) {
#define KOILA_CUDA(name, parameters) static_assert(Alike<Error parameters, decltype(::name)>::value, #name);
#include "shim/cuda/functions.inc"
#undef KOILA_CUDA
}

// The header's macros turn most names into those of the present versions, which are what programs ask for.
TEST(Header, DriverSignaturesAreTheHeaders) {
#define KOILA_DRIVER(name, parameters) static_assert(Alike<Error parameters, decltype(::name)>::value, #name);
#include "shim/cuda/driver_functions.inc"
#undef KOILA_DRIVER
}

}  // namespace
}  // namespace koila::cuda
