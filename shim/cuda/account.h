// What every hook does around the real call.
#ifndef KOILA_SHIM_CUDA_ACCOUNT_H_
#define KOILA_SHIM_CUDA_ACCOUNT_H_

#include "runtime/cabi.h"
#include "shim/cuda/call.h"

namespace koila::cuda {

inline int place_of(const Call& call, MemoryKind kind) {
  if (kind == MemoryKind::kPinned) return KOILA_PINNED;
  return kind == MemoryKind::kManaged ? static_cast<int>(KOILA_MANAGED) : call.device();
}

// Whether the bytes are counted; not counted are those that the budget has no room for, or that a test makes fail: `asks_again`, with its retry.
bool reserve(const Call& call, int place, std::size_t bytes, bool asks_again = true);
// The bytes that were asked for did not come, for CUDA has no room either, or for another reason.
void cancel(const Call& call, int place, std::size_t bytes, Error error);
// They came, perhaps more of them.
void settle(const Call& call, MemoryKind kind, int place, std::size_t asked, std::size_t given, const void* address);

// `real` makes the call, and on success leaves the address in `*address`; `given` says how many bytes came when that can be told only then.
template <class Real, class Given>
Error allocate(const Call& call, MemoryKind kind, std::size_t bytes, void** address, Real&& real, Given&& given) {
  if (!call.counts()) return real();
  const int place = place_of(call, kind);
  if (!is_device(place)) return real();
  if (!reserve(call, place, bytes, kind != MemoryKind::kPool)) return call.fail_for_real();
  const Error error = real();
  if (error == kSuccess && *address != nullptr) settle(call, kind, place, bytes, given(), *address);
  else cancel(call, place, bytes, error);
  return error;
}

template <class Real>
Error allocate(const Call& call, MemoryKind kind, std::size_t bytes, void** address, Real&& real) {
  return allocate(call, kind, bytes, address, real, [&] { return bytes; });
}

template <class Real>
Error give_back(const Call& call, const void* address, Real&& real) {
  if (!call.counts() || address == nullptr) return real();
  DeviceMemory& memory = call.runtime().device_memory();
  const auto block = memory.forget(reinterpret_cast<std::uintptr_t>(address));
  const Error error = real();
  if (!block) return error;
  if (error == kSuccess || error == kUnloading) memory.release(*block);
  else memory.put_back(reinterpret_cast<std::uintptr_t>(address), *block);
  return error;
}

template <class Real>
Error reset_device(const Call& call, Real&& real) {
  if (!call.counts()) return real();
  const int device = call.device();
  if (!is_device(device)) return real();
  DeviceMemory& memory = call.runtime().device_memory();
  const PointerTable<Block>::Taken blocks = memory.forget_all(device);
  const Error error = real();
  for (const auto& [address, block] : blocks) {
    if (error == kSuccess) memory.release(block);
    else memory.put_back(address, block);
  }
  return error;
}

// What a device with no more than its budget would say.
void lower_to_budget(const Call& call, int device, std::size_t* free, std::size_t* total);

template <class Real>
Error show_budget(const Call& call, std::size_t* free, std::size_t* total, Real&& real) {
  const Error error = real();
  if (error == kSuccess && call.counts()) lower_to_budget(call, call.device(), free, total);
  return error;
}

// A graph is recorded between the two: what koila does by itself must not end up in it.
template <class Real>
Error begin_capture(const Call& call, Real&& real) {
  if (!call.counts()) return real();
  capture_begins();
  const Error error = real();
  if (error != kSuccess) capture_ends();
  return error;
}

// An error too ends it: of a capture that has become invalid.
template <class Real>
Error end_capture(const Call& call, Real&& real) {
  const Error error = real();
  if (call.counts()) capture_ends();
  return error;
}

}  // namespace koila::cuda

#endif  // KOILA_SHIM_CUDA_ACCOUNT_H_
