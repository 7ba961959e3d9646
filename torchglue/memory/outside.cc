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

#include "runtime/fork_lock.h"
#include "torchglue/base/process.h"
#include "torchglue/memory/before_free.h"
#include "torchglue/memory/spill.h"

namespace koila {

namespace {

// Note [Blocks that are kept]
// Pinned memory stalls the device when it is got and when it is given back, and a new file is zeroed by the kernel page by page; so blocks are kept for
// the next step, which asks for the same sizes again. A block of a device goes from one value to the next without waiting, because what reads
// the old value and what writes the new one stand on the same stream; where they do not, the device is waited for.
struct Block {
  void* data;
  size_t bytes;
  size_t asked;
  c10::Device device;
  c10::StreamId stream;
  c10::DataPtr file;  // of the CPU
};

struct Pool {
  std::multimap<size_t, Block> blocks;  // by size
  size_t kept = 0;                      // bytes
  size_t in_use = 0;
  int idle = 0;  // steps since anything was asked for
};

ForkLock mutex;

Pool& pool() {
  static auto* pool = new Pool;
  return *pool;
}

template <class F>
F find_function(const char* name) {
  return reinterpret_cast<F>(dlsym(RTLD_DEFAULT, name));  // koila's own hook, where there is one: the report counts it
}

// Gives back until no more than that many bytes are kept. The mutex is held.
void trim(Pool& all, size_t at_most) {
  using FreeHost = int (*)(void*);
  static const auto free_host = find_function<FreeHost>("cudaFreeHost");
  while (!all.blocks.empty() && all.kept > at_most) {
    const auto it = all.blocks.begin();
    all.kept -= it->first;
    if (!it->second.device.is_cpu() && free_host != nullptr) free_host(it->second.data);
    all.blocks.erase(it);
  }
}

size_t rounded_up(size_t bytes) {
  const size_t step = std::max<size_t>(4096, std::bit_floor(bytes) / 8);
  return (bytes + step - 1) / step * step;
}

c10::StreamId current_stream(c10::Device device) { return device.is_cpu() ? 0 : c10::impl::VirtualGuardImpl(device.type()).getStream(device).id(); }

void give_back(void* context) {
  auto* block = static_cast<Block*>(context);
  if (block->device.is_cpu()) tell_before_free(block->data);
  process().runtime->on_outside(device_number(block->device), -static_cast<int64_t>(block->asked));
  const std::lock_guard lock(mutex);
  Pool& all = pool();
  all.in_use -= block->bytes;
  all.kept += block->bytes;
  all.blocks.emplace(block->bytes, std::move(*block));
  delete block;
}

void* pinned(size_t bytes) {
  using HostAlloc = int (*)(void**, size_t, unsigned);
  static const auto host_alloc = find_function<HostAlloc>("cudaHostAlloc");
  constexpr unsigned kPortableMapped = 3;
  void* data = nullptr;
  const int error = host_alloc == nullptr ? -1 : host_alloc(&data, bytes, kPortableMapped);
  TORCH_CHECK_WITH(OutOfMemoryError, error == 0 && data != nullptr, "koila: no pinned host memory for ", bytes, " bytes of what one stage of the step leaves to the next (",
                   host_alloc == nullptr ? "cudaHostAlloc is not to be found" : "cudaHostAlloc failed", ").");
  return data;
}

Block find_block(size_t bytes, c10::Device device) {
  const size_t rounded = rounded_up(bytes);
  const c10::StreamId stream = current_stream(device);
  Pool& all = pool();
  {
    const std::lock_guard lock(mutex);
    all.idle = 0;
    for (auto [it, end] = all.blocks.equal_range(rounded); it != end; ++it) {
      if (it->second.device != device) continue;
      Block block = std::move(it->second);
      all.blocks.erase(it);
      all.kept -= rounded;
      all.in_use += rounded;
      if (block.stream != stream) c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
      block.stream = stream;
      block.asked = bytes;
      return block;
    }
    trim(all, all.in_use + rounded);  // steps of other sizes left more behind than is in use
  }
  Block block{nullptr, rounded, bytes, device, stream, {}};
  if (device.is_cpu()) {
    block.file = spill_allocate(rounded);
    block.data = block.file.get();
  } else {
    block.data = pinned(rounded);
  }
  const std::lock_guard lock(mutex);
  all.in_use += rounded;
  return block;
}

}  // namespace

c10::DataPtr allocate_outside(size_t bytes, c10::Device device) {
  if (bytes == 0) return {nullptr, device};
  TORCH_CHECK_WITH(OutOfMemoryError, device.is_cpu() || device.is_cuda(), "koila: nothing can be kept outside the memory of ", device, ".");
  auto* block = new Block(find_block(bytes, device));
  process().runtime->on_outside(device_number(device), static_cast<int64_t>(bytes));
  return {block->data, block, &give_back, device};
}

void step_outside() {
  constexpr int kKeptFor = 8;  // steps
  const std::lock_guard lock(mutex);
  if (++pool().idle > kKeptFor) trim(pool(), 0);
}

bool is_outside(const c10::StorageImpl& storage) {
  return const_cast<c10::StorageImpl&>(storage)._mutable_data_ptr_no_checks().get_deleter() == &give_back;
}

}  // namespace koila
