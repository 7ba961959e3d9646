#include "shim/cuda/driver.h"

#include <pthread.h>

#include <atomic>
#include <cstring>

#include "runtime/cuda_use.h"
#include "shim/cuda/account.h"
#include "shim/cuda/virtual_memory.h"

namespace koila::cuda {

namespace {

#define KOILA_DRIVER(name, parameters) using name##_t = Error parameters;
#include "shim/cuda/driver_functions.inc"
#undef KOILA_DRIVER

// The driver's own functions, once they have been asked for.
#define KOILA_DRIVER(name, parameters) std::atomic<name##_t*> real_##name{nullptr};
#include "shim/cuda/driver_functions.inc"
#undef KOILA_DRIVER

// Never destroyed, for memory is given back to the very end. The child of a fork, where CUDA does not go on and another thread may have held the lock, has
// one of its own.
std::atomic<VirtualMemory*> virtual_memory_now{nullptr};

VirtualMemory& virtual_memory() {
  static const bool is_made = [] {
    virtual_memory_now.store(new VirtualMemory);
    pthread_atfork(nullptr, nullptr, [] { virtual_memory_now.store(new VirtualMemory); });
    return true;
  }();
  (void)is_made;
  return *virtual_memory_now.load(std::memory_order_acquire);
}

void* address(DevicePointer pointer) { return reinterpret_cast<void*>(pointer); }

// Within one of the functions below: the call, and the driver's function with its arguments.
#define KOILA_CALL() const Call call(k_driver, __builtin_return_address(0))
#define KOILA_REAL(name, ...) [&] { return real_##name.load(std::memory_order_relaxed)(__VA_ARGS__); }

// As allocate(), for a function that leaves a number and not a pointer.
template <class Real, class Given>
Error allocate_at(const Call& call, MemoryKind kind, std::size_t bytes, DevicePointer* pointer, Real&& real, Given&& given) {
  void* at = nullptr;
  const auto and_address = [&] {
    const Error error = real();
    if (error == kSuccess) at = address(*pointer);
    return error;
  };
  return allocate(call, kind, bytes, &at, and_address, given);
}

template <class Real>
Error allocate_at(const Call& call, MemoryKind kind, std::size_t bytes, DevicePointer* pointer, Real&& real) {
  return allocate_at(call, kind, bytes, pointer, real, [&] { return bytes; });
}

Error cuMemAlloc(DevicePointer* pointer, std::size_t bytes) {
  KOILA_CALL();
  return allocate_at(call, MemoryKind::kDevice, bytes, pointer, KOILA_REAL(cuMemAlloc, pointer, bytes));
}

Error cuMemAllocPitch(DevicePointer* pointer, std::size_t* pitch, std::size_t width, std::size_t height, unsigned element) {
  KOILA_CALL();
  return allocate_at(call, MemoryKind::kDevice, width * height, pointer, KOILA_REAL(cuMemAllocPitch, pointer, pitch, width, height, element),
                     [&] { return *pitch * height; });
}

Error cuMemAllocManaged(DevicePointer* pointer, std::size_t bytes, unsigned flags) {
  KOILA_CALL();
  return allocate_at(call, MemoryKind::kManaged, bytes, pointer, KOILA_REAL(cuMemAllocManaged, pointer, bytes, flags));
}

Error cuMemAllocAsync(DevicePointer* pointer, std::size_t bytes, Handle stream) {
  KOILA_CALL();
  return allocate_at(call, MemoryKind::kPool, bytes, pointer, KOILA_REAL(cuMemAllocAsync, pointer, bytes, stream));
}

Error cuMemAllocFromPoolAsync(DevicePointer* pointer, std::size_t bytes, Handle pool, Handle stream) {
  KOILA_CALL();
  return allocate_at(call, MemoryKind::kPool, bytes, pointer, KOILA_REAL(cuMemAllocFromPoolAsync, pointer, bytes, pool, stream));
}

Error cuMemAllocHost(void** pointer, std::size_t bytes) {
  KOILA_CALL();
  return allocate(call, MemoryKind::kPinned, bytes, pointer, KOILA_REAL(cuMemAllocHost, pointer, bytes));
}

Error cuMemHostAlloc(void** pointer, std::size_t bytes, unsigned flags) {
  KOILA_CALL();
  return allocate(call, MemoryKind::kPinned, bytes, pointer, KOILA_REAL(cuMemHostAlloc, pointer, bytes, flags));
}

Error cuMemHostRegister(void* pointer, std::size_t bytes, unsigned flags) {
  KOILA_CALL();
  return allocate(call, MemoryKind::kPinned, bytes, &pointer, KOILA_REAL(cuMemHostRegister, pointer, bytes, flags));
}

Error cuMemFree(DevicePointer pointer) {
  KOILA_CALL();
  return give_back(call, address(pointer), KOILA_REAL(cuMemFree, pointer));
}

Error cuMemFreeAsync(DevicePointer pointer, Handle stream) {
  KOILA_CALL();
  return give_back(call, address(pointer), KOILA_REAL(cuMemFreeAsync, pointer, stream));
}

Error cuMemFreeHost(void* pointer) {
  KOILA_CALL();
  return give_back(call, pointer, KOILA_REAL(cuMemFreeHost, pointer));
}

Error cuMemHostUnregister(void* pointer) {
  KOILA_CALL();
  return give_back(call, pointer, KOILA_REAL(cuMemHostUnregister, pointer));
}

Error cuMemGetInfo(std::size_t* free, std::size_t* total) {
  KOILA_CALL();
  return show_budget(call, free, total, KOILA_REAL(cuMemGetInfo, free, total));
}

constexpr int kOnDevice = 1;  // CU_MEM_LOCATION_TYPE_DEVICE

Error cuMemCreate(AllocationHandle* handle, std::size_t bytes, const AllocationProp* prop, unsigned long long flags) {
  KOILA_CALL();
  const auto real = KOILA_REAL(cuMemCreate, handle, bytes, prop, flags);
  if (!call.counts() || prop == nullptr || handle == nullptr) return real();
  const bool on_device = prop->location_type == kOnDevice;
  const int place = on_device ? prop->location_id : static_cast<int>(KOILA_PINNED);
  const MemoryKind kind = on_device ? MemoryKind::kVirtual : MemoryKind::kPinned;
  if (!is_device(place)) return real();
  if (!reserve(call, place, bytes)) return call.fail_for_real();
  const Error error = real();
  if (error != kSuccess) {
    cancel(call, place, bytes, error);
    return error;
  }
  const Block block{static_cast<std::int64_t>(bytes), static_cast<std::int16_t>(place), call.source(kind)};
  if (on_device && call.is_torch()) note_torch_uses_cuda();
  call.runtime().device_memory().count(block, block.bytes);
  virtual_memory().created(*handle, block);
  return error;
}

Error cuMemRelease(AllocationHandle handle) {
  KOILA_CALL();
  // Noted before the driver gives the number to another thread.
  if (call.counts()) virtual_memory().released(handle, [&](const Block& block) { call.runtime().device_memory().release(block); });
  return KOILA_REAL(cuMemRelease, handle)();
}

Error cuMemRetainAllocationHandle(AllocationHandle* handle, void* pointer) {
  KOILA_CALL();
  const Error error = KOILA_REAL(cuMemRetainAllocationHandle, handle, pointer)();
  if (error == kSuccess && call.counts()) virtual_memory().retained(*handle);
  return error;
}

Error cuMemMap(DevicePointer pointer, std::size_t bytes, std::size_t offset, AllocationHandle handle, unsigned long long flags) {
  KOILA_CALL();
  const Error error = KOILA_REAL(cuMemMap, pointer, bytes, offset, handle, flags)();
  if (error == kSuccess && call.counts()) virtual_memory().mapped(pointer, handle);
  return error;
}

Error cuMemUnmap(DevicePointer pointer, std::size_t bytes) {
  KOILA_CALL();
  if (call.counts()) virtual_memory().unmapped(pointer, bytes, [&](const Block& block) { call.runtime().device_memory().release(block); });
  return KOILA_REAL(cuMemUnmap, pointer, bytes)();
}

// The driver's function is kept for ours to go on to. Another one of the same name, of a second driver, is handed out as it is.
template <class F>
void* exchange(std::atomic<F*>& kept, void* real, F* ours) {
  F* expected = nullptr;
  F* found = reinterpret_cast<F*>(real);
  if (!kept.compare_exchange_strong(expected, found) && expected != found) return real;
  return reinterpret_cast<void*>(ours);
}

}  // namespace

void* in_place_of(const char* symbol, void* real) {
#define KOILA_DRIVER(name, parameters) \
  if (std::strcmp(symbol, #name) == 0) return exchange(real_##name, real, &name);
#include "shim/cuda/driver_functions.inc"
#undef KOILA_DRIVER
  return real;
}

}  // namespace koila::cuda
