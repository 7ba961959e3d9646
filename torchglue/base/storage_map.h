// What is known of storages, as long as they live.
#pragma once

#include <c10/core/StorageImpl.h>
#include <c10/util/flat_hash_map.h>
#include <c10/util/intrusive_ptr.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <utility>

namespace koila {

// By the storage's address, which is no other's while a weak reference to it is kept. Takes no part in keeping its memory. One thread at a time.
template <class T>
class StorageMap {
 public:
  // What is known of the storage, a T of its own where nothing is.
  T& operator[](c10::StorageImpl* storage) {
    if (entries_.size() >= prune_at_) prune();
    auto found = entries_.find(storage);
    if (found == entries_.end()) found = entries_.emplace(storage, Entry{c10::weak_intrusive_ptr<c10::StorageImpl>(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage)), T()}).first;
    return found->second.known;
  }
  // Null where nothing is known of it.
  const T* find(const c10::StorageImpl* storage) const {
    const auto found = entries_.find(storage);
    return found == entries_.end() || found->second.storage.expired() ? nullptr : &found->second.known;
  }
  void remove(const c10::StorageImpl* storage) { entries_.erase(storage); }
  bool empty() const { return entries_.empty(); }
  // Lets go of storages that are gone.
  void prune() {
    for (auto it = entries_.begin(); it != entries_.end();) it = it->second.storage.expired() ? entries_.erase(it) : std::next(it);
    prune_at_ = std::max(kPruneAtLeast, 2 * entries_.size());
  }

 private:
  struct Entry {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    T known;
  };

  static constexpr size_t kPruneAtLeast = 64;
  ska::flat_hash_map<const c10::StorageImpl*, Entry> entries_;
  size_t prune_at_ = kPruneAtLeast;
};

}  // namespace koila
