// The functions of the CUDA runtime that give and take memory, in the place of cudart's own. Each says what it asks for, and goes on.
#include "shim/cuda/account.h"
#include "shim/cuda/call.h"
#include "shim/cuda/driver.h"

namespace koila::cuda {
namespace {

std::size_t bytes_of(const ChannelFormat* format, std::size_t width, std::size_t height, std::size_t depth) {
  if (format == nullptr) return 0;
  const auto bits = static_cast<std::size_t>(format->x + format->y + format->z + format->w);
  const auto at_least_one = [](std::size_t n) { return n == 0 ? 1 : n; };
  return at_least_one(width) * at_least_one(height) * at_least_one(depth) * bits / 8;
}

std::size_t bytes_of(const ChannelFormat* format, Extent extent, unsigned levels) {
  std::size_t bytes = 0;
  for (unsigned level = 0; level < levels; ++level) {
    bytes += bytes_of(format, extent.width >> level, extent.height >> level, extent.depth >> level);
    if ((extent.width | extent.height | extent.depth) >> level == 0) break;
  }
  return bytes;
}

}  // namespace
}  // namespace koila::cuda

using namespace koila::cuda;  // NOLINT: the hooks have CUDA's names, which live outside
using koila::MemoryKind;

// Within a hook: the call as the program made it, and the real function with its arguments.
#define KOILA_HOOK(name, ...)                                               \
  extern "C" __attribute__((visibility("default"))) Error name(__VA_ARGS__)
#define KOILA_CALL(name) const Call call(k_##name, __builtin_return_address(0))
#define KOILA_REAL(name, ...) [&] { return call.real<name##_t>(__VA_ARGS__); }

KOILA_HOOK(cudaMalloc, void** pointer, std::size_t bytes) {
  KOILA_CALL(cudaMalloc);
  return allocate(call, MemoryKind::kDevice, bytes, pointer, KOILA_REAL(cudaMalloc, pointer, bytes));
}

// Rows are padded by as much as CUDA sees fit: what it gave is known afterwards.
KOILA_HOOK(cudaMallocPitch, void** pointer, std::size_t* pitch, std::size_t width, std::size_t height) {
  KOILA_CALL(cudaMallocPitch);
  return allocate(call, MemoryKind::kDevice, width * height, pointer, KOILA_REAL(cudaMallocPitch, pointer, pitch, width, height),
                  [&] { return *pitch * height; });
}

KOILA_HOOK(cudaMalloc3D, PitchedPtr* pitched, Extent extent) {
  KOILA_CALL(cudaMalloc3D);
  return allocate(call, MemoryKind::kDevice, extent.width * extent.height * extent.depth, &pitched->ptr,
                  KOILA_REAL(cudaMalloc3D, pitched, extent), [&] { return pitched->pitch * extent.height * extent.depth; });
}

KOILA_HOOK(cudaMallocArray, Handle* array, const ChannelFormat* format, std::size_t width, std::size_t height, unsigned flags) {
  KOILA_CALL(cudaMallocArray);
  return allocate(call, MemoryKind::kArray, bytes_of(format, width, height, 1), array,
                  KOILA_REAL(cudaMallocArray, array, format, width, height, flags));
}

KOILA_HOOK(cudaMalloc3DArray, Handle* array, const ChannelFormat* format, Extent extent, unsigned flags) {
  KOILA_CALL(cudaMalloc3DArray);
  return allocate(call, MemoryKind::kArray, bytes_of(format, extent, 1), array, KOILA_REAL(cudaMalloc3DArray, array, format, extent, flags));
}

KOILA_HOOK(cudaMallocMipmappedArray, Handle* array, const ChannelFormat* format, Extent extent, unsigned levels, unsigned flags) {
  KOILA_CALL(cudaMallocMipmappedArray);
  return allocate(call, MemoryKind::kArray, bytes_of(format, extent, levels), array,
                  KOILA_REAL(cudaMallocMipmappedArray, array, format, extent, levels, flags));
}

KOILA_HOOK(cudaMallocManaged, void** pointer, std::size_t bytes, unsigned flags) {
  KOILA_CALL(cudaMallocManaged);
  return allocate(call, MemoryKind::kManaged, bytes, pointer, KOILA_REAL(cudaMallocManaged, pointer, bytes, flags));
}

KOILA_HOOK(cudaMallocAsync, void** pointer, std::size_t bytes, Handle stream) {
  KOILA_CALL(cudaMallocAsync);
  return allocate(call, MemoryKind::kPool, bytes, pointer, KOILA_REAL(cudaMallocAsync, pointer, bytes, stream));
}

KOILA_HOOK(cudaMallocAsync_ptsz, void** pointer, std::size_t bytes, Handle stream) {
  KOILA_CALL(cudaMallocAsync_ptsz);
  return allocate(call, MemoryKind::kPool, bytes, pointer, KOILA_REAL(cudaMallocAsync_ptsz, pointer, bytes, stream));
}

KOILA_HOOK(cudaMallocFromPoolAsync, void** pointer, std::size_t bytes, Handle pool, Handle stream) {
  KOILA_CALL(cudaMallocFromPoolAsync);
  return allocate(call, MemoryKind::kPool, bytes, pointer, KOILA_REAL(cudaMallocFromPoolAsync, pointer, bytes, pool, stream));
}

KOILA_HOOK(cudaMallocFromPoolAsync_ptsz, void** pointer, std::size_t bytes, Handle pool, Handle stream) {
  KOILA_CALL(cudaMallocFromPoolAsync_ptsz);
  return allocate(call, MemoryKind::kPool, bytes, pointer, KOILA_REAL(cudaMallocFromPoolAsync_ptsz, pointer, bytes, pool, stream));
}

KOILA_HOOK(cudaMallocHost, void** pointer, std::size_t bytes) {
  KOILA_CALL(cudaMallocHost);
  return allocate(call, MemoryKind::kPinned, bytes, pointer, KOILA_REAL(cudaMallocHost, pointer, bytes));
}

KOILA_HOOK(cudaHostAlloc, void** pointer, std::size_t bytes, unsigned flags) {
  KOILA_CALL(cudaHostAlloc);
  return allocate(call, MemoryKind::kPinned, bytes, pointer, KOILA_REAL(cudaHostAlloc, pointer, bytes, flags));
}

KOILA_HOOK(cudaHostRegister, void* pointer, std::size_t bytes, unsigned flags) {
  KOILA_CALL(cudaHostRegister);
  return allocate(call, MemoryKind::kPinned, bytes, &pointer, KOILA_REAL(cudaHostRegister, pointer, bytes, flags));
}

KOILA_HOOK(cudaFree, void* pointer) {
  KOILA_CALL(cudaFree);
  return give_back(call, pointer, KOILA_REAL(cudaFree, pointer));
}

KOILA_HOOK(cudaFreeAsync, void* pointer, Handle stream) {
  KOILA_CALL(cudaFreeAsync);
  return give_back(call, pointer, KOILA_REAL(cudaFreeAsync, pointer, stream));
}

KOILA_HOOK(cudaFreeAsync_ptsz, void* pointer, Handle stream) {
  KOILA_CALL(cudaFreeAsync_ptsz);
  return give_back(call, pointer, KOILA_REAL(cudaFreeAsync_ptsz, pointer, stream));
}

KOILA_HOOK(cudaFreeArray, Handle array) {
  KOILA_CALL(cudaFreeArray);
  return give_back(call, array, KOILA_REAL(cudaFreeArray, array));
}

KOILA_HOOK(cudaFreeMipmappedArray, Handle array) {
  KOILA_CALL(cudaFreeMipmappedArray);
  return give_back(call, array, KOILA_REAL(cudaFreeMipmappedArray, array));
}

KOILA_HOOK(cudaFreeHost, void* pointer) {
  KOILA_CALL(cudaFreeHost);
  return give_back(call, pointer, KOILA_REAL(cudaFreeHost, pointer));
}

KOILA_HOOK(cudaHostUnregister, void* pointer) {
  KOILA_CALL(cudaHostUnregister);
  return give_back(call, pointer, KOILA_REAL(cudaHostUnregister, pointer));
}

KOILA_HOOK(cudaDeviceReset) {
  KOILA_CALL(cudaDeviceReset);
  return reset_device(call, KOILA_REAL(cudaDeviceReset));
}

KOILA_HOOK(cudaMemGetInfo, std::size_t* free, std::size_t* total) {
  KOILA_CALL(cudaMemGetInfo);
  return show_budget(call, free, total, KOILA_REAL(cudaMemGetInfo, free, total));
}

KOILA_HOOK(cudaGetDriverEntryPoint, const char* symbol, void** function, unsigned long long flags, int* status) {
  KOILA_CALL(cudaGetDriverEntryPoint);
  return hand_out(call, symbol, function, KOILA_REAL(cudaGetDriverEntryPoint, symbol, function, flags, status));
}

KOILA_HOOK(cudaGetDriverEntryPoint_ptsz, const char* symbol, void** function, unsigned long long flags, int* status) {
  KOILA_CALL(cudaGetDriverEntryPoint_ptsz);
  return hand_out(call, symbol, function, KOILA_REAL(cudaGetDriverEntryPoint_ptsz, symbol, function, flags, status));
}

KOILA_HOOK(cudaGetDriverEntryPointByVersion, const char* symbol, void** function, unsigned version, unsigned long long flags, int* status) {
  KOILA_CALL(cudaGetDriverEntryPointByVersion);
  return hand_out(call, symbol, function, KOILA_REAL(cudaGetDriverEntryPointByVersion, symbol, function, version, flags, status));
}

KOILA_HOOK(cudaGetDriverEntryPointByVersion_ptsz, const char* symbol, void** function, unsigned version, unsigned long long flags, int* status) {
  KOILA_CALL(cudaGetDriverEntryPointByVersion_ptsz);
  return hand_out(call, symbol, function, KOILA_REAL(cudaGetDriverEntryPointByVersion_ptsz, symbol, function, version, flags, status));
}

KOILA_HOOK(cudaStreamBeginCapture, Handle stream, int mode) {
  KOILA_CALL(cudaStreamBeginCapture);
  return begin_capture(call, KOILA_REAL(cudaStreamBeginCapture, stream, mode));
}

KOILA_HOOK(cudaStreamBeginCaptureToGraph, Handle stream, Handle graph, const Handle* nodes, const void* edges, std::size_t count, int mode) {
  KOILA_CALL(cudaStreamBeginCaptureToGraph);
  return begin_capture(call, KOILA_REAL(cudaStreamBeginCaptureToGraph, stream, graph, nodes, edges, count, mode));
}

KOILA_HOOK(cudaStreamEndCapture, Handle stream, Handle* graph) {
  KOILA_CALL(cudaStreamEndCapture);
  return end_capture(call, KOILA_REAL(cudaStreamEndCapture, stream, graph));
}

KOILA_HOOK(cudaStreamBeginCapture_ptsz, Handle stream, int mode) {
  KOILA_CALL(cudaStreamBeginCapture_ptsz);
  return begin_capture(call, KOILA_REAL(cudaStreamBeginCapture_ptsz, stream, mode));
}

KOILA_HOOK(cudaStreamBeginCaptureToGraph_ptsz, Handle stream, Handle graph, const Handle* nodes, const void* edges, std::size_t count, int mode) {
  KOILA_CALL(cudaStreamBeginCaptureToGraph_ptsz);
  return begin_capture(call, KOILA_REAL(cudaStreamBeginCaptureToGraph_ptsz, stream, graph, nodes, edges, count, mode));
}

KOILA_HOOK(cudaStreamEndCapture_ptsz, Handle stream, Handle* graph) {
  KOILA_CALL(cudaStreamEndCapture_ptsz);
  return end_capture(call, KOILA_REAL(cudaStreamEndCapture_ptsz, stream, graph));
}
