// One call of an interposed function of the CUDA runtime: whose it is, and where it goes on to.
#ifndef KOILA_SHIM_CUDA_CALL_H_
#define KOILA_SHIM_CUDA_CALL_H_

#include <cstdint>

#include "runtime/device_memory.h"
#include "runtime/runtime.h"
#include "shim/cuda/types.h"

namespace koila::cuda {

// Note [Two runtimes in a process]
// A process may have loaded more than one cudart (a wheel's, renamed, beside the system's), each with a state of its own, such as the last error.
// All of them bind to this library's hooks, so the hook must go on to the one that the caller is linked with. It is told by the return address:
// looked up once for each call site. The cudart found stays loaded for good, or a call site that outlives it would jump into nothing.

enum Function : std::uint16_t {
#define KOILA_CUDA(name, parameters) k_##name,
#include "shim/cuda/functions.inc"
#undef KOILA_CUDA
  k_cudaGetDevice,  // not interposed, but called
  k_driver,         // a function of the driver that was handed out (driver.h)
  kFunctions,
};

// The type of a function of the runtime, and of a hook.
#define KOILA_CUDA(name, parameters) using name##_t = Error parameters;
#include "shim/cuda/functions.inc"
#undef KOILA_CUDA
using cudaGetDevice_t = Error(int* device);

// A place in a program's or library's code that calls one of the functions. Lives for ever.
struct CallSite {
  const void* caller = nullptr;
  Function function = kFunctions;
  void* real = nullptr;         // null: there is no such function
  void* get_device = nullptr;   // cudaGetDevice and cudaMalloc of the same cudart
  void* malloc = nullptr;
  void* mem_get_info = nullptr;
  bool is_torch = false;        // PyTorch's CUDA allocator
  std::uint16_t sources[kMemoryKinds] = {};  // by MemoryKind; numbers in DeviceMemory, by the caller's library
};

class Call {
 public:
  Call(Function function, const void* caller);
  ~Call();
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  // Whether to account for it; false for what cudart's functions call of each other, and in a process that koila stays out of.
  bool counts() const { return runtime_ != nullptr; }
  Runtime& runtime() const { return *runtime_; }

  template <class F, class... Args>
  Error real(Args... args) const {
    return site_->real != nullptr ? reinterpret_cast<F*>(site_->real)(args...) : kNoDevice;
  }

  // The calling thread's device; 0 when it cannot be told.
  int device() const;
  std::uint16_t source(MemoryKind kind) const { return site_->sources[static_cast<int>(kind)]; }

  // Whether it is PyTorch's CUDA allocator that asks.
  bool is_torch() const { return site_->is_torch; }

  // Its budget comes into force when a device is first used.
  void meet(int device) const;
  // What the device has; false when it does not say.
  bool memory(std::size_t& free, std::size_t& total) const;
  // CUDA's own out-of-memory, with whatever it leaves behind (the last error).
  Error fail_for_real() const;

 private:
  const CallSite* site_;
  Runtime* runtime_ = nullptr;
};

}  // namespace koila::cuda

#endif  // KOILA_SHIM_CUDA_CALL_H_
