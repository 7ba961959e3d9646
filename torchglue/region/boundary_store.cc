#include "torchglue/region/boundary_store.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <iterator>
#include <mutex>

#include "torchglue/base/tensor_memory.h"
#include "torchglue/compat/holders.h"
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

BoundaryBytes boundary_bytes(int device) { return boundaries().bytes(device); }

bool BoundaryStore::in_memory(const c10::StorageImpl& storage) { return const_cast<c10::StorageImpl&>(storage)._mutable_data_ptr_no_checks().get() != nullptr && !is_outside(storage); }

BoundaryBytes BoundaryStore::bytes(int device) {
  BoundaryBytes found;
  const std::lock_guard lock(mutex_);
  for (const auto& [address, kept] : known_) {
    const auto storage = kept.storage.lock();
    if (!storage || device_number(storage->device()) != device) continue;
    found.all += static_cast<int64_t>(storage->nbytes());
    if (in_memory(*storage)) found.in_memory += static_cast<int64_t>(storage->nbytes());
  }
  return found;
}

// By how much there is too little room for it beside micro-batches. As long as nothing is known of these they need about as much again as the step did at most so far.
int64_t BoundaryStore::lacking(size_t bytes, at::Device device) {
  Session& s = session();
  const int number = device_number(device);
  const int64_t budget = s.runtime->budget_bytes(number);
  const auto wanted = static_cast<int64_t>(bytes);
  if (bytes <= kSmall) return 0;
  if (may(KOILA_RUNG_OFFLOAD) && pressed_ > 0) return wanted;
  if (const auto room = s.sizes.room_for_boundaries(number)) return std::max<int64_t>(0, boundary_bytes(number).in_memory + wanted - *room);
  return budget > 0 ? std::max<int64_t>(0, 4 * wanted - (budget - std::max(s.runtime->live_bytes(number), s.runtime->peak_bytes(number) / 2))) : 0;
}

at::DataPtr BoundaryStore::allocate(size_t bytes, at::Device device) {
  const int64_t lacks = lacking(bytes, device);
  if (!may(KOILA_RUNG_OFFLOAD)) {
    if (lacks > 0 && session().sizes.room_for_boundaries(device_number(device))) {
      session().sizes.mark(device_number(device));
      let_go_of_some(device, static_cast<size_t>(lacks));
      session().sizes.mark(device_number(device));
    }
    return c10::GetAllocator(device.type())->allocate(bytes);
  }
  if (lacks == 0) {
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
  add(storage_of(tensor), {}, kNoValue);
  session().sizes.mark(device_number(device));
  return tensor;
}

at::Tensor BoundaryStore::zeros_like(const at::Tensor& full, at::ScalarType dtype) {
  const at::Tensor shape = at::empty_like(full, full.options().dtype(dtype).device(at::kMeta));
  return empty(shape.storage().nbytes(), shape.sizes(), shape.strides(), 0, dtype, full.device()).zero_();
}

void BoundaryStore::add(const c10::StorageImpl* storage, std::weak_ptr<Region> maker, ValueId value) {
  if (storage == nullptr || storage->nbytes() <= kSmall) return;
  const std::lock_guard lock(mutex_);
  for (auto it = known_.begin(); it != known_.end();) it = it->second.storage.expired() ? known_.erase(it) : std::next(it);
  auto* object = const_cast<c10::StorageImpl*>(storage);
  known_.insert_or_assign(storage, Kept{c10::weak_intrusive_ptr<c10::StorageImpl>(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(object)), std::move(maker), value});
}

void BoundaryStore::keep_value(const c10::StorageImpl* storage) {
  const std::lock_guard lock(mutex_);
  if (const auto kept = known_.find(storage); kept != known_.end()) kept->second.maker.reset();
}

void BoundaryStore::keep_in_place(const c10::StorageImpl* storage) {
  const std::lock_guard lock(mutex_);
  if (const auto kept = known_.find(storage); kept != known_.end()) kept->second.in_place = true;
}

// The mutex is held.
bool BoundaryStore::may_go(const c10::StorageImpl* storage) const {
  const auto kept = storage == nullptr ? known_.end() : known_.find(storage);
  return kept != known_.end() && !kept->second.in_place && in_memory(*storage);
}

bool BoundaryStore::is_one(const c10::StorageImpl* storage) {
  const std::lock_guard lock(mutex_);
  const auto kept = known_.find(storage);
  return kept != known_.end() && !kept->second.in_place;
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
  for (const auto& region : session().live_regions()) region->moved(&storage);
  return true;
}

bool BoundaryStore::evict(at::Device device) {
  session().sizes.mark(device_number(device));
  const bool evicted = (may(KOILA_RUNG_OFFLOAD) && move_all_outside(device)) || let_go_of_some(device, 0);
  session().sizes.mark(device_number(device));
  return evicted;
}

bool BoundaryStore::move_all_outside(at::Device device) {
  pressed_ = kPressedFor;
  // Captures by tensor, to see what nobody else holds. That may take Python's lock, so it is seen without the mutex: a fork waits for this one, under Python's.
  ska::flat_hash_map<c10::TensorImpl*, size_t> captures;
  const auto regions = session().live_regions();
  {
    const std::lock_guard lock(mutex_);
    for (const auto& region : regions) {
      for (const Capture& c : region->captures()) {
        if (c.tensor.defined() && c.tensor.device() == device && may_go(storage_of(c.tensor))) ++captures[c.tensor.unsafeGetTensorImpl()];
      }
    }
  }
  bool moved = false;
  for (const auto& [impl, count] : captures) {
    if (holders_of(impl) != count) continue;
    const std::lock_guard lock(mutex_);
    c10::StorageImpl* storage = impl->unsafe_storage().unsafeGetStorageImpl();
    if (!may_go(storage)) continue;
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
