// Copies and fills. They are done when the call returns, on whatever stream; arrays and three dimensions are left out.
#include <cstring>

#include "tests/cuda/sim/call.h"

namespace sim {
namespace {

cudaError_t copy(void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return cudaSuccess;
  if (to == nullptr || from == nullptr) return cudaErrorInvalidValue;
  std::memmove(to, from, bytes);
  return cudaSuccess;
}

cudaError_t copy_rows(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch, std::size_t width, std::size_t height) {
  if (width > to_pitch || width > from_pitch) return cudaErrorInvalidPitchValue;
  for (std::size_t row = 0; row < height; ++row) {
    const cudaError_t error = copy(static_cast<char*>(to) + row * to_pitch, static_cast<const char*>(from) + row * from_pitch, width);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

cudaError_t fill(void* to, int value, std::size_t bytes) {
  if (bytes == 0) return cudaSuccess;
  if (to == nullptr) return cudaErrorInvalidValue;
  std::memset(to, value, bytes);
  return cudaSuccess;
}

cudaError_t fill_rows(void* to, std::size_t pitch, int value, std::size_t width, std::size_t height) {
  if (width > pitch) return cudaErrorInvalidPitchValue;
  for (std::size_t row = 0; row < height; ++row) {
    if (const cudaError_t error = fill(static_cast<char*>(to) + row * pitch, value, width)) return error;
  }
  return cudaSuccess;
}

}  // namespace
}  // namespace sim

using namespace sim;

SIM_EXPORT cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  SIM_CALL();
  return result(copy(to, from, bytes));
}

SIM_EXPORT cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t) {
  SIM_CALL();
  return result(copy(to, from, bytes));
}

SIM_EXPORT cudaError_t cudaMemcpyPeer(void* to, int, const void* from, int, size_t bytes) {
  SIM_CALL();
  return result(copy(to, from, bytes));
}

SIM_EXPORT cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t bytes, cudaStream_t) {
  SIM_CALL();
  return result(copy(to, from, bytes));
}

SIM_EXPORT cudaError_t cudaMemcpy2D(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height, cudaMemcpyKind) {
  SIM_CALL();
  return result(copy_rows(to, to_pitch, from, from_pitch, width, height));
}

SIM_EXPORT cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height, cudaMemcpyKind,
                                         cudaStream_t) {
  SIM_CALL();
  return result(copy_rows(to, to_pitch, from, from_pitch, width, height));
}

SIM_EXPORT cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  SIM_CALL();
  return result(fill(to, value, bytes));
}

SIM_EXPORT cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t) {
  SIM_CALL();
  return result(fill(to, value, bytes));
}

SIM_EXPORT cudaError_t cudaMemset2D(void* to, size_t pitch, int value, size_t width, size_t height) {
  SIM_CALL();
  return result(fill_rows(to, pitch, value, width, height));
}

SIM_EXPORT cudaError_t cudaMemset2DAsync(void* to, size_t pitch, int value, size_t width, size_t height, cudaStream_t) {
  SIM_CALL();
  return result(fill_rows(to, pitch, value, width, height));
}

SIM_TWIN(cudaMemcpy_ptds, cudaMemcpy, (void* to, const void* from, size_t bytes, cudaMemcpyKind kind), (to, from, bytes, kind))
SIM_TWIN(cudaMemcpyAsync_ptsz, cudaMemcpyAsync, (void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream),
         (to, from, bytes, kind, stream))
SIM_TWIN(cudaMemcpy2D_ptds, cudaMemcpy2D,
         (void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height, cudaMemcpyKind kind),
         (to, to_pitch, from, from_pitch, width, height, kind))
SIM_TWIN(cudaMemcpy2DAsync_ptsz, cudaMemcpy2DAsync,
         (void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height, cudaMemcpyKind kind, cudaStream_t stream),
         (to, to_pitch, from, from_pitch, width, height, kind, stream))
SIM_TWIN(cudaMemset_ptds, cudaMemset, (void* to, int value, size_t bytes), (to, value, bytes))
SIM_TWIN(cudaMemsetAsync_ptsz, cudaMemsetAsync, (void* to, int value, size_t bytes, cudaStream_t stream), (to, value, bytes, stream))
SIM_TWIN(cudaMemset2D_ptds, cudaMemset2D, (void* to, size_t pitch, int value, size_t width, size_t height), (to, pitch, value, width, height))
SIM_TWIN(cudaMemset2DAsync_ptsz, cudaMemset2DAsync, (void* to, size_t pitch, int value, size_t width, size_t height, cudaStream_t stream),
         (to, pitch, value, width, height, stream))
