// Arrays for textures: opaque, and counted as their texels without padding. A handle is its block's address.
#include <algorithm>
#include <unordered_map>

#include "tests/cuda/sim/memory.h"

namespace sim {
namespace {

struct Description {
  cudaChannelFormatDesc format;
  cudaExtent extent;
  unsigned flags;
};

struct Arrays {
  std::mutex mutex;
  std::unordered_map<const void*, Description> known;
};

Arrays& arrays() {
  static Arrays& leaked = *new Arrays;
  return leaked;
}

// False when the product does not fit.
bool texels(const cudaExtent& extent, std::size_t* count) {
  return !__builtin_mul_overflow(extent.width, std::max<std::size_t>(extent.height, 1), count) &&
         !__builtin_mul_overflow(*count, std::max<std::size_t>(extent.depth, 1), count);
}

std::size_t texel_bytes(const cudaChannelFormatDesc& format) { return static_cast<std::size_t>(format.x + format.y + format.z + format.w + 7) / 8; }

cudaError_t make(void** array, Kind kind, const cudaChannelFormatDesc* format, cudaExtent extent, unsigned levels, unsigned flags) {
  if (array == nullptr || format == nullptr || extent.width == 0) return cudaErrorInvalidValue;
  std::size_t bytes = 0;
  cudaExtent level = extent;
  for (unsigned i = 0; i < levels; ++i) {
    std::size_t count;
    if (!texels(level, &count) || __builtin_mul_overflow(count, texel_bytes(*format), &count) || __builtin_add_overflow(bytes, count, &bytes)) {
      return cudaErrorMemoryAllocation;
    }
    level = {std::max<std::size_t>(level.width / 2, 1), level.height / 2, level.depth / 2};
  }
  if (const cudaError_t error = allocate(array, kind, bytes)) return error;
  const std::lock_guard lock(arrays().mutex);
  arrays().known[*array] = {*format, extent, flags};
  return cudaSuccess;
}

cudaError_t destroy(const void* array, Kind kind) {
  // Documented to be an error, unlike cudaFree(nullptr).
  if (array == nullptr) return cudaErrorInvalidValue;
  const std::lock_guard lock(arrays().mutex);
  const cudaError_t error = release(array, kind);
  if (error == cudaSuccess) arrays().known.erase(array);
  return error;
}

}  // namespace

void forget_arrays() {
  const std::lock_guard lock(arrays().mutex);
  arrays().known.clear();
}

}  // namespace sim

using namespace sim;

SIM_EXPORT cudaError_t cudaMallocArray(cudaArray_t* out, const cudaChannelFormatDesc* format, size_t width, size_t height, unsigned int flags) {
  SIM_CALL();
  return result(make(reinterpret_cast<void**>(out), array, format, {width, height, 0}, 1, flags));
}

SIM_EXPORT cudaError_t cudaMalloc3DArray(cudaArray_t* out, const cudaChannelFormatDesc* format, cudaExtent extent, unsigned int flags) {
  SIM_CALL();
  return result(make(reinterpret_cast<void**>(out), array, format, extent, 1, flags));
}

SIM_EXPORT cudaError_t cudaMallocMipmappedArray(cudaMipmappedArray_t* out, const cudaChannelFormatDesc* format, cudaExtent extent,
                                                unsigned int levels, unsigned int flags) {
  SIM_CALL();
  return result(make(reinterpret_cast<void**>(out), mipmapped, format, extent, std::clamp(levels, 1u, 64u), flags));
}

SIM_EXPORT cudaError_t cudaFreeArray(cudaArray_t handle) {
  SIM_CALL();
  return result(destroy(handle, array));
}

SIM_EXPORT cudaError_t cudaFreeMipmappedArray(cudaMipmappedArray_t handle) {
  SIM_CALL();
  return result(destroy(handle, mipmapped));
}

SIM_EXPORT cudaError_t cudaArrayGetInfo(cudaChannelFormatDesc* format, cudaExtent* extent, unsigned int* flags, cudaArray_t handle) {
  SIM_CALL();
  const std::lock_guard lock(arrays().mutex);
  auto found = arrays().known.find(handle);
  if (found == arrays().known.end()) return result(cudaErrorInvalidResourceHandle);
  if (format != nullptr) *format = found->second.format;
  if (extent != nullptr) *extent = found->second.extent;
  if (flags != nullptr) *flags = found->second.flags;
  return cudaSuccess;
}

SIM_EXPORT cudaChannelFormatDesc cudaCreateChannelDesc(int x, int y, int z, int w, cudaChannelFormatKind kind) { return {x, y, z, w, kind}; }
