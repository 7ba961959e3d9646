// A value between stages whose memory was given up: whoever reads it is given rows that are made again.

#include <ATen/ATen.h>
#include <c10/util/ScopeExit.h>

#include <algorithm>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "torchglue/base/tensor_memory.h"
#include "torchglue/compat/holders.h"
#include "torchglue/region/boundary_store.h"
#include "torchglue/region/deferred.h"
#include "torchglue/region/region.h"
#include "torchglue/step/session.h"

namespace koila {

// Note [Boundaries that are let go]
// A boundary is a function of what its region reads: of the step's inputs, of boundaries before it, and of statistics, which are small and stay. So its memory can be given up as long
// as regions alone read it, and its rows are made again where a micro-batch asks for them, stage by stage from the nearest boundaries that are still there. It takes no
// second look at the whole batch: the statistics of the stages in between are known. The boundary is a deferred value of its region once more; should anybody else come by its tensor after all, it is
// materialise()d as any other.
// What an operator at work reads at its full size would be made again at once, and stays.
//
// Not let go are values that no gradient passes through (their region may be gone), random ones (other rows would draw otherwise), and what BoundaryStore::keep_value()
// was told of: values whose bits are looked at, for micro-batches of another size round otherwise, and those that have been written to outside of their region since they got their memory.
bool Region::let_go(ValueId id, const at::Storage& storage) {
  const Value& value = values_[id];
  Group& group = groups_[value.group];
  const bool can = !released_ && node_ != nullptr && condemned_.empty() && group.base == id && group.is_filled_in(storage.unsafeGetStorageImpl());
  if (!can || value.random || !value.requires_grad || !value.placement.is_shard() || value.placement.ragged != nullptr || written_groups_.count(value.group) > 0) return false;
  group.materialised = false;
  group.let_go = true;
  group.filled = nullptr;
  group.storage = storage;
  storage.unsafeGetStorageImpl()->set_data_ptr_noswap(at::DataPtr(nullptr, device_));
  refuse_raw_access(*storage.unsafeGetStorageImpl());
  deferred_registry().add_storage(storage.unsafeGetStorageImpl(), this, value.group);
  for (const auto& region : session().live_regions()) region->moved(storage.unsafeGetStorageImpl());
  return true;
}

at::Tensor Region::rows_again(ValueId id, Rows rows) {
  check_sound();
  const AtWork at_work(*this);
  const NoInterceptGuard no_intercept;
  const at::NoGradGuard no_grad;
  const Schedule plan = schedule({id});
  check_captures(plan);
  Frame frame{rows, /*grad=*/false, {}, {}, 0};
  run(frame, instructions_.size(), &plan);
  ++statistics.forward_only;
  return frame.values[id].detach();
}

bool Region::is_read_by_rows() const {
  for (const Group& group : groups_) {
    if (group.let_go && group.storage.use_count() > 1) return true;
  }
  return false;
}

bool Region::at_work_reads_whole(const Capture& capture) const {
  return at_work_ > 0 && std::any_of(uses_.begin(), uses_.end(), [&](const Use& use) { return &captures_[use.capture] == &capture && !use.placement.is_shard(); });
}

void Region::moved(const c10::StorageImpl* storage) {
  for (Capture& c : captures_) {
    if (c.tensor.defined() && storage_of(c.tensor) == storage) c.data = memory_of(c.tensor);
  }
}

// By live region, which are in the order in which they came into being: how many stages would run before its own operators do, to feed it, and after them, for the sake of what is let go.
struct BoundaryStore::Chains {
  ska::flat_hash_map<const Region*, int> before, after;

  Chains() {
    const auto regions = session().live_regions();
    const auto each_let_go = [](const Region& region, const auto& found) {
      for (const Capture& c : region.captures()) {
        if (!c.tensor.defined()) continue;
        const auto [maker, group] = deferred_registry().find_storage(storage_of(c.tensor));
        if (maker != nullptr && maker->group(group).let_go) found(maker);
      }
    };
    for (const auto& region : regions) {
      int most = 0;
      each_let_go(*region, [&](const Region* maker) { most = std::max(most, before[maker] + 1); });
      before[region.get()] = most;
    }
    for (auto region = regions.rbegin(); region != regions.rend(); ++region) {
      const int reader = after[region->get()];
      each_let_go(**region, [&](const Region* maker) { after[maker] = std::max(int{after[maker]}, reader + 1); });
    }
  }
};

// Those that live regions alone hold, and read by the row.
std::vector<BoundaryStore::Candidate> BoundaryStore::candidates(at::Device device) {
  struct Reading {
    const at::Tensor* tensor;
    size_t captures = 0;
    const Region* last = nullptr;
    bool by_rows = true;
  };
  std::vector<std::pair<const c10::StorageImpl*, Reading>> readings;
  ska::flat_hash_map<const c10::StorageImpl*, size_t> index;
  std::vector<Candidate> found;
  const auto regions = session().live_regions();
  {
    const std::lock_guard lock(mutex_);
    for (const auto& region : regions) {
      for (const Capture& c : region->captures()) {
        const c10::StorageImpl* storage = c.tensor.defined() && c.tensor.device() == device ? storage_of(c.tensor) : nullptr;
        if (!may_go(storage)) continue;
        const auto [at, fresh] = index.emplace(storage, readings.size());
        if (fresh) readings.push_back({storage, {&c.tensor}});
        Reading& reading = readings[at->second].second;
        ++reading.captures;
        reading.last = region.get();
        reading.by_rows &= c.tensor.unsafeGetTensorImpl() == reading.tensor->unsafeGetTensorImpl() && !c.before.defined() && !region->at_work_reads_whole(c);
      }
    }
  }
  // Whether regions alone hold them, which may take Python's lock: without the mutex, for which a fork waits under Python's.
  for (auto& [storage, reading] : readings) reading.by_rows &= holders_of(reading.tensor->unsafeGetTensorImpl()) == reading.captures;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [storage, reading] : readings) {
      const auto known = known_.find(storage);
      if (known == known_.end()) continue;
      const Kept& kept = known->second;
      const auto maker = kept.maker.lock();
      const at::Tensor& t = *reading.tensor;
      if (!reading.by_rows || maker == nullptr || maker.get() == reading.last || t.is_conj() || t.is_neg() || t.storage().use_count() != 1) {
        continue;
      }
      const Value& value = maker->value(kept.value);
      if (t.sizes() != at::IntArrayRef(value.sizes) || t.strides() != at::IntArrayRef(value.strides) || t.storage_offset() != value.storage_offset) continue;
      found.push_back({t.storage(), maker, kept.value, reading.last});
    }
  }
  return found;
}

bool BoundaryStore::let_go_of_some(at::Device device, size_t wanted) {
  constexpr size_t kShare = 8;  // of what could go: each time there is less, so it takes few times in all
  std::vector<Candidate> all = candidates(device);
  size_t share = 0, freed = 0;
  for (const Candidate& c : all) share += c.storage.nbytes() / kShare;
  const size_t goal = wanted > 0 ? wanted : share;
  const auto regions = session().live_regions();
  const Region* newest = session().engine_depth == 0 && !regions.empty() ? regions.back().get() : nullptr;
  while (!all.empty() && (freed == 0 || freed < goal)) {
    Chains chains;
    // What adds the fewest stages for its bytes.
    const auto costs = [&](const Candidate& c) {
      const int once_more = c.reader == newest ? 1 : 0;  // it is being read, or will be at once
      return static_cast<double>(chains.before[c.maker.get()] + 1 + chains.after[c.reader] + once_more) / static_cast<double>(c.storage.nbytes());
    };
    const auto best = std::min_element(all.begin(), all.end(), [&](const Candidate& a, const Candidate& b) { return costs(a) < costs(b); });
    const size_t bytes = best->storage.nbytes();
    if (best->maker->let_go(best->value, best->storage)) freed += bytes;
    all.erase(best);
  }
  if (freed > 0) session().log(KOILA_LOG_DEBUG, "let go of " + std::to_string(freed) + " bytes of what stages leave to later ones");
  return freed > 0;
}

bool BoundaryStore::let_go(const c10::StorageImpl* storage) {
  if (storage == nullptr || !DeferredRegistry::any()) return false;
  const auto [region, group] = deferred_registry().find_storage(storage);
  return region != nullptr && region->group(group).let_go;
}

at::Tensor BoundaryStore::rows(const at::Tensor& full, const Placement& placement, int64_t batch, Rows rows) {
  const c10::StorageImpl* storage = storage_of(full);
  if (!let_go(storage)) return {};
  const auto [found, group] = deferred_registry().find_storage(storage);
  const auto region = found->shared_from_this();
  const ValueId base = region->group(group).base;
  if (!(placement == region->value(base).placement) || batch != region->batch() || full.sizes() != at::IntArrayRef(region->value(base).sizes)) {
    region->materialise({base});
    return {};
  }
  // What several stages on the way ask for is made once.
  for (const Made& made : made_) {
    if (made.storage == storage && made.rows.begin == rows.begin && made.rows.end == rows.end) return made.part.alias();
  }
  ++nested_;
  const auto out = c10::make_scope_exit([&] {
    if (--nested_ == 0) made_.clear();
  });
  at::Tensor part = region->rows_again(base, rows);
  if (nested_ > 1) made_.push_back({storage, rows, part});
  return part;
}

}  // namespace koila
