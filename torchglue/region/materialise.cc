// Deferred values get their full value.

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "torchglue/proof/invariants.h"
#include "torchglue/proof/proof.h"
#include "torchglue/region/boundary_store.h"
#include "torchglue/region/deferred.h"
#include "torchglue/region/raw_memory.h"
#include "torchglue/region/real_values.h"
#include "torchglue/region/recovery.h"
#include "torchglue/region/region.h"
#include "torchglue/step/session.h"

namespace koila {

namespace {

class Stopwatch {
 public:
  explicit Stopwatch(double& total) : total_(total), start_(std::chrono::steady_clock::now()) {}
  ~Stopwatch() { total_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }

 private:
  double& total_;
  std::chrono::steady_clock::time_point start_;
};

}  // namespace

// Memory for a group, seen as its base value.
at::Tensor Region::empty_full(uint32_t group) const {
  const Value& base = values_[groups_[group].base];
  return boundaries().empty(groups_[group].storage.nbytes(), base.sizes, base.strides, base.storage_offset, base.dtype, device_);
}

bool Region::store_rows(Held& held, const Frame& frame) {
  const Rows rows = frame.rows;
  if (rows.end <= held.until) return false;
  if (rows.begin != held.until) broken(invariant::kRowsOnce, "rows " + std::to_string(rows.begin) + " follow on row " + std::to_string(held.until));
  const Value& value = values_[held.base];
  if (held.until == 0 && !has_sums(frame, held.origin)) held.origin = {};
  if (!held.origin.sums.empty()) {
    add_sums(held, frame);
    held.until = rows.end;
    return true;
  }
  const at::Tensor part = frame.values[held.base].detach();
  // Lazily conjugated, or negated, like the program's tensor for it: what lies in memory is the other value.
  held.full._set_conj(part.is_conj());
  held.full._set_neg(part.is_neg());
  if (value.placement.is_shard()) {
    send_out(held.full, value.placement, rows, part);
  } else if (const auto type = at::toOpMathType(value.dtype); type != value.dtype) {
    // Rounding it may run out of memory on a device, and then these rows come once more.
    at::Tensor sum = held.sum.defined() ? held.sum + part : part.to(type, /*non_blocking=*/false, /*copy=*/true);
    held.full.copy_(sum);
    held.sum = std::move(sum);
  } else if (held.until == 0) {
    held.full.copy_(part);
  } else {
    held.full.add_(part);
  }
  held.until = rows.end;
  return true;
}

void Region::fill(const Held& held) {
  Group& group = groups_[values_[held.base].group];
  c10::StorageImpl& storage = *group.storage.unsafeGetStorageImpl();
  deferred_registry().remove_storage(&storage);
  storage.set_data_ptr_noswap(held.full.storage().unsafeGetStorageImpl()->set_data_ptr(at::DataPtr(nullptr, device_)));
  allow_raw_access(storage);
  raw_memory().made_again(&storage);
  boundaries().add(&storage, weak_from_this(), held.base);
  group.storage = {};
  group.filled = &storage;
  group.materialised = true;
  if (std::exchange(group.let_go, false)) {
    for (const auto& region : session().live_regions()) region->moved(&storage);
  }
  observed_random_ |= values_[held.base].random;
}

void Region::materialise(const std::vector<ValueId>& values) { materialise(values, RowWatch{}); }

void Region::observe(ValueId id, RowObserver& observer) {
  if (!materialised(id)) {
    std::vector<ValueId> values = held_deferred();
    values.push_back(id);
    materialise(values, {id, &observer, 0});
    return;
  }
  TORCH_INTERNAL_ASSERT(values_[id].impl != nullptr, "koila: a value that nobody holds is looked at");
  observe(at::Tensor(c10::intrusive_ptr<c10::TensorImpl>::reclaim_copy(values_[id].impl)), values_[id].placement, observer);
}

void Region::observe(const at::Tensor& full, const Placement& placement, RowObserver& observer) const {
  const NoInterceptGuard no_intercept;
  const at::NoGradGuard no_grad;
  for (int64_t begin = 0; begin < batch_; begin += micro_batch_) {
    observer.add(slice_rows(full.detach(), placement, batch_, {begin, std::min(begin + micro_batch_, batch_)}));
  }
}

void Region::end_stage() {
  materialise_held();
  close();
}

// Gives values their full value, a micro-batch at a time.
class Region::Materialisation final : public MicroBatchLoop::Passes {
 public:
  Materialisation(Region& region, std::vector<Held>& held, RowWatch& watch, const Schedule& plan, const std::vector<ValueId>& keep, Proof& proof)
      : region_(region), held_(held), watch_(watch), plan_(plan), keep_(keep), proof_(proof),
        random_(std::any_of(keep.begin(), keep.end(), [&](ValueId v) { return region.values_[v].random; })) {}

  int64_t end_of(int64_t begin) override {
    int64_t end = stands_by(begin) ? region_.first_.rows.end : region_.end_of_pass(begin, region_.micro_batch_);
    // Sums that had reached further when a pass failed are not made twice: the next try ends there.
    for (const Held& held : held_) {
      if (held.until > begin) end = std::min(end, held.until);
    }
    return watch_.until > begin ? std::min(end, watch_.until) : end;
  }

  void run(int64_t begin, int64_t end) override {
    if (stands_by(begin) && end == region_.first_.rows.end) {
      store(region_.first_);
      region_.side_.join();  // the program goes on with it
      return;
    }
    Frame frame{{begin, end}, /*grad=*/false, {}, {}, 0};
    StepSizes::Pass pass(session().sizes, region_.batch_, end - begin, begin == 0 || region_.differentiable());
    region_.ask_ahead({end, std::min(end + region_.micro_batch_, region_.batch_)}, plan_);
    region_.run(frame, region_.instructions_.size(), &plan_);
    ++region_.statistics.forward_only;
    store(frame);
    pass.finish();
  }

  // Draws belong to micro-batches of one size.
  bool depends_on_size(int64_t) override { return random_; }

  void start_over() override {
    for (Held& held : held_) {
      held.until = 0;
      held.sum.reset();
    }
    watch_.until = 0;
    if (watch_.observer != nullptr) watch_.observer->start_over();
  }

 private:
  // Micro-batch 0 has all of it.
  bool stands_by(int64_t begin) const {
    const Frame& first = region_.first_;
    return begin == 0 && first.next == region_.instructions_.size() &&
           std::all_of(held_.begin(), held_.end(), [&](const Held& held) { return region_.has_sums(first, held.origin); }) &&
           std::all_of(keep_.begin(), keep_.end(), [&](ValueId v) { return v < first.values.size() && first.values[v].defined(); });
  }

  void store(const Frame& frame) {
    proof_.add(frame);
    for (Held& held : held_) {
      if (region_.store_rows(held, frame)) proof_.stored(held.base, frame.rows, frame.values[held.base]);
    }
    if (watch_.observer == nullptr || frame.rows.end <= watch_.until) return;
    watch_.observer->add(frame.values[watch_.value].detach());
    watch_.until = frame.rows.end;
  }

  Region& region_;
  std::vector<Held>& held_;
  RowWatch& watch_;
  const Schedule& plan_;
  const std::vector<ValueId>& keep_;
  Proof& proof_;
  const bool random_;
};

// Those of the values whose storage has no value yet, each storage once.
std::vector<Held> Region::to_be_held(const std::vector<ValueId>& values) const {
  std::vector<Held> held;
  for (ValueId id : values) {
    const Group& group = groups_[values_[id].group];
    if (group.materialised || !group.storage) continue;
    if (std::none_of(held.begin(), held.end(), [&](const Held& h) { return h.base == group.base; })) held.push_back({group.base, {}, {}, 0, origin_of(group.base), {}});
  }
  return held;
}

void Region::make_full(std::vector<Held>& held) {
  Recovery recovery(*this, Recovery::FirstFrame::kStandsBy);
  for (Held& h : held) MicroBatchLoop(recovery).whole([&] { h.full = empty_full(values_[h.base].group); });
}

void Region::materialise(const std::vector<ValueId>& values, RowWatch watch) {
  const NoInferenceMode no_inference;
  const RegionWork work;
  const AtWork at_work(*this);
  bury_dead();
  const Stopwatch stopwatch(statistics.seconds);
  NoInterceptGuard no_intercept;
  at::NoGradGuard no_grad;
  std::vector<Held> wanted = to_be_held(values);
  if (wanted.empty()) return;
  check_sound();
  choose_size();
  std::vector<ValueId> keep;
  for (const Held& held : wanted) keep.push_back(held.base);
  if (watch.observer != nullptr) keep.push_back(watch.value);
  const Schedule plan = schedule(keep);
  check_captures(plan);
  verify(plan);
  Proof proof(*this, plan, keep);
  make_full(wanted);
  Materialisation passes(*this, wanted, watch, plan, keep, proof);
  Recovery recovery(*this, Recovery::FirstFrame::kStandsBy);
  MicroBatchLoop(recovery).over(batch_, passes);
  ahead_.clear();
  side_.join();
  for (const Held& held : wanted) {
    if (held.until != batch_) broken(invariant::kRowsOnce, "a value has " + std::to_string(held.until) + " rows of " + std::to_string(batch_));
  }
  for (const Held& held : wanted) proof.check_value(held);
  proof.finish();
  for (const Held& held : wanted) fill(held);
  if (over_ && !has_deferred() && looked_at().empty() && !is_read_by_rows()) release();
}

std::vector<ValueId> Region::held_deferred() const {
  std::vector<ValueId> ids;
  for (ValueId id = 0; id < values_.size(); ++id) {
    const Group& group = groups_[values_[id].group];
    if (values_[id].impl != nullptr && !group.materialised && group.storage) ids.push_back(id);
  }
  return ids;
}

void Region::materialise_held() {
  std::vector<ValueId> held = held_deferred();
  const std::vector<ValueId> others = looked_at();
  held.insert(held.end(), others.begin(), others.end());
  materialise(held);
}

}  // namespace koila
