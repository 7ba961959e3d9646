// The driver's allocation functions, as programs reach them through cudaGetDriverEntryPoint: what is handed out is a function of this library that
// goes on to the driver's.
#ifndef KOILA_SHIM_CUDA_DRIVER_H_
#define KOILA_SHIM_CUDA_DRIVER_H_

#include "shim/cuda/call.h"

namespace koila::cuda {

// The function to hand out in the place of `real`, the driver's `symbol`: `real` itself when it is none of those that give or take memory.
void* in_place_of(const char* symbol, void* real);

template <class Real>
Error hand_out(const Call& call, const char* symbol, void** function, Real&& real) {
  const Error error = real();
  if (error == kSuccess && call.counts() && symbol != nullptr && function != nullptr && *function != nullptr) *function = in_place_of(symbol, *function);
  return error;
}

}  // namespace koila::cuda

#endif  // KOILA_SHIM_CUDA_DRIVER_H_
