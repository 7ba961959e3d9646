#include "torchglue/base/foreign_memory.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/flat_hash_map.h>

#include <algorithm>
#include <cstring>

#include "torchglue/base/tensor_memory.h"

namespace koila {

namespace {

bool is_foreign(const at::DataPtr& memory) {
  const auto is_made_by = [&](const c10::Allocator& allocator) { return memory.get_deleter() == allocator.raw_deleter(); };
  return memory.device().is_cpu() && !is_made_by(*c10::GetCPUAllocator()) && !is_made_by(*c10::GetDefaultCPUAllocator());
}

// Storages by their address, as long as they live.
class Exposed {
 public:
  void add(c10::StorageImpl* storage) {
    if (storages_.size() >= prune_at_) prune();
    storages_.insert_or_assign(storage, c10::weak_intrusive_ptr<c10::StorageImpl>(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage)));
  }
  void remove(const c10::StorageImpl* storage) { storages_.erase(storage); }
  bool has(const c10::StorageImpl* storage) const {
    if (storages_.empty()) return false;
    const auto found = storages_.find(storage);
    return found != storages_.end() && !found->second.expired();
  }
  bool any() const { return !storages_.empty(); }

 private:
  void prune() {
    for (auto it = storages_.begin(); it != storages_.end();) it = it->second.expired() ? storages_.erase(it) : std::next(it);
    prune_at_ = std::max<size_t>(kPruneAtLeast, 2 * storages_.size());
  }

  static constexpr size_t kPruneAtLeast = 64;
  ska::flat_hash_map<const c10::StorageImpl*, c10::weak_intrusive_ptr<c10::StorageImpl>> storages_;
  size_t prune_at_ = kPruneAtLeast;
};

Exposed& exposed() {
  static auto* storages = new Exposed;  // never destroyed: tensors may outlive static destruction
  return *storages;
}

}  // namespace

uint64_t digest_of(const void* memory, size_t bytes, size_t samples) {
  constexpr uint64_t kFactor = 0x9e3779b97f4a7c15;
  constexpr size_t kWord = sizeof(uint64_t);
  const auto* data = static_cast<const char*>(memory);
  uint64_t digest = bytes;
  const auto take = [&](size_t at, size_t count) {
    uint64_t word = 0;
    std::memcpy(&word, data + at, count);
    digest = (digest ^ word) * kFactor;
    digest ^= digest >> 29;
  };
  const size_t words = bytes / kWord;
  for (size_t word = 0; word < words; word += std::max<size_t>(1, words / samples)) take(word * kWord, kWord);
  take(bytes - std::min(bytes, kWord), std::min(bytes, kWord));
  return digest;
}

uint64_t foreign_digest(const at::Tensor& tensor) {
  c10::StorageImpl* storage = storage_of(tensor);
  if (storage == nullptr) return 0;
  constexpr size_t kSamples = 1024;
  const at::DataPtr& memory = storage->_mutable_data_ptr_no_checks();
  if (memory.get() == nullptr) return 0;  // it was given back, or its value could not be made
  if (memory.device().is_cpu() && exposed().has(storage)) return digest_of(memory.get(), storage->nbytes()) | 1;
  return !tensor.requires_grad() && is_foreign(memory) ? digest_of(memory.get(), storage->nbytes(), kSamples) | 1 : 0;
}

bool differs_from(uint64_t digest, const at::Tensor& tensor) {
  if (digest == 0) return false;
  const uint64_t now = foreign_digest(tensor);
  return now != 0 && now != digest;
}

void note_exposed(const at::Tensor& tensor) {
  c10::StorageImpl* storage = storage_of(tensor);
  if (storage != nullptr && storage->device_type() == c10::DeviceType::CPU && storage->nbytes() > 0) exposed().add(storage);
}

void forget_exposed(const at::Tensor& tensor) {
  if (exposed().any()) exposed().remove(storage_of(tensor));
}

bool any_exposed() { return exposed().any(); }

}  // namespace koila
