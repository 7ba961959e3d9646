#include "torchglue/region/deferred.h"

#include <algorithm>
#include <iterator>
#include <mutex>
#include <string_view>

#include "torchglue/base/tensor_memory.h"
#include "torchglue/compat/storage.h"
#include "torchglue/oom/error_text.h"
#include "torchglue/region/boundary_store.h"
#include "torchglue/region/constant_views.h"
#include "torchglue/region/raw_memory.h"
#include "torchglue/tape/tape.h"
#include "torchglue/updates/late_updates.h"

namespace koila {

// Python's bindings of factories (`zeros_like`) strip what they return of its autograd metadata: such a tensor is not dead.
DeathWatch::~DeathWatch() {
  if (region_ == nullptr) return;
  const NoRawAccess koila;
  const bool alive = c10::raw::intrusive_ptr::use_count(impl_) > 0;
  if (alive && impl_->autograd_meta() == nullptr && region_->keeps(impl_, value_)) {
    impl_->set_autograd_meta(std::make_unique<DeferredMeta>(std::move(*this)));
    return;
  }
  region_->on_death(impl_, value_);
}

void DeathWatch::let_go() {
  if (region_ == nullptr) return;
  const auto region = std::move(region_);
  region->on_death(impl_, value_);
}

void let_go_of_region(const at::Tensor& tensor) {
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  DeathWatch* watch = watch_of(*impl);
  if (watch != nullptr && deferred_registry().find(impl).region == nullptr) watch->let_go();
}

DeferredRegistry& deferred_registry() {
  static auto* registry = new DeferredRegistry;  // never destroyed: tensors may outlive static destruction
  return *registry;
}

void DeferredRegistry::add(const c10::TensorImpl* impl, Region* region, ValueId value) {
  std::lock_guard lock(mutex_);
  impls_.insert_or_assign(impl, Entry{region, value});
  note_any();
}

void DeferredRegistry::remove(const c10::TensorImpl* impl) {
  std::lock_guard lock(mutex_);
  impls_.erase(impl);
  note_any();
}

DeferredRegistry::Entry DeferredRegistry::find(const c10::TensorImpl* impl) const {
  std::lock_guard lock(mutex_);
  auto it = impls_.find(impl);
  return it == impls_.end() ? Entry{} : it->second;
}

void DeferredRegistry::add_storage(const c10::StorageImpl* storage, Region* region, uint32_t group) {
  std::lock_guard lock(mutex_);
  storages_.insert_or_assign(storage, std::make_pair(region, group));
  note_any();
}

void DeferredRegistry::remove_storage(const c10::StorageImpl* storage) {
  std::lock_guard lock(mutex_);
  storages_.erase(storage);
  note_any();
}

std::pair<Region*, uint32_t> DeferredRegistry::find_storage(const c10::StorageImpl* storage) const {
  std::lock_guard lock(mutex_);
  auto it = storages_.find(storage);
  return it == storages_.end() ? std::pair<Region*, uint32_t>{nullptr, 0} : it->second;
}

void DeferredRegistry::forget(const Region* region) {
  std::lock_guard lock(mutex_);
  for (auto it = impls_.begin(); it != impls_.end();) it = it->second.region == region ? impls_.erase(it) : std::next(it);
  for (auto it = storages_.begin(); it != storages_.end();) it = it->second.first == region ? storages_.erase(it) : std::next(it);
  note_any();
}

void DeferredRegistry::lose(const at::Storage& storage) {
  storage.unsafeGetStorageImpl()->set_data_ptr_noswap(at::DataPtr(nullptr, storage.device()));
  refuse_raw_access(*storage.unsafeGetStorageImpl());
  std::lock_guard lock(mutex_);
  std::erase_if(lost_, [](const auto& weak) { return weak.expired(); });
  lost_.emplace_back(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage.unsafeGetStorageImpl()));
}

bool DeferredRegistry::is_lost(const c10::StorageImpl* storage) const {
  std::lock_guard lock(mutex_);
  return std::any_of(lost_.begin(), lost_.end(), [&](const auto& weak) { return weak._unsafe_get_target() == storage; });
}

namespace {

constexpr const char* kAccessError =
    "koila: this tensor's value is deferred: it is computed when an operator, .item(), .numpy(), .tolist(), .cpu() or torch.save() "
    "reads it, and its memory was accessed directly instead. Call tensor.resolve_conj() before taking its pointer.";

}  // namespace

void refuse_raw_access(c10::StorageImpl& storage) { storage.release_data_and_set_meta_custom_data_ptr_error_msg_(kAccessError); }

bool is_raw_access(const std::exception& error) { return error_text(error).find(kAccessError) != std::string_view::npos; }

void allow_raw_access(c10::StorageImpl& storage) { clear_access_error(storage); }

bool is_outsider(const at::Tensor& t, const DeferredRegistry::Entry& entry) {
  return node_of(t) != entry.region->node_of(entry.value) || (t.requires_grad() && !entry.region->value(entry.value).requires_grad);
}

at::Storage empty_storage(size_t bytes, at::Device device, c10::Allocator* allocator) {
  at::Storage storage(c10::Storage::use_byte_size_t(), bytes, at::DataPtr(nullptr, device), allocator, /*resizable=*/true);
  refuse_raw_access(*storage.unsafeGetStorageImpl());
  return storage;
}

void materialise_storage(const c10::StorageImpl* storage) {
  late_updates().settle(storage);
  const auto [region, group] = deferred_registry().find_storage(storage);
  if (region == nullptr) return boundaries().keep_in_place(storage);
  const auto keep = region->shared_from_this();
  keep->materialise({keep->group(group).base});
  boundaries().keep_in_place(storage);
}

void materialise_tensor(const at::Tensor& tensor) {
  if (tensor.defined() && storage_of(tensor) != nullptr) materialise_storage(storage_of(tensor));
}

}  // namespace koila
