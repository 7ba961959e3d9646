#include "torchglue/memory/outside.h"

#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <dlfcn.h>

#include <algorithm>
#include <bit>
#include <map>
#include <mutex>
#include <vector>

#include "torchglue/memory/spill.h"
#include "torchglue/session.h"

namespace koila {

namespace {

std::mutex mutex;

// Note [Pinned memory]
// Getting and giving back pinned memory stalls the device, so blocks are kept for the next step. A block goes from one value to the next
// without waiting, because what reads the old value and what writes the new one stand on the same stream; where they do not, the device
// is waited for.
struct Pinned {
  void* data;
  size_t bytes;
  size_t asked;
  c10::Device device;
  c10::StreamId stream;
};

// Kept by size; the same step asks for the same sizes again.
struct Pool {
  std::multimap<size_t, Pinned> blocks;
  size_t kept = 0;    // bytes
  size_t in_use = 0;
};

Pool& pool() {
  static auto* pool = new Pool;
  return *pool;
}

template <class F>
F find_function(const char* name) {
  return reinterpret_cast<F>(dlsym(RTLD_DEFAULT, name));  // koila's own hook, where there is one: the report counts it
}

// Steps of other sizes left more behind than is in use. The mutex is held.
void trim(Pool& all, size_t wanted) {
  using FreeHost = int (*)(void*);
  static const auto free_host = find_function<FreeHost>("cudaFreeHost");
  while (free_host != nullptr && !all.blocks.empty() && all.kept > all.in_use + wanted) {
    const auto it = all.blocks.begin();
    all.kept -= it->first;
    free_host(it->second.data);
    all.blocks.erase(it);
  }
}

size_t rounded_up(size_t bytes) {
  const size_t step = std::max<size_t>(4096, std::bit_floor(bytes) / 8);
  return (bytes + step - 1) / step * step;
}

c10::StreamId current_stream(c10::Device device) { return c10::impl::VirtualGuardImpl(device.type()).getStream(device).id(); }

void give_back(void* context) {
  auto* block = static_cast<Pinned*>(context);
  session().runtime->on_outside(device_number(block->device), -static_cast<int64_t>(block->asked));
  const std::lock_guard lock(mutex);
  pool().in_use -= block->bytes;
  pool().kept += block->bytes;
  pool().blocks.emplace(block->bytes, *block);
  delete block;
}

Pinned find_pinned(size_t bytes, c10::Device device) {
  const size_t rounded = rounded_up(bytes);
  const c10::StreamId stream = current_stream(device);
  {
    const std::lock_guard lock(mutex);
    Pool& all = pool();
    for (auto [it, end] = all.blocks.equal_range(rounded); it != end; ++it) {
      if (it->second.device != device) continue;
      Pinned block = it->second;
      all.blocks.erase(it);
      all.kept -= rounded;
      all.in_use += rounded;
      if (block.stream != stream) c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
      block.stream = stream;
      block.asked = bytes;
      return block;
    }
    trim(all, rounded);
  }
  using HostAlloc = int (*)(void**, size_t, unsigned);
  static const auto host_alloc = find_function<HostAlloc>("cudaHostAlloc");
  constexpr unsigned kPortableMapped = 3;
  void* data = nullptr;
  const int error = host_alloc == nullptr ? -1 : host_alloc(&data, rounded, kPortableMapped);
  TORCH_CHECK_WITH(OutOfMemoryError, error == 0 && data != nullptr, "koila: no pinned host memory for ", bytes, " bytes of what one stage of the step leaves to the next (",
                   host_alloc == nullptr ? "cudaHostAlloc is not to be found" : "cudaHostAlloc failed", ").");
  const std::lock_guard lock(mutex);
  pool().in_use += rounded;
  return {data, rounded, bytes, device, stream};
}

struct Spilled {
  c10::DataPtr file;
  size_t bytes;
};

void drop_file(void* context) {
  auto* spilled = static_cast<Spilled*>(context);
  session().runtime->on_outside(KOILA_CPU, -static_cast<int64_t>(spilled->bytes));
  delete spilled;
}

}  // namespace

c10::DataPtr allocate_outside(size_t bytes, c10::Device device) {
  if (bytes == 0) return {nullptr, device};
  if (device.is_cpu()) {
    auto* spilled = new Spilled{spill_allocate(bytes), bytes};
    session().runtime->on_outside(KOILA_CPU, static_cast<int64_t>(bytes));
    return {spilled->file.get(), spilled, &drop_file, device};
  }
  TORCH_CHECK_WITH(OutOfMemoryError, device.is_cuda(), "koila: nothing can be kept outside the memory of ", device, ".");
  auto* block = new Pinned(find_pinned(bytes, device));
  session().runtime->on_outside(device_number(device), static_cast<int64_t>(bytes));
  return {block->data, block, &give_back, device};
}

bool is_outside(const c10::StorageImpl& storage) {
  const auto deleter = const_cast<c10::StorageImpl&>(storage)._mutable_data_ptr_no_checks().get_deleter();
  return deleter == &drop_file || deleter == &give_back;
}

}  // namespace koila
