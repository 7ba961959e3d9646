#include "torchglue/base/inference_writes.h"

#include <algorithm>
#include <iterator>

#include "torchglue/base/tensor_memory.h"

namespace koila {

void InferenceWrites::count(const at::Tensor& tensor) {
  c10::StorageImpl* storage = tensor.is_inference() ? storage_of(tensor) : nullptr;
  if (storage == nullptr) return;
  std::lock_guard lock(mutex_);
  if (entries_.size() >= look_again_at_) forget_dead_entries();
  auto found = entries_.find(storage);
  if (found == entries_.end()) found = entries_.emplace(storage, Entry{c10::weak_intrusive_ptr<c10::StorageImpl>(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage)), 0}).first;
  found->second.version = ++last_;
  any_.store(true, std::memory_order_release);
}

uint32_t InferenceWrites::version(const at::Tensor& tensor) const {
  if (!any_.load(std::memory_order_acquire)) return 0;
  std::lock_guard lock(mutex_);
  const auto found = entries_.find(storage_of(tensor));
  return found == entries_.end() ? 0 : found->second.version;
}

void InferenceWrites::forget_the_dead() {
  if (!any_.load(std::memory_order_acquire)) return;
  std::lock_guard lock(mutex_);
  forget_dead_entries();
  any_.store(!entries_.empty(), std::memory_order_release);
}

void InferenceWrites::forget_dead_entries() {
  for (auto it = entries_.begin(); it != entries_.end();) it = it->second.storage.expired() ? entries_.erase(it) : std::next(it);
  look_again_at_ = std::max<size_t>(64, 2 * entries_.size());
}

InferenceWrites& inference_writes() {
  static auto* writes = new InferenceWrites;  // never destroyed: tensors may outlive static destruction
  return *writes;
}

}  // namespace koila
