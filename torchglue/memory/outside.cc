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
  size_t bytes;  // a power of two
  size_t asked;
  c10::Device device;
  c10::StreamId stream;
};

std::multimap<size_t, Pinned>& free_blocks() {
  static auto* blocks = new std::multimap<size_t, Pinned>;
  return *blocks;
}

c10::StreamId current_stream(c10::Device device) { return c10::impl::VirtualGuardImpl(device.type()).getStream(device).id(); }

void give_back(void* context) {
  auto* block = static_cast<Pinned*>(context);
  session().runtime->on_outside(device_number(block->device), -static_cast<int64_t>(block->asked));
  const std::lock_guard lock(mutex);
  free_blocks().emplace(block->bytes, *block);
  delete block;
}

Pinned find_pinned(size_t bytes, c10::Device device) {
  const size_t rounded = std::bit_ceil(std::max<size_t>(bytes, 4096));
  const c10::StreamId stream = current_stream(device);
  {
    const std::lock_guard lock(mutex);
    auto& blocks = free_blocks();
    for (auto [it, end] = blocks.equal_range(rounded); it != end; ++it) {
      if (it->second.device != device) continue;
      Pinned block = it->second;
      blocks.erase(it);
      if (block.stream != stream) c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
      block.stream = stream;
      block.asked = bytes;
      return block;
    }
  }
  // Through koila's own hook, where there is one: the report counts it.
  using HostAlloc = int (*)(void**, size_t, unsigned);
  static const auto host_alloc = reinterpret_cast<HostAlloc>(dlsym(RTLD_DEFAULT, "cudaHostAlloc"));
  constexpr unsigned kPortableMapped = 3;
  void* data = nullptr;
  const int error = host_alloc == nullptr ? -1 : host_alloc(&data, rounded, kPortableMapped);
  TORCH_CHECK_WITH(OutOfMemoryError, error == 0 && data != nullptr, "koila: no pinned host memory for ", bytes, " bytes of what one stage of the step leaves to the next (",
                   host_alloc == nullptr ? "cudaHostAlloc is not to be found" : "cudaHostAlloc failed", ").");
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
