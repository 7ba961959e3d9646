// Somebody is about to write to what a region has read, or has made; or one of its operators is.
#include <ATen/ATen.h>
#include <ATen/TensorUtils.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/util/Exception.h>
#include <c10/util/FunctionRef.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "torchglue/base/tensor_memory.h"
#include "torchglue/base/tls.h"
#include "torchglue/op_traits.h"
#include "torchglue/operators/saved.h"
#include "torchglue/region/deferred.h"
#include "torchglue/region/node.h"
#include "torchglue/region/region.h"

namespace koila {

namespace {

// Whether `work` came to its end, and did not run out of memory.
bool there_is_room(c10::function_ref<void()> work) {
  try {
    work();
    return true;
  } catch (const c10::OutOfMemoryError&) {
    return false;
  }
}

}  // namespace

bool Region::captures_storage(const c10::StorageImpl* storage) const {
  return std::any_of(captures_.begin(), captures_.end(), [&](const Capture& c) { return c.tensor.defined() && storage_of(c.lying()) == storage; });
}

bool Region::concerns_storage(const c10::StorageImpl* storage) const {
  return captures_storage(storage) || is_read_there(storage) || std::any_of(values_.begin(), values_.end(), [&](const Value& value) {
           if (value.impl == nullptr || !groups_[value.group].materialised) return false;
           return groups_[value.group].filled == storage || value.impl->unsafe_storage().unsafeGetStorageImpl() == storage;
         });
}

// By an operator, or by its backward pass. An LSTM writes its gates to parts of a sum that nothing reads but those.
bool Region::is_read_there(const c10::StorageImpl* storage) const {
  const auto lies_there = [&](ValueId id) { return id != kNoValue && groups_[values_[id].group].has_its_value_in(storage); };
  return std::any_of(instructions_.begin(), instructions_.end(), [&](const Instruction& in) {
    if (may_save_result(in.op.schema()) && std::any_of(in.outputs.begin(), in.outputs.end(), lies_there)) return true;
    for (size_t a = in.in_place && !may_save_operands(in.op.schema()) ? 1 : 0; a < in.arguments.size(); ++a) {
      const auto& operands = in.arguments[a].operands;
      if (std::any_of(operands.begin(), operands.end(), [&](const Operand& o) { return o.kind == Operand::Kind::kValue && lies_there(o.id); })) return true;
    }
    return false;
  });
}

bool Region::is_behind(const at::Tensor& tensor) const {
  const c10::StorageImpl* storage = storage_of(tensor);
  const c10::TensorImpl* own = tensor.unsafeGetTensorImpl();
  const c10::TensorImpl* base = tensor.is_view() ? tensor._base().unsafeGetTensorImpl() : nullptr;
  bool shares = false;
  for (const Value& value : values_) {
    if (value.impl == nullptr || !groups_[value.group].is_filled_in(storage)) continue;
    if (value.impl == own || value.impl == base) return false;
    shares = true;
  }
  return shares;
}

bool Region::shares_memory(ValueId value) const {
  return std::count_if(values_.begin(), values_.end(), [&](const Value& v) { return v.group == values_[value].group; }) > 1;
}

void Region::given_memory(const at::Tensor& tensor, const void* before) {
  for (Capture& c : captures_) {
    if (c.tensor.unsafeGetTensorImpl() == tensor.unsafeGetTensorImpl() && c.data == before) note_memory(c);
  }
}

void Region::before_resize(const c10::StorageImpl* storage) {
  if (is_read_there(storage)) saved_is_lost_ = "has had its storage resized since (storage.resize_()).";
}

void Region::resized(const c10::StorageImpl* storage) {
  for (Capture& c : captures_) {
    if (c.before.defined() && c.tensor.defined() && storage_of(c.tensor) == storage) note_memory(c);
  }
}

// Note [Writes to captures]
// A capture is read again when micro-batches are replayed, so a write to it between the operator that read it and the replay would
// be seen where it must not. What the program holds is therefore given its value before the write; and while backward is still to come,
// micro-batches read a copy: see Note [Captures that change]. Plain PyTorch needs no memory for the write. Where there is none for the copy, the write goes on, and who comes for
// what is to be made of the capture is refused (Region::check_captures).
// The write may give the program's tensor a graph that leads to this region. The capture is a handle on its memory from then on, which does not hold that graph: the region and its node would hold each other. The graph that it had is the
// node's edge.
void Region::before_write(const c10::StorageImpl* storage) {
  const bool all_made = there_is_room([&] { materialise_held(); });
  if (node_ == nullptr && all_made) {
    release();
    return;
  }
  drop_first_frame();
  const NoInterceptGuard no_intercept;
  const NoInferenceMode no_inference;  // micro-batches in backward are given the copy
  const at::NoGradGuard no_grad;
  for (Capture& capture : captures_) {
    if (!capture.tensor.defined() || storage_of(capture.lying()) != storage) continue;
    capture_index_.erase(capture.of._unsafe_get_target());
    if (!capture.requires_grad || (capture.edge >= 0 && has_node(capture.tensor))) capture.tensor = handle_of(capture.tensor);
    if (!capture.before.defined() && !capture.lost) capture.lost = !there_is_room([&] { capture.before = capture.as_read().detach().clone(); });
  }
}

void Region::before_exchange(const c10::StorageImpl* storage) {
  const auto lies_there = [&](ValueId id) { return groups_[values_[id].group].is_filled_in(storage); };
  const auto reads = [&](const Operand& o) {
    if (o.kind == Operand::Kind::kValue) return lies_there(o.id);
    if (o.kind != Operand::Kind::kUse) return false;
    const at::Tensor& t = captures_[uses_[o.id].capture].tensor;
    return t.defined() && storage_of(t) == storage;
  };
  bool saved = false;
  for (const Instruction& in : instructions_) {
    if (!takes_gradient(in, values_)) continue;
    if (may_save_result(in.op.schema())) saved |= std::any_of(in.outputs.begin(), in.outputs.end(), [&](ValueId out) { return out != kNoValue && lies_there(out); });
    if (!may_save_operands(in.op.schema())) continue;
    for (const Argument& argument : in.arguments) saved |= std::any_of(argument.operands.begin(), argument.operands.end(), reads);
  }
  if (saved) saved_is_lost_ = "was written to by a collective operation since.";
  // Nobody has saved it, or the pass is refused: what is sent need not be looked at again.
  std::vector<char> written_before;
  for (const Capture& capture : captures_) written_before.push_back(capture.before.defined());
  if (captures_storage(storage)) before_write(storage);
  for (size_t c = 0; c < captures_.size() && c < written_before.size(); ++c) {
    Capture& capture = captures_[c];
    if (!capture.before.defined() || written_before[c]) continue;
    capture.tensor = std::exchange(capture.before, at::Tensor());
    capture.version = version_of(capture.tensor);
    note_memory(capture);
  }
  for (ValueId id = 0; id < values_.size(); ++id) {
    if (values_[id].impl != nullptr && lies_there(id)) hand_out_exchanged(id);
  }
}

// Whether the operator may have saved the operand, or result, by a hook, in a step that writes to it in place afterwards, and outside of the hook's reach.
bool Region::is_saved_by_hook(const Instruction& in, ValueId id) const {
  if (!in.state.saves_by_hook || in.in_place || in.gradient || op_traits(in.op).may_view) return false;
  const auto written = written_groups_.find(values_[id].group);
  const bool is_result = std::find(in.outputs.begin(), in.outputs.end(), id) != in.outputs.end();
  return written != written_groups_.end() && written->second && (is_result ? may_save_result(in.op.schema()) : may_save_operands(in.op.schema()));
}

// Note [Folded copies]
// A matmul() folds the leading dimensions of what it reads into one. At the full batch that may take a copy, and the copy is what its node saves; of one row it is a view, and
// a write in place to the value would then be one to what was saved. Where the value is written to in place, a micro-batch's operator is given a copy as well.
// What a checkpoint makes again is not what was written to since either, and no version is compared: there too.
bool Region::saves_copy(const Instruction& in, ValueId id) const {
  const Value& value = values_[id];
  if (is_saved_by_hook(in, id)) return true;
  if (written_groups_.count(value.group) == 0 || in.in_place || in.gradient || value.sizes.size() < 3 || !op_traits(in.op).composite || op_traits(in.op).may_view) return false;
  int64_t rows = 1;
  for (size_t d = 0; d + 1 < value.sizes.size(); ++d) rows *= value.sizes[d];
  return !at::detail::computeStride(at::IntArrayRef(value.sizes), at::IntArrayRef(value.strides), std::vector<int64_t>{rows, value.sizes.back()});
}

namespace {

// The value of the region that the operator writes to in place; kNoValue: none.
ValueId written_by(const Instruction& in) {
  if (!in.in_place || in.arguments[0].operands.empty() || in.arguments[0].operands[0].kind != Operand::Kind::kValue) return kNoValue;
  return in.arguments[0].operands[0].id;
}

}  // namespace

void Region::note_write(const Instruction& in) {
  const ValueId written = written_by(in);
  if (written == kNoValue) return;
  const uint32_t group = values_[written].group;
  if (!written_groups_.try_emplace(group, !in.state.saves_by_hook).second) return;
  const auto reads_copy = [&](const Instruction& earlier) {
    for (const Argument& argument : earlier.arguments) {
      for (const Operand& o : argument.operands) {
        if (o.kind == Operand::Kind::kValue && values_[o.id].group == group && saves_copy(earlier, o.id)) return true;
      }
    }
    return false;
  };
  const auto gives_saved = [&](const Instruction& earlier) {
    return std::any_of(earlier.outputs.begin(), earlier.outputs.end(), [&](ValueId out) { return out != kNoValue && values_[out].group == group && is_saved_by_hook(earlier, out); });
  };
  const bool apart = std::any_of(instructions_.begin(), instructions_.end(), [&](const Instruction& earlier) { return reads_copy(earlier) || gives_saved(earlier); });
  if (apart || lies_in_another(first_, group)) drop_first_frame();
}

void Region::forget_write(const Instruction& in) {
  if (!in.in_place) return;
  drop_first_frame();  // what it wrote must not stay
  const ValueId written = written_by(in);
  if (written == kNoValue) return;
  const uint32_t group = values_[written].group;
  const auto writes = [&](const Instruction& other) {
    const ValueId its = written_by(other);
    return its != kNoValue && values_[its].group == group;
  };
  if (std::none_of(instructions_.begin(), instructions_.end(), writes)) written_groups_.erase(group);
}

void Region::take_back_told() {
  const Instruction told = std::move(instructions_.back());
  instructions_.pop_back();
  forget_write(told);
}

// Note [Views of few rows]
// reshape(), contiguous() and others like them give a view where the sizes let them, and a copy where not; of one row more of them are views. Where the full batch has a copy that is written to in place, a micro-batch has one as well: or
// the write would be one to what it was made of, which may be the program's own input.
bool Region::lies_in_another(const Frame& frame, uint32_t group) const {
  std::vector<const c10::StorageImpl*> its;
  for (ValueId id = 0; id < frame.values.size(); ++id) {
    if (values_[id].group == group && frame.values[id].defined()) its.push_back(storage_of(frame.values[id]));
  }
  const auto is_its = [&](const at::Tensor& t) { return t.defined() && storage_of(t) != nullptr && std::find(its.begin(), its.end(), storage_of(t)) != its.end(); };
  if (std::any_of(frame.uses.begin(), frame.uses.end(), is_its)) return true;
  for (ValueId id = 0; id < frame.values.size(); ++id) {
    if (values_[id].group != group && is_its(frame.values[id])) return true;
  }
  return false;
}

at::Tensor Region::apart_from_operands(const Frame& frame, const Instruction& in, ValueId id, const at::Tensor& local) const {
  if (written_groups_.empty() || in.in_place || storage_of(local) == nullptr) return local;
  const OpStateGuard state(in.state, frame.grad);  // a gradient goes through a copy, too
  const NoInterceptGuard no_intercept;
  if (is_saved_by_hook(in, id)) return local.clone();
  const bool written = written_groups_.count(values_[id].group) > 0;
  for (const Argument& argument : in.arguments) {
    for (const Operand& o : argument.operands) {
      const bool is_value = o.kind == Operand::Kind::kValue;
      if (o.kind == Operand::Kind::kUndefined || (!written && !(is_value && written_groups_.count(values_[o.id].group) > 0))) continue;
      if (storage_of(is_value ? frame.values[o.id] : frame.uses[o.id]) == storage_of(local)) return local.clone();
    }
  }
  return local;
}

}  // namespace koila
