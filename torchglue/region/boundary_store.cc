#include "torchglue/region/boundary_store.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <iterator>
#include <mutex>

#include "torchglue/base/tensor_memory.h"
#include "torchglue/memory/outside.h"
#include "torchglue/memory/spill.h"
#include "torchglue/oom/oom.h"
#include "torchglue/region/region.h"
#include "torchglue/step/ladder.h"
#include "torchglue/step/session.h"

namespace koila {

namespace {

constexpr size_t kSmall = 16384;  // not worth moving
constexpr int kPressedFor = 32;   // steps

}  // namespace

BoundaryStore& boundaries() {
  static auto* store = new BoundaryStore;  // never destroyed: tensors may outlive static destruction
  return *store;
}

// Whether micro-batches would miss it: they need about as much again as the step did at most so far.
bool BoundaryStore::scarce(size_t bytes, at::Device device) const {
  const Session& s = session();
  const int number = device_number(device);
  const int64_t budget = s.runtime->budget_bytes(number);
  if (bytes <= kSmall) return false;
  return pressed_ > 0 || (budget > 0 && static_cast<int64_t>(bytes) * 4 > budget - std::max(s.runtime->live_bytes(number), s.runtime->peak_bytes(number) / 2));
}

at::DataPtr BoundaryStore::allocate(size_t bytes, at::Device device) {
  if (!may(KOILA_RUNG_OFFLOAD)) return c10::GetAllocator(device.type())->allocate(bytes);
  if (!scarce(bytes, device)) {
    try {
      return c10::GetAllocator(device.type())->allocate(bytes);
    } catch (const std::exception& error) {
      if (!is_out_of_memory(error)) throw;
    }
  }
  return allocate_outside(bytes, device);
}

at::Tensor BoundaryStore::empty(size_t bytes, at::IntArrayRef sizes, at::IntArrayRef strides, int64_t offset, at::ScalarType dtype, at::Device device) {
  at::Storage storage(c10::Storage::use_byte_size_t(), bytes, allocate(bytes, device), c10::GetAllocator(device.type()), /*resizable=*/true);
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::computeDispatchKey(dtype, c10::kStrided, device)), c10::scalarTypeToTypeMeta(dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, offset);
  return tensor;
}

at::Tensor BoundaryStore::zeros_like(const at::Tensor& full, at::ScalarType dtype) {
  const at::Tensor shape = at::empty_like(full, full.options().dtype(dtype).device(at::kMeta));
  return empty(shape.storage().nbytes(), shape.sizes(), shape.strides(), 0, dtype, full.device()).zero_();
}

void BoundaryStore::add(const c10::StorageImpl* storage) {
  if (storage == nullptr || storage->nbytes() <= kSmall || is_outside(*storage)) return;
  const std::lock_guard lock(mutex_);
  for (auto it = inside_.begin(); it != inside_.end();) it = it->second.expired() ? inside_.erase(it) : std::next(it);
  auto* object = const_cast<c10::StorageImpl*>(storage);
  inside_.insert_or_assign(storage, c10::weak_intrusive_ptr<c10::StorageImpl>(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(object)));
}

void BoundaryStore::keep_in_place(const c10::StorageImpl* storage) {
  const std::lock_guard lock(mutex_);
  inside_.erase(storage);
}

void BoundaryStore::step() {
  pressed_ = std::max(0, pressed_ - 1);
  step_outside();
}

// The mutex is held.
bool BoundaryStore::move_outside(c10::StorageImpl& storage, at::Device device) {
  at::DataPtr memory;
  try {
    memory = allocate_outside(storage.nbytes(), device);
  } catch (const std::exception& error) {
    if (!is_out_of_memory(error)) throw;
    return false;
  }
  const void* before = storage.data();
  const auto bytes = at::TensorOptions(at::kByte).device(device);
  const auto seen_as_bytes = [&](void* data) { return at::for_blob(data, {static_cast<int64_t>(storage.nbytes())}).options(bytes).target_device(device).make_tensor(); };
  {
    const NoInterceptGuard no_intercept;
    const at::NoGradGuard no_grad;
    seen_as_bytes(memory.get()).copy_(seen_as_bytes(const_cast<void*>(before)));
  }
  storage.set_data_ptr_noswap(std::move(memory));
  inside_.erase(&storage);
  for (const auto& region : session().live_regions()) region->moved(before, storage.data());
  return true;
}

bool BoundaryStore::evict(at::Device device) {
  pressed_ = kPressedFor;
  const std::lock_guard lock(mutex_);
  if (inside_.empty()) return false;
  // Captures by tensor, to see what nobody else holds.
  ska::flat_hash_map<c10::TensorImpl*, size_t> captures;
  for (const auto& region : session().live_regions()) {
    for (const Capture& c : region->captures()) {
      if (c.tensor.defined() && c.tensor.device() == device && inside_.count(storage_of(c.tensor)) > 0) ++captures[c.tensor.unsafeGetTensorImpl()];
    }
  }
  bool moved = false;
  for (const auto& [impl, count] : captures) {
    c10::StorageImpl* storage = impl->unsafe_storage().unsafeGetStorageImpl();
    if (c10::raw::intrusive_ptr::use_count(impl) != count || inside_.count(storage) == 0) continue;
    if (!move_outside(*storage, device)) return moved;
    moved = true;
  }
  return moved;
}

bool BoundaryStore::outside(const c10::StorageImpl* storage) const { return storage != nullptr && is_outside(*storage); }

void BoundaryStore::read_ahead(const at::Tensor& part) const {
  if (part.numel() == 0 || !outside(storage_of(part))) return;
  int64_t last = 0;
  for (int64_t d = 0; d < part.dim(); ++d) last += (part.size(d) - 1) * part.stride(d);
  spill_read_ahead(part.const_data_ptr(), static_cast<size_t>(last + 1) * part.element_size());
}

}  // namespace koila
