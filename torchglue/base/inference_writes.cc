#include "torchglue/base/inference_writes.h"

#include "torchglue/base/tensor_memory.h"

namespace koila {

void InferenceWrites::count(const at::Tensor& tensor) {
  c10::StorageImpl* storage = tensor.is_inference() ? storage_of(tensor) : nullptr;
  if (storage == nullptr) return;
  std::lock_guard lock(mutex_);
  versions_[storage] = ++last_;
  any_.store(true, std::memory_order_release);
}

uint32_t InferenceWrites::version(const at::Tensor& tensor) const {
  if (!any_.load(std::memory_order_acquire)) return 0;
  std::lock_guard lock(mutex_);
  const uint32_t* version = versions_.find(storage_of(tensor));
  return version != nullptr ? *version : 0;
}

void InferenceWrites::forget_the_dead() {
  if (!any_.load(std::memory_order_acquire)) return;
  std::lock_guard lock(mutex_);
  versions_.prune();
  any_.store(!versions_.empty(), std::memory_order_release);
}

InferenceWrites& inference_writes() {
  static auto* writes = new InferenceWrites;  // never destroyed: tensors may outlive static destruction
  return *writes;
}

}  // namespace koila
