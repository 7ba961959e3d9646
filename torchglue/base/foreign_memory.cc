#include "torchglue/base/foreign_memory.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <cstring>

#include "torchglue/base/storage_map.h"
#include "torchglue/base/tensor_memory.h"

namespace koila {

namespace {

bool is_foreign(const at::DataPtr& memory) {
  const auto is_made_by = [&](const c10::Allocator& allocator) { return memory.get_deleter() == allocator.raw_deleter(); };
  return memory.device().is_cpu() && !is_made_by(*c10::GetCPUAllocator()) && !is_made_by(*c10::GetDefaultCPUAllocator());
}

// Storages whose address NumPy or DLPack was given.
struct Known {};
using Exposed = StorageMap<Known>;

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
  if (memory.device().is_cpu() && exposed().find(storage) != nullptr) return digest_of(memory.get(), storage->nbytes()) | 1;
  return !tensor.requires_grad() && is_foreign(memory) ? digest_of(memory.get(), storage->nbytes(), kSamples) | 1 : 0;
}

bool differs_from(uint64_t digest, const at::Tensor& tensor) {
  if (digest == 0) return false;
  const uint64_t now = foreign_digest(tensor);
  return now != 0 && now != digest;
}

void note_exposed(const at::Tensor& tensor) {
  c10::StorageImpl* storage = storage_of(tensor);
  if (storage != nullptr && storage->device_type() == c10::DeviceType::CPU && storage->nbytes() > 0) exposed()[storage];
}

void forget_exposed(const at::Tensor& tensor) {
  if (!exposed().empty()) exposed().remove(storage_of(tensor));
}

bool any_exposed() { return !exposed().empty(); }

}  // namespace koila
