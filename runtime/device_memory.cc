#include "runtime/device_memory.h"

#include <algorithm>
#include <bit>

namespace koila {

const char* memory_kind_name(MemoryKind kind) {
  switch (kind) {
    case MemoryKind::kDevice: return "device";
    case MemoryKind::kPool: return "pool";
    case MemoryKind::kArray: return "array";
    case MemoryKind::kVirtual: return "virtual";
    case MemoryKind::kManaged: return "managed";
    case MemoryKind::kPinned: return "pinned";
  }
  return "unknown";
}

namespace {

int size_class(std::int64_t bytes) {
  const int bits = static_cast<int>(std::bit_width(static_cast<std::uint64_t>(std::max<std::int64_t>(bytes, 1))));
  return std::min(bits - 1, kSizeClasses - 1);
}

}  // namespace

DeviceMemory::DeviceMemory(Ledger& ledger, const DeviceMemory* parents) : ledger_(ledger) {
  if (parents == nullptr) return;
  const std::size_t known = parents->known_.load(std::memory_order_acquire);
  std::copy_n(parents->sources_, known, sources_);
  known_.store(known, std::memory_order_release);
}

std::uint16_t DeviceMemory::source(MemoryKind kind, const std::string& library) {
  const std::lock_guard lock(mutex_);
  const std::size_t known = known_.load(std::memory_order_relaxed);
  for (std::size_t i = 0; i < known; ++i) {
    if (sources_[i].kind == kind && sources_[i].library == library) return static_cast<std::uint16_t>(i);
  }
  if (known == kMaxSources) return kMaxSources - 1;
  sources_[known] = {kind, known == kMaxSources - 1 ? "others" : library};
  known_.store(known + 1, std::memory_order_release);
  return static_cast<std::uint16_t>(known);
}

void DeviceMemory::cancel(int place, std::int64_t held) {
  const std::lock_guard lock(lock_of(place));
  ledger_.of(place).cancel(held);
}

void DeviceMemory::count(const Block& block, std::int64_t held) {
  Place& p = place(block.place);
  Figures& f = p.of[block.source];
  {
    const std::lock_guard lock(p.lock);
    ledger_.of(block.place).settle(held, block.bytes);
    add_locked(p.sizes[size_class(block.bytes)], 1);
    add_locked(f.allocations, 1);
    const std::int64_t live = add_locked(f.live, block.bytes);
    if (live > f.peak.load(std::memory_order_relaxed)) f.peak.store(live, std::memory_order_relaxed);
  }
  if (watcher_ != nullptr) watcher_(block.place);
}

void DeviceMemory::add(std::uintptr_t address, const Block& block, std::int64_t held) {
  // A block that is still there was given back in a way that no hook sees, and goes first, or both would show in the peak.
  while (!blocks_.insert(address, block)) {
    if (const auto stale = forget(address)) release(*stale);
  }
  count(block, held);
}

void DeviceMemory::put_back(std::uintptr_t address, const Block& block) {
  if (!blocks_.insert(address, block)) release(block);
}

void DeviceMemory::release(const Block& block) {
  Place& p = place(block.place);
  Figures& f = p.of[block.source];
  {
    const std::lock_guard lock(p.lock);
    ledger_.of(block.place).give_back(block.bytes);
    add_locked(f.live, -block.bytes);
    add_locked(f.frees, 1);
  }
  if (watcher_ != nullptr) watcher_(block.place);
}

PointerTable::Taken DeviceMemory::forget_all(int place) {
  return blocks_.take_all([&](const Block& block) { return block.place == place; });
}

std::vector<SourceFigures> DeviceMemory::sources() const {
  const std::size_t known = known_.load(std::memory_order_acquire);
  std::vector<SourceFigures> all;
  for (int place = kFirstPlace; place < kCudaDevices; ++place) {
    for (std::size_t i = 0; i < known; ++i) {
      const Figures& f = places_[place - kFirstPlace].of[i];
      if (f.allocations == 0) continue;
      all.push_back({place, sources_[i].kind, sources_[i].library, f.live, f.peak, f.allocations, f.frees});
    }
  }
  return all;
}

std::vector<std::int64_t> DeviceMemory::sizes(int place) const {
  const auto& counts = places_[place - kFirstPlace].sizes;
  return {std::begin(counts), std::end(counts)};
}

}  // namespace koila
