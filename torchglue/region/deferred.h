// Deferred tensors: the program's handles on values that do not exist yet.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/flat_hash_map.h>
#include <torch/csrc/autograd/variable.h>

#include <atomic>
#include <memory>
#include <vector>

#include "runtime/fork_lock.h"
#include "torchglue/region/region.h"

namespace koila {

// Note [Deferred tensors]
// A deferred tensor has its shape, strides, dtype, device and grad_fn, and a storage of the right size without memory. Its storage
// refuses raw access (c10's data_ptr check), so that code which bypasses the dispatcher gets an error and never garbage. Materialising
// puts memory into that same storage object: every alias, known or not, sees the value.
//
// Its autograd metadata is a subclass that tells the region when the tensor dies: the last moment to let go of micro-batch 0's part.
class DeathWatch {
 public:
  DeathWatch(std::shared_ptr<Region> region, c10::TensorImpl* impl, ValueId value) : region_(std::move(region)), impl_(impl), value_(value) {}
  DeathWatch(DeathWatch&& other) noexcept : region_(std::move(other.region_)), impl_(other.impl_), value_(other.value_) {}
  ~DeathWatch();

  // The tensor has its value and is the program's own from now on. A region that reads it must not be held by it: the two would live for ever.
  void let_go();

 private:
  std::shared_ptr<Region> region_;
  c10::TensorImpl* impl_;
  ValueId value_;
};

struct DeferredMeta : torch::autograd::AutogradMeta {
  explicit DeferredMeta(DeathWatch&& of) : watch(std::move(of)) {}
  DeathWatch watch;
};

// let_go(), where the tensor was deferred once and no longer is.
void let_go_of_region(const at::Tensor& tensor);

// Which tensors and storages belong to which region. Touched by the owner thread, and by whichever thread lets the last reference to a
// deferred tensor go: hence the mutex, held for look-ups only, never while anything runs.
class DeferredRegistry {
 public:
  struct Entry {
    Region* region = nullptr;
    ValueId value = kNoValue;
  };
  void add(const c10::TensorImpl* impl, Region* region, ValueId value);
  void remove(const c10::TensorImpl* impl);
  Entry find(const c10::TensorImpl* impl) const;  // region null: not deferred

  void add_storage(const c10::StorageImpl* storage, Region* region, uint32_t group);
  void remove_storage(const c10::StorageImpl* storage);
  // Nothing points to a region once it is gone.
  void forget(const Region* region);
  // The storage has lost its value for good, see lose_the_rest(). Gives up its memory.
  void lose(const at::Storage& storage);
  bool is_lost(const c10::StorageImpl* storage) const;

  // Whether it is an empty one, whose value a region has still to compute. `storage` may be null.
  bool awaits_value(const c10::StorageImpl* storage) const { return storage != nullptr && find_storage(storage).first != nullptr; }
  // The region and group whose empty storage this is; region null: it is not.
  std::pair<Region*, uint32_t> find_storage(const c10::StorageImpl* storage) const;

  // Any thread, without a lock.
  static bool any() { return any_.load(std::memory_order_relaxed); }

 private:
  void note_any() { any_.store(!impls_.empty() || !storages_.empty(), std::memory_order_relaxed); }

  static inline std::atomic<bool> any_{false};
  mutable ForkLock mutex_;
  ska::flat_hash_map<const c10::TensorImpl*, Entry> impls_;
  ska::flat_hash_map<const c10::StorageImpl*, std::pair<Region*, uint32_t>> storages_;
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> lost_;
};

DeferredRegistry& deferred_registry();

// Whether a deferred tensor has a graph that is not its region's: an autograd.Function gave it one, or the program made it a leaf. To the region it is a tensor from outside.
bool is_outsider(const at::Tensor& tensor, const DeferredRegistry::Entry& entry);

// An empty storage of `bytes` on `device` that refuses raw access.
at::Storage empty_storage(size_t bytes, at::Device device, c10::Allocator* allocator);
void refuse_raw_access(c10::StorageImpl& storage);
void allow_raw_access(c10::StorageImpl& storage);
// Whether it is what such an access got.
bool is_raw_access(const std::exception& error);

// If the storage is a deferred one, materialises it. For readers that bypass the dispatcher.
void materialise_storage(const c10::StorageImpl* storage);
void materialise_tensor(const at::Tensor& tensor);

}  // namespace koila
