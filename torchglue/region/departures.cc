// Values leave a region: to the program, as ordinary tensors, to another tensor, or with the last that stood for them.
#include <c10/core/AutogradState.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

#include "runtime/fork_lock.h"
#include "torchglue/base/tensor_memory.h"
#include "torchglue/oom/events.h"
#include "torchglue/placement/creation.h"
#include "torchglue/region/constant_views.h"
#include "torchglue/region/deferred.h"
#include "torchglue/region/region.h"
#include "torchglue/step/session.h"

namespace koila {

namespace {

ForkLock of_dead;  // of every region's list of tensors that died on other threads

// Whether the value's tensor, which is alive, looks at other memory than the value's.
bool lies_elsewhere(const Region& region, ValueId id) {
  const c10::TensorImpl* impl = region.value(id).impl;
  const c10::StorageImpl* storage = impl == nullptr ? nullptr : impl->unsafe_storage().unsafeGetStorageImpl();
  return storage != nullptr && !region.lies_in(id, storage);
}

at::Tensor tensor_of(const Value& value) { return at::Tensor(c10::intrusive_ptr<c10::TensorImpl>::reclaim_copy(value.impl)); }

}  // namespace

void Region::consume(ValueId value) { values_[value].consumed = true; }

void Region::hand_over(ValueId id, const at::Tensor& tensor, bool whole) {
  materialise({id});
  if (tensor.requires_grad()) consume(id);
  deferred_registry().remove(tensor.unsafeGetTensorImpl());
  if (values_[id].placement.is_shard() && !whole) session().marks.add(tensor, values_[id].placement, batch_, micro_batch_);
}

void Region::hand_out_group(ValueId id, bool with_graph) {
  const uint32_t group = values_[id].group;
  const at::Tensor written = tensor_of(values_[id]);
  for (ValueId other = 0; other < values_.size(); ++other) {
    Value& value = values_[other];
    if (value.group != group || value.impl == nullptr) continue;
    if (other != id && (value.requires_grad || (with_graph && !are_related(tensor_of(value), written))) && c10::AutogradState::get_tls_state().get_grad_mode()) {
      TORCH_CHECK_WITH(OutOfMemoryError, false,
                       kUnderKoila, "an operator writes in place to a tensor that it cannot split, and of which a view is alive.");
    }
    deferred_registry().remove(value.impl);
    value.consumed = value.requires_grad;
    value.impl = nullptr;
  }
}

void Region::hand_out_exchanged(ValueId id) {
  Value& value = values_[id];
  if (value.impl == nullptr) return;
  deferred_registry().remove(value.impl);
  value.consumed = value.requires_grad;
  value.impl = nullptr;
}

bool Region::is_fresh_memory(ValueId id) const {
  const auto of_group = [&](ValueId v) { return v != kNoValue && values_[v].group == values_[id].group; };
  return std::all_of(instructions_.begin(), instructions_.end(), [&](const Instruction& in) {
    const bool makes = std::any_of(in.outputs.begin(), in.outputs.end(), of_group);
    return makes ? in.makes_fresh_memory() && !in.in_place : std::none_of(in.arguments.begin(), in.arguments.end(), [&](const Argument& a) {
      return std::any_of(a.operands.begin(), a.operands.end(), [&](const Operand& o) { return o.kind == Operand::Kind::kValue && of_group(o.id); });
    });
  });
}

bool Region::is_constant(ValueId id) const {
  const uint32_t group = values_[id].group;
  return std::all_of(instructions_.begin(), instructions_.end(), [&](const Instruction& in) {
    const auto makes = [&](ValueId v) { return v != kNoValue && values_[v].group == group && (in.in_place || (groups_[group].base == v && !makes_constant(in.op.schema()))); };
    return std::none_of(in.outputs.begin(), in.outputs.end(), makes);
  });
}

std::vector<char> Region::values_elsewhere() const {
  const std::lock_guard lock(of_dead);  // a tensor that dies on another thread waits for it, and those that have are noted
  std::vector<char> found(values_.size(), 0);
  for (ValueId id = 0; id < values_.size(); ++id) {
    const bool dead = std::any_of(dead_.begin(), dead_.end(), [&](const auto& noted) { return noted.first == id && noted.second == values_[id].impl; });
    found[id] = values_[id].moved || (!dead && lies_elsewhere(*this, id));
  }
  return found;
}

void Region::give_up(const c10::StorageImpl* storage) {
  for (ValueId id = 0; id < values_.size(); ++id) {
    if (values_[id].impl != nullptr && groups_[values_[id].group].is_filled_in(storage)) hand_out_group(id);
  }
}

void Region::forget(ValueId id) noexcept {
  Value& value = values_[id];
  if (value.impl != nullptr) deferred_registry().remove(value.impl);
  value.impl = nullptr;
  Group& group = groups_[value.group];
  if (group.base == id && group.storage) {
    deferred_registry().remove_storage(group.storage.unsafeGetStorageImpl());
    group.storage = {};
  }
}

void Region::rebind(ValueId id, const at::Tensor& tensor) {
  if (values_[id].impl != nullptr) deferred_registry().remove(values_[id].impl);
  values_[id].impl = nullptr;
  install(id, tensor);
}

bool Region::move_to(ValueId id, const at::Storage& storage) {
  Group& group = groups_[values_[id].group];
  size_t known = 0;
  for (const Value& value : values_) known += value.group == values_[id].group && value.impl != nullptr;
  if (group.materialised || !group.storage || group.held_beside(known)) return false;
  deferred_registry().remove_storage(group.storage.unsafeGetStorageImpl());
  group.storage = storage;
  deferred_registry().add_storage(storage.unsafeGetStorageImpl(), this, values_[id].group);
  for (const Value& value : values_) {
    if (value.group == values_[id].group && value.impl != nullptr) value.impl->set_storage_keep_dtype(storage);
  }
  return true;
}

// Whether an operator that micro-batch 0 has not come to reads the value: operators of a conversion join before they run.
bool Region::first_frame_needs(ValueId id) const noexcept {
  for (size_t i = first_.next; i < instructions_.size(); ++i) {
    for (const Argument& argument : instructions_[i].arguments) {
      for (const Operand& o : argument.operands) {
        if (o.kind == Operand::Kind::kValue && o.id == id) return true;
      }
    }
  }
  return false;
}

// Note [Tensors that no operator made]
// A tensor may look at a deferred value without any operator: h.data, and what TorchScript saves of an output for its own backward pass. The region does not know the tensor, and the
// tensor does not hold the region; but both hold the storage, and a storage with more holders than the region knows is looked at. From the death of a tensor that the region knows
// the session holds such a region (Session::looked_at), until nothing looks at it any more.
std::vector<ValueId> Region::looked_at() const {
  std::vector<size_t> known(groups_.size(), 0);
  for (const Value& value : values_) known[value.group] += value.impl != nullptr ? 1 : 0;
  std::vector<ValueId> found;
  for (size_t g = 0; g < groups_.size(); ++g) {
    if (groups_[g].held_beside(known[g])) found.push_back(groups_[g].base);
  }
  return found;
}

// A tensor of the group dies, which is one of those that the region knows.
bool Region::is_looked_at_still(uint32_t group) const {
  if (!groups_[group].held_beside(1)) return false;
  return groups_[group].held_beside(std::count_if(values_.begin(), values_.end(), [&](const Value& v) { return v.group == group && v.impl != nullptr; }));
}

void Region::bury(ValueId id, const c10::TensorImpl* impl) noexcept {
  if (id >= values_.size()) return;
  Value& value = values_[id];
  if (value.impl != impl) return;  // another tensor stands for it by now
  value.impl = nullptr;
  if (!value.consumed && id < first_.values.size() && !first_frame_needs(id)) first_.values[id].reset();
}

void Region::on_death(const c10::TensorImpl* impl, ValueId id) noexcept {
  deferred_registry().remove(impl);
  if (session().owned_by_this_thread()) {
    auto& others = session().looked_at;
    if (!released_ && id < values_.size() && is_looked_at_still(values_[id].group) && (others.empty() || others.back().get() != this)) others.push_back(shared_from_this());
    if (id < values_.size() && values_[id].impl == impl) values_[id].moved |= lies_elsewhere(*this, id);
    bury(id, impl);
  } else {
    const std::lock_guard lock(of_dead);
    dead_.emplace_back(id, impl);
  }
}

void Region::bury_dead() {
  std::vector<std::pair<ValueId, const c10::TensorImpl*>> dead;
  {
    const std::lock_guard lock(of_dead);
    dead.swap(dead_);
  }
  for (const auto& [id, impl] : dead) bury(id, impl);
}

}  // namespace koila
