// Page-locked host memory.
#include <map>

#include "tests/cuda/sim/memory.h"

namespace sim {
namespace {

struct Registered {
  std::mutex mutex;
  std::map<std::uintptr_t, std::size_t> ranges;

  // The range that holds any byte of these.
  auto overlapping(std::uintptr_t address, std::size_t bytes) {
    auto after = ranges.lower_bound(address + bytes);
    if (after == ranges.begin()) return ranges.end();
    auto before = std::prev(after);
    return before->first + before->second > address ? before : ranges.end();
  }
};

Registered& registered() {
  static Registered& leaked = *new Registered;
  return leaked;
}

}  // namespace

cudaError_t register_host(void* address, std::size_t bytes) {
  if (address == nullptr || bytes == 0) return cudaErrorInvalidValue;
  const auto number = reinterpret_cast<std::uintptr_t>(address);
  const std::lock_guard lock(registered().mutex);
  if (registered().overlapping(number, bytes) != registered().ranges.end()) return cudaErrorHostMemoryAlreadyRegistered;
  registered().ranges.emplace(number, bytes);
  return cudaSuccess;
}

cudaError_t unregister_host(void* address) {
  if (address == nullptr) return cudaErrorInvalidValue;
  const std::lock_guard lock(registered().mutex);
  return registered().ranges.erase(reinterpret_cast<std::uintptr_t>(address)) == 1 ? cudaSuccess : cudaErrorHostMemoryNotRegistered;
}

bool is_registered(const void* address) {
  const std::lock_guard lock(registered().mutex);
  return registered().overlapping(reinterpret_cast<std::uintptr_t>(address), 1) != registered().ranges.end();
}

std::size_t registered_bytes() {
  const std::lock_guard lock(registered().mutex);
  std::size_t sum = 0;
  for (const auto& [address, bytes] : registered().ranges) sum += bytes;
  return sum;
}

void forget_registered() {
  const std::lock_guard lock(registered().mutex);
  registered().ranges.clear();
}

}  // namespace sim

using namespace sim;

SIM_EXPORT cudaError_t cudaMallocHost(void** address, size_t bytes) {
  SIM_CALL();
  return result(allocate(address, pinned, bytes));
}

SIM_EXPORT cudaError_t cudaHostAlloc(void** address, size_t bytes, unsigned int) {
  SIM_CALL();
  return result(allocate(address, pinned, bytes));
}

SIM_EXPORT cudaError_t cudaFreeHost(void* address) {
  SIM_CALL();
  return result(release(address, pinned));
}

SIM_EXPORT cudaError_t cudaHostRegister(void* address, size_t bytes, unsigned int) {
  SIM_CALL();
  return result(register_host(address, bytes));
}

SIM_EXPORT cudaError_t cudaHostUnregister(void* address) {
  SIM_CALL();
  return result(unregister_host(address));
}

SIM_EXPORT cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned int) {
  SIM_CALL();
  const auto block = heap().around(host);
  if (device == nullptr || (!(block && block->kind == pinned) && !is_registered(host))) return result(cudaErrorInvalidValue);
  *device = host;
  return cudaSuccess;
}

SIM_EXPORT cudaError_t cudaHostGetFlags(unsigned int* flags, void* host) {
  SIM_CALL();
  const auto block = heap().around(host);
  if (flags == nullptr || (!(block && block->kind == pinned) && !is_registered(host))) return result(cudaErrorInvalidValue);
  *flags = cudaHostAllocDefault;
  return cudaSuccess;
}
