// What koila knows of the process that it is in, and where the step under way is. Everything below the regions needs no more than this.
#pragma once

#include <ATen/SavedTensorHooks.h>
#include <c10/core/Device.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <thread>

#include "runtime/abi.h"

namespace koila {

// Set at attach, and the same from then on, except for the thread that owns the steps.
struct Process {
  const koila_runtime* runtime = nullptr;  // null until attach()
  bool rescue = false;                     // mode is rescue or lazy, and koila has not stayed out since
  std::atomic<std::thread::id> owner;      // see Note [Whose steps are followed]
  std::atomic<bool> cuda_waits{true};      // PyTorch's CUDA allocator is still to be met

  bool is_owner() const { return owner.load(std::memory_order_acquire) == std::this_thread::get_id(); }
  // While a CUDA graph is captured koila stays out: of what is recorded there nothing runs yet.
  bool capturing() const { return __atomic_load_n(runtime->captures, __ATOMIC_ACQUIRE) != 0; }
  bool meets_cuda() const { return cuda_waits.load(std::memory_order_relaxed) && __atomic_load_n(runtime->torch_uses_cuda, __ATOMIC_ACQUIRE) != 0; }

  bool verifies() const { return runtime->settings->verify != KOILA_VERIFY_NOTHING; }
  bool verifies_always() const { return runtime->settings->verify == KOILA_VERIFY_EVERY; }
  bool lazy() const { return runtime->settings->mode == KOILA_MODE_LAZY; }
  int64_t forced_micro_batch() const { return runtime->settings->microbatch; }

  void log(int level, const std::string& message) const;
  // To the log, and to the report.
  void warn(const std::string& message) const;
};

// Where the owner's step is at the moment.
struct Moment {
  bool converting = false;     // operators of a step on the tape are run again: nothing is recorded
  bool forward_again = false;  // and that forward pass is one whose backward pass ran out: cut into stages as one that runs out itself
  int engine_depth = 0;        // nested Engine::execute calls of the owner's step
  const at::impl::SavedTensorDefaultHooksTLS* in_checkpoint = nullptr;  // the call came under these saved-tensor hooks, which are off for the moment
  bool functions = false;      // the step has autograd.Functions in it, and its backward is watched for steps within
  bool had_backward = false;
};

// Both are parts of the session, which the layers below it do not know. Asked several times for each operator and each piece of memory.
Process& make_process();
Moment& make_moment();
inline constinit Process* the_process = nullptr;
inline constinit Moment* the_moment = nullptr;
inline Process& process() { return the_process != nullptr ? *the_process : make_process(); }
inline Moment& moment() { return the_moment != nullptr ? *the_moment : make_moment(); }

// Whether this thread works for the owner's step, and may touch regions: it is the owner, or one of the engine's in the owner's backward pass.
bool works_for_owner();

// A device as the runtime numbers it.
inline int device_number(at::Device device) { return device.is_cpu() ? static_cast<int>(KOILA_CPU) : static_cast<int>(device.index()); }
inline at::Device device_of_number(int number) {
  return number == KOILA_CPU ? at::Device(at::kCPU) : at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(number));
}

}  // namespace koila
