#include "torchglue/base/foreign_memory.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <cstring>

#include "torchglue/base/tensor_memory.h"

namespace koila {

namespace {

bool is_foreign(const at::DataPtr& memory) {
  const auto is_made_by = [&](const c10::Allocator& allocator) { return memory.get_deleter() == allocator.raw_deleter(); };
  return memory.get() != nullptr && memory.device().is_cpu() && !is_made_by(*c10::GetCPUAllocator()) && !is_made_by(*c10::GetDefaultCPUAllocator());
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
  if (storage == nullptr || tensor.requires_grad()) return 0;
  constexpr size_t kSamples = 1024;
  const at::DataPtr& memory = storage->_mutable_data_ptr_no_checks();
  return is_foreign(memory) ? digest_of(memory.get(), storage->nbytes(), kSamples) | 1 : 0;
}

}  // namespace koila
