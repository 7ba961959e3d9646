#include "tests/cuda/sim/pools.h"

#include <memory>

#include "tests/cuda/sim/devices.h"
#include "tests/cuda/sim/memory.h"

namespace sim {
namespace {

// Reuse switches and the release threshold are kept for whoever reads them back; nothing depends on them.
struct Pool {
  int device = 0;
  bool alive = true;
  PoolUsage usage;
  int reuse[3] = {1, 1, 1};
  cuuint64_t release_threshold = 0;
};

struct Pools {
  std::mutex mutex;
  Pool defaults[max_devices];
  Pool* current[max_devices];
  // Never shrinks: blocks of a destroyed pool may still be alive and count in it.
  std::vector<std::unique_ptr<Pool>> made;

  Pools() {
    for (int device = 0; device < max_devices; ++device) {
      defaults[device].device = device;
      current[device] = &defaults[device];
    }
  }

  Pool* find(cudaMemPool_t handle) {
    for (Pool& pool : defaults) {
      if (reinterpret_cast<Pool*>(handle) == &pool) return &pool;
    }
    for (const auto& pool : made) {
      if (reinterpret_cast<Pool*>(handle) == pool.get() && pool->alive) return pool.get();
    }
    return nullptr;
  }
};

Pools& pools() {
  static Pools& leaked = *new Pools;
  return leaked;
}

cudaMemPool_t handle_of(Pool* pool) { return reinterpret_cast<cudaMemPool_t>(pool); }

bool is_device(const cudaMemLocation& location) { return location.type == cudaMemLocationTypeDevice && valid_device(location.id); }

cudaError_t default_pool(cudaMemPool_t* out, int device) {
  if (out == nullptr) return cudaErrorInvalidValue;
  if (!valid_device(device)) return cudaErrorInvalidDevice;
  *out = handle_of(&pools().defaults[device]);
  return cudaSuccess;
}

cudaError_t current_pool(cudaMemPool_t* out, int device) {
  if (out == nullptr) return cudaErrorInvalidValue;
  if (!valid_device(device)) return cudaErrorInvalidDevice;
  const std::lock_guard lock(pools().mutex);
  *out = handle_of(pools().current[device]);
  return cudaSuccess;
}

cudaError_t set_current_pool(int device, cudaMemPool_t handle) {
  if (!valid_device(device)) return cudaErrorInvalidDevice;
  const std::lock_guard lock(pools().mutex);
  Pool* pool = pools().find(handle);
  if (pool == nullptr || pool->device != device) return cudaErrorInvalidValue;
  pools().current[device] = pool;
  return cudaSuccess;
}

}  // namespace

cudaError_t allocate_from_pool(void** address, std::size_t bytes, cudaMemPool_t handle) {
  if (address == nullptr) return cudaErrorInvalidValue;
  int device;
  if (const cudaError_t error = use_device(&device)) return error;
  if (bytes == 0) {
    *address = nullptr;
    return cudaSuccess;
  }
  Pool* pool;
  {
    const std::lock_guard lock(pools().mutex);
    pool = handle == nullptr ? pools().current[device] : pools().find(handle);
  }
  if (pool == nullptr) return cudaErrorInvalidValue;
  void* block = heap().allocate(pool->device, pooled, bytes, &pool->usage);
  if (block == nullptr) return cudaErrorMemoryAllocation;
  *address = block;
  return cudaSuccess;
}

void forget_pools(int device) {
  const std::lock_guard lock(pools().mutex);
  pools().current[device] = &pools().defaults[device];
  for (const auto& pool : pools().made) {
    if (pool->device == device) pool->alive = false;
  }
}

}  // namespace sim

using namespace sim;

SIM_EXPORT cudaError_t cudaMallocAsync(void** address, size_t bytes, cudaStream_t) {
  SIM_CALL();
  return result(allocate_from_pool(address, bytes, nullptr));
}

SIM_EXPORT cudaError_t cudaMallocFromPoolAsync(void** address, size_t bytes, cudaMemPool_t pool, cudaStream_t) {
  SIM_CALL();
  if (pool == nullptr) return result(cudaErrorInvalidValue);
  return result(allocate_from_pool(address, bytes, pool));
}

SIM_EXPORT cudaError_t cudaFreeAsync(void* address, cudaStream_t) {
  SIM_CALL();
  return result(release(address, linear | pooled));
}

SIM_TWIN(cudaMallocAsync_ptsz, cudaMallocAsync, (void** address, size_t bytes, cudaStream_t stream), (address, bytes, stream))
SIM_TWIN(cudaMallocFromPoolAsync_ptsz, cudaMallocFromPoolAsync, (void** address, size_t bytes, cudaMemPool_t pool, cudaStream_t stream),
         (address, bytes, pool, stream))
SIM_TWIN(cudaFreeAsync_ptsz, cudaFreeAsync, (void* address, cudaStream_t stream), (address, stream))

SIM_EXPORT cudaError_t cudaMemPoolCreate(cudaMemPool_t* out, const cudaMemPoolProps* properties) {
  SIM_CALL();
  if (out == nullptr || properties == nullptr || !is_device(properties->location)) return result(cudaErrorInvalidValue);
  auto pool = std::make_unique<Pool>();
  pool->device = properties->location.id;
  pool->usage.maximum = properties->maxSize;
  *out = handle_of(pool.get());
  const std::lock_guard lock(pools().mutex);
  pools().made.push_back(std::move(pool));
  return cudaSuccess;
}

SIM_EXPORT cudaError_t cudaMemPoolDestroy(cudaMemPool_t handle) {
  SIM_CALL();
  const std::lock_guard lock(pools().mutex);
  Pool* pool = pools().find(handle);
  if (pool == nullptr || pool == &pools().defaults[pool->device]) return result(cudaErrorInvalidValue);
  pool->alive = false;
  if (pools().current[pool->device] == pool) pools().current[pool->device] = &pools().defaults[pool->device];
  return cudaSuccess;
}

SIM_EXPORT cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t handle, cudaMemPoolAttr attribute, void* value) {
  SIM_CALL();
  const std::lock_guard lock(pools().mutex);
  Pool* pool = pools().find(handle);
  if (pool == nullptr || value == nullptr) return result(cudaErrorInvalidValue);
  switch (attribute) {
    case cudaMemPoolReuseFollowEventDependencies:
    case cudaMemPoolReuseAllowOpportunistic:
    case cudaMemPoolReuseAllowInternalDependencies:
      pool->reuse[attribute - cudaMemPoolReuseFollowEventDependencies] = *static_cast<int*>(value);
      return cudaSuccess;
    case cudaMemPoolAttrReleaseThreshold:
      pool->release_threshold = *static_cast<cuuint64_t*>(value);
      return cudaSuccess;
    case cudaMemPoolAttrReservedMemHigh:
    case cudaMemPoolAttrUsedMemHigh:
      if (*static_cast<cuuint64_t*>(value) != 0) return result(cudaErrorInvalidValue);
      heap().reset_peak(pool->usage);
      return cudaSuccess;
    default:
      return result(cudaErrorInvalidValue);
  }
}

SIM_EXPORT cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t handle, cudaMemPoolAttr attribute, void* value) {
  SIM_CALL();
  const std::lock_guard lock(pools().mutex);
  Pool* pool = pools().find(handle);
  if (pool == nullptr || value == nullptr) return result(cudaErrorInvalidValue);
  switch (attribute) {
    case cudaMemPoolReuseFollowEventDependencies:
    case cudaMemPoolReuseAllowOpportunistic:
    case cudaMemPoolReuseAllowInternalDependencies:
      *static_cast<int*>(value) = pool->reuse[attribute - cudaMemPoolReuseFollowEventDependencies];
      return cudaSuccess;
    case cudaMemPoolAttrReleaseThreshold:
      *static_cast<cuuint64_t*>(value) = pool->release_threshold;
      return cudaSuccess;
    case cudaMemPoolAttrReservedMemCurrent:
    case cudaMemPoolAttrUsedMemCurrent:
      *static_cast<cuuint64_t*>(value) = heap().usage(pool->usage).used;
      return cudaSuccess;
    case cudaMemPoolAttrReservedMemHigh:
    case cudaMemPoolAttrUsedMemHigh:
      *static_cast<cuuint64_t*>(value) = heap().usage(pool->usage).peak;
      return cudaSuccess;
    default:
      return result(cudaErrorInvalidValue);
  }
}

SIM_EXPORT cudaError_t cudaMemPoolTrimTo(cudaMemPool_t handle, size_t) {
  SIM_CALL();
  const std::lock_guard lock(pools().mutex);
  return result(pools().find(handle) != nullptr ? cudaSuccess : cudaErrorInvalidValue);
}

SIM_EXPORT cudaError_t cudaMemPoolSetAccess(cudaMemPool_t handle, const cudaMemAccessDesc*, size_t) {
  SIM_CALL();
  const std::lock_guard lock(pools().mutex);
  return result(pools().find(handle) != nullptr ? cudaSuccess : cudaErrorInvalidValue);
}

SIM_EXPORT cudaError_t cudaMemPoolGetAccess(cudaMemAccessFlags* flags, cudaMemPool_t handle, cudaMemLocation*) {
  SIM_CALL();
  const std::lock_guard lock(pools().mutex);
  if (flags == nullptr || pools().find(handle) == nullptr) return result(cudaErrorInvalidValue);
  *flags = cudaMemAccessFlagsProtReadWrite;
  return cudaSuccess;
}

SIM_EXPORT cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int device) {
  SIM_CALL();
  return result(default_pool(pool, device));
}

SIM_EXPORT cudaError_t cudaDeviceGetMemPool(cudaMemPool_t* pool, int device) {
  SIM_CALL();
  return result(current_pool(pool, device));
}

SIM_EXPORT cudaError_t cudaDeviceSetMemPool(int device, cudaMemPool_t pool) {
  SIM_CALL();
  return result(set_current_pool(device, pool));
}

SIM_EXPORT cudaError_t cudaMemGetDefaultMemPool(cudaMemPool_t* pool, cudaMemLocation* location, cudaMemAllocationType) {
  SIM_CALL();
  if (location == nullptr || !is_device(*location)) return result(cudaErrorNotSupported);
  return result(default_pool(pool, location->id));
}

SIM_EXPORT cudaError_t cudaMemGetMemPool(cudaMemPool_t* pool, cudaMemLocation* location, cudaMemAllocationType) {
  SIM_CALL();
  if (location == nullptr || !is_device(*location)) return result(cudaErrorNotSupported);
  return result(current_pool(pool, location->id));
}

SIM_EXPORT cudaError_t cudaMemSetMemPool(cudaMemLocation* location, cudaMemAllocationType, cudaMemPool_t pool) {
  SIM_CALL();
  if (location == nullptr || !is_device(*location)) return result(cudaErrorNotSupported);
  return result(set_current_pool(location->id, pool));
}
