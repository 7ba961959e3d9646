#include "torchglue/tape/tape.h"

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>

#include "torchglue/base/followed.h"
#include "torchglue/base/foreign_memory.h"
#include "torchglue/base/graph_walk.h"
#include "torchglue/base/tensor_memory.h"
#include "torchglue/compat/hooks.h"
#include "torchglue/facts/facts.h"
#include "torchglue/memory/origin.h"
#include "torchglue/op_traits.h"
#include "torchglue/operators/gradient.h"
#include "torchglue/operators/saved.h"
#include "torchglue/statistics/running_arguments.h"
#include "torchglue/tape/node_kind.h"

namespace koila {

namespace {

constexpr size_t kWithoutGradientsAtMost = 4096;

bool same_state(const OpState& a, const OpState& b) {
  return a.included == b.included && a.excluded == b.excluded && a.grad_mode == b.grad_mode && a.inference_mode == b.inference_mode && a.foreign_hooks == b.foreign_hooks && a.saves_by_hook == b.saves_by_hook &&
         a.autocast_cpu == b.autocast_cpu && a.autocast_cuda == b.autocast_cuda && a.default_type == b.default_type && a.attention == b.attention;
}

}  // namespace

TapeValueId Tape::find(const c10::TensorImpl* impl) const {
  auto it = index_.find(impl);
  return it == index_.end() ? kNoTapeValue : it->second;
}

bool is_filled_anew(const TapeValue& value) {
  if (value.foreign == 0 || value.is_copied()) return false;
  const at::Tensor t = value.lock();
  return t.defined() && version_of(t) == value.version && differs_from(value.foreign, t);
}

TapeValueId Tape::add_value(const at::Tensor& tensor, int32_t producer, int32_t output, uint32_t group) {
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  const auto id = static_cast<TapeValueId>(values_.size());
  TapeValue& value = values_.emplace_back(c10::weak_intrusive_ptr<c10::TensorImpl>(tensor.getIntrusivePtr()));
  value.producer = producer;
  value.output = output;
  value.group = group;
  value.dtype = c10::typeMetaToScalarType(impl->dtype());
  value.device = impl->device();
  if (impl->layout() == c10::kStrided) {
    const auto sizes = impl->sizes();
    const auto strides = impl->strides();
    value.sizes.assign(sizes.begin(), sizes.end());
    value.strides.assign(strides.begin(), strides.end());
    value.storage_offset = impl->storage_offset();
  }
  value.version = version_of(tensor);
  value.storage = storage_of(tensor);
  if (producer == kNoProducer && value.storage != nullptr) value.storage_of_capture = impl->unsafe_storage().getWeakStorageImpl();
  value.requires_grad = tensor.requires_grad();
  value.set_node(tensor);
  value.conjugated = tensor.is_conj();
  value.negated = tensor.is_neg();
  value.foreign = foreign_digest(tensor);
  index_[impl] = id;
  return id;
}

// Note [Tensors that come back changed]
// A tensor that the tape knows may have changed in ways that no operator showed: written to through an alias the tape does not know,
// made a leaf (`Parameter(t)`, `t.requires_grad_()`), or given another grad_fn by an autograd.Function. It then enters anew, as a capture.
// But a capture whose graph points into graphs of the tape (an opaque function's output; a buffer that a differentiable value was written
// into) needs them as they are, so the tape is cut before it enters, but for Note [Bridges]. Which ones do is told by autograd's sequence numbers, which
// grow with every node that this thread makes.
// What the engine makes on a thread of its own, as it does for a CUDA device, has the numbers of that thread.
void Tape::note_nodes_of_gradient(at::ArrayRef<c10::IValue> results) {
  const uint64_t here = at::RecordFunction::currentThreadId();
  std::vector<torch::autograd::Node*> nodes;
  for_each_tensor(results, [&](const at::Tensor& t, int, int) {
    if (const auto* node = node_of(t)) nodes.push_back(const_cast<torch::autograd::Node*>(node));
  });
  walk_graph(std::move(nodes), [&](torch::autograd::Node* node) {
    if (node->thread_id() == here || !is_builtin(kind_of(*node))) return false;
    auto [range, fresh] = nodes_of_gradients_.try_emplace(node->thread_id(), node->sequence_nr(), node->sequence_nr());
    range->second.first = std::min(range->second.first, node->sequence_nr());
    range->second.second = std::max(range->second.second, node->sequence_nr());
    return true;
  });
}

bool Tape::hangs_on_tape(const torch::autograd::Node* node) const {
  return node != nullptr && differentiable_ && node->thread_id() == thread_ && node->sequence_nr() >= first_node_ && kind_of(*node) != NodeKind::kRegion && !is_spent(*node);
}

bool Tape::may_have_made(const torch::autograd::Node& node) const {
  if (const auto made = nodes_of_gradients_.find(node.thread_id()); made != nodes_of_gradients_.end()) {
    if (is_builtin(kind_of(node)) && made->second.first <= node.sequence_nr() && node.sequence_nr() <= made->second.second) return true;
  }
  if (!hangs_on_tape(&node)) return false;
  const auto after = std::upper_bound(own_nodes_.begin(), own_nodes_.end(), node.sequence_nr(), [](uint64_t number, const auto& made) { return number < made.second; });
  return is_builtin(kind_of(node)) || (after != own_nodes_.end() && after->first <= node.sequence_nr());
}

TapeValueId Tape::look_up(const at::Tensor& tensor) {
  auto it = index_.find(tensor.unsafeGetTensorImpl());
  const torch::autograd::Node* node = node_of(tensor);
  bool written = false, was_computed = false, frozen_or_trained = false, moved = false;
  if (it != index_.end()) {
    TapeValue& value = values_[it->second];
    if (!value.exchanged && value.known_node(node) && groups_[value.group].version == version_of(tensor) && value.storage == storage_of(tensor)) {
      if (node != nullptr && value.grad_fn == nullptr) {  // zeros that have been written into
        value.set_node(tensor);
        value.requires_grad = true;
      }
      // What was read before it was written to is a copy: see Note [Captures that are written to].
      if (value.is_capture() && value.is_copied() && value.version != version_of(tensor)) return add_value(tensor, kNoProducer, 0, value.group);
      value.read_unhooked |= node != nullptr && !is_hooked(tensor);
      const bool filled_anew = differs_from(value.foreign, tensor);  // since an operator has read it
      const bool may_be_moved = node == nullptr && !value.is_capture() && groups_[value.group].pinned;  // to memory of others, by share_memory_()
      if (value.foreign == 0 && (any_exposed() || may_be_moved)) value.foreign = foreign_digest(tensor);
      if (tensor.requires_grad() == value.requires_grad && !filled_anew) return it->second;
      frozen_or_trained = value.is_capture() && node == nullptr && !filled_anew;  // since: it is what it was else
    }
    moved = value.is_capture() && node == nullptr && value.grad_fn == nullptr && value.storage != storage_of(tensor);  // and may be moved back
    written = groups_[value.group].version != version_of(tensor) || value.storage != storage_of(tensor);
    was_computed = tensor.is_leaf() && tensor.requires_grad() && is_computed(value);
  }
  if (node != nullptr && kind_of(*node) == NodeKind::kOther) saw_functions_ = true;
  if (!hangs_on_tape(node) || (!written && bridge(node))) {
    if (it != index_.end() && !frozen_or_trained && !moved) let_go(values_[it->second]);
  } else {
    cut();
    record_ = false;  // arguments of the pending call that were looked up before are captures now: begin() repeats the walk
  }
  if (tensor.requires_grad() && tensor.is_leaf() && !was_computed && tensor.layout() == c10::kStrided && parameter_sizes_.find(tensor.sizes()) == parameter_sizes_.end()) {
    parameter_sizes_.insert(tensor.sizes().vec());
  }
  if (!frozen_or_trained) groups_.push_back({version_of(tensor), /*on_capture=*/true, /*pinned=*/false});
  const TapeValueId id = add_value(tensor, kNoProducer, 0, frozen_or_trained ? values_[it->second].group : static_cast<uint32_t>(groups_.size() - 1));
  values_[id].was_computed = was_computed;
  return id;
}

// Whether an operator made it of several tensors, as an embedding does of weights and numbers: what is drawn, or filled, or a copy, may become a parameter.
bool Tape::is_computed(const TapeValue& value) const { return value.was_computed || (!value.is_capture() && ops()[static_cast<size_t>(value.producer)].refs.size() > 1); }

// Whatever its tensor was on the tape, it is not any more.
void Tape::let_go(TapeValue& value) {
  if (value.is_copied()) return;
  value.weak.reset();
  value.strong.reset();
  groups_[value.group].pinned = true;  // it looks at the memory still
}

void Tape::let_go_of_leaves() {
  for (TapeValueId id = 0; id < values_.size(); ++id) {
    const at::Tensor t = values_[id].is_capture() || values_[id].requires_grad ? at::Tensor() : values_[id].lock();
    if (!t.defined() || !t.requires_grad() || !t.is_leaf() || find(t.unsafeGetTensorImpl()) != id) continue;
    index_.erase(t.unsafeGetTensorImpl());
    let_go(values_[id]);
  }
}

void Tape::add_ref(const at::Tensor& tensor, uint16_t arg, int32_t element) {
  const TapeValueId value = look_up(tensor);
  if (!record_) return;
  // Numbers that Python wrapped as tensors live no longer than the call.
  TapeValue& v = values_[value];
  if (v.is_capture() && tensor.dim() == 0 && v.grad_fn == nullptr && !v.strong.defined()) v.strong = tensor;
  pending_refs_.push_back({arg, element, value, version_of(tensor)});
}

uint32_t Tape::intern_state(const OpTraits& traits) {
  OpState now = OpState::current();
  if (traits.attention) now.attention = kinds_of_attention();
  if (states_.empty() || !same_state(states_.back(), now)) states_.push_back(now);
  return static_cast<uint32_t>(states_.size() - 1);
}

// Whether anything that the tape is for could come of the call. Optimisers, running statistics, initialisation: effects on tensors that the tape never saw
// need no record, and neither does what an optimizer works out of such tensors on its way.
bool Tape::is_worth_recording(const OpTraits& traits, at::ArrayRef<c10::IValue> arguments) const {
  if (!traits.tensor_result || traits.foreach) return false;
  if (c10::AutogradState::get_tls_state().get_grad_mode() || !(traits.writes || optimizer_at_work())) return true;
  if (values_.empty()) return false;
  bool known = false;
  for_each_tensor(arguments, [&](const at::Tensor& t, int, int) { known = known || index_.find(t.unsafeGetTensorImpl()) != index_.end(); });
  return known;
}

void Tape::begin(const c10::OperatorHandle& op, at::ArrayRef<c10::IValue> arguments) {
  const OpTraits& traits = op_traits(op);
  begin_writes(op, traits, arguments);
  drop_pending();
  record_ = is_worth_recording(traits, arguments);
  if (!record_) return;
  if (traits.in_place && arguments[0].isTensor()) {
    const TapeValueId known = find(arguments[0].toTensor().unsafeGetTensorImpl());
    if (known == kNoTapeValue || groups_[values_[known].group].on_capture) written_into_ = written_into(op, traits, arguments);
  }
  record_arguments(written_into_ ? written_into_->op : op, traits, arguments);
}

void Tape::record_arguments(const c10::OperatorHandle& op, const OpTraits& traits, at::ArrayRef<c10::IValue> arguments) {
  for (bool again = true; again;) {
    pending_refs_.clear();
    record_ = true;
    for_each_tensor(arguments, [&](const at::Tensor& t, int arg, int element) {
      if (!record_) return;
      const bool before = written_into_ && arg == 0;
      add_ref(before ? written_into_->before : t, static_cast<uint16_t>(arg), element);
      if (before && record_) values_[pending_refs_.back().value].strong = written_into_->before;
    });
    again = !record_;  // cut on the way, see Note [Tensors that come back changed]; a tape that is empty is not cut again
  }
  if (pending_refs_.empty() && !(traits.creates >= 0 && c10::AutogradState::get_tls_state().get_grad_mode())) {
    record_ = false;
    return;
  }
  for (size_t i = 0; i < arguments.size(); ++i) {
    switch (traits.kinds[i]) {
      case ArgumentKind::kTensor:
        pending_args_.emplace_back();
        break;
      case ArgumentKind::kTensorList:
        pending_args_.emplace_back(arguments[i].isList() ? static_cast<int64_t>(arguments[i].toListRef().size()) : -1);
        break;
      case ArgumentKind::kOther:
        pending_args_.push_back(arguments[i]);
        break;
    }
  }
  pending_.emplace(TapeOp{op, pending_args_, pending_refs_, {}, intern_state(traits), false, place_in_progress()});
  sequence_before_ = at::sequence_number::peek();
}

void Tape::discard() {
  drop_pending();
  written_.clear();
  record_ = false;
}

void Tape::drop_pending() {
  pending_.reset();
  written_into_.reset();
  pending_args_.clear();
  pending_refs_.clear();
  pending_outputs_.clear();
}

// A result that the tape knows already: an argument that was handed back, as it was or written to.
TapeValueId Tape::output_of_known(const at::Tensor& tensor, TapeValueId id, int32_t producer, int32_t output) {
  const TapeValue& known = values_[id];
  Group& group = groups_[known.group];
  const uint32_t version = version_of(tensor);
  if (group.version == version && known.requires_grad == tensor.requires_grad() && known.known_node(node_of(tensor))) return id;
  group.version = version;
  if (group.on_capture) {  // an effect: what comes next reads a new capture
    capture_hangs_on_tape_ |= hangs_on_tape(node_of(tensor));
    index_.erase(tensor.unsafeGetTensorImpl());
    return kNoTapeValue;
  }
  pending_->in_place = true;
  return add_value(tensor, producer, output, known.group);
}

// The group of the argument whose storage the result shares; UINT32_MAX: it has memory of its own, or a version of its own (unsafe_split), so that a write to it is one behind the argument's back.
uint32_t Tape::group_of_view(const at::Tensor& tensor, at::ArrayRef<c10::IValue> arguments) const {
  const c10::StorageImpl* storage = storage_of(tensor);
  if (storage == nullptr || tensor.unsafeGetTensorImpl()->version_counter().unique()) return UINT32_MAX;
  uint32_t group = UINT32_MAX;
  size_t ref = 0;
  for_each_tensor(arguments, [&](const at::Tensor& t, int, int) {
    if (group == UINT32_MAX && ref < pending_refs_.size() && storage_of(t) == storage) group = values_[pending_refs_[ref].value].group;
    ++ref;
  });
  return group;
}

TapeValueId Tape::output_of(const at::Tensor& tensor, at::ArrayRef<c10::IValue> arguments) {
  if (pending_refs_.empty() && (tensor.layout() != c10::kStrided || tensor.nbytes() < kCreatedAtLeast)) return kNoTapeValue;  // a constant too small to be worth anything
  const auto flat = static_cast<int32_t>(pending_outputs_.size());
  const auto producer = static_cast<int32_t>(ops().size());
  if (const TapeValueId known = find(tensor.unsafeGetTensorImpl()); known != kNoTapeValue) return output_of_known(tensor, known, producer, flat);
  uint32_t group = written_into_ ? UINT32_MAX : group_of_view(tensor, arguments);
  const bool view = group != UINT32_MAX;
  if (!view) {
    groups_.push_back({version_of(tensor), false, false});
    group = static_cast<uint32_t>(groups_.size() - 1);
  }
  const TapeValueId id = add_value(tensor, producer, flat, group);
  values_[id].is_view = view;
  return id;
}

// Every tensor of a result list in order, those that are not defined too.
template <class F>
void for_each_output(at::ArrayRef<c10::IValue> results, F&& f) {
  for (const c10::IValue& v : results) {
    if (v.isTensor()) {
      f(v.toTensor());
    } else if (v.isList()) {
      for (const c10::IValue& element : v.toListRef()) f(element.isTensor() ? element.toTensor() : at::Tensor());
    }
  }
}

void Tape::record_results(at::ArrayRef<c10::IValue> arguments, at::ArrayRef<c10::IValue> results, const RandomState* before) {
  const size_t first_new = values_.size();
  bool differentiable = false, own_node = false;
  if (written_into_) forget_constant(arguments[0].toTensor());
  for_each_output(results, [&](const at::Tensor& t) {
    if (!t.defined()) {
      pending_outputs_.push_back(kNoTapeValue);
      return;
    }
    if (const torch::autograd::Node* node = node_of(t); node != nullptr) {
      differentiable = true;
      own_node |= !is_builtin(kind_of(*node)) && node->sequence_nr() >= sequence_before_;
    }
    pending_outputs_.push_back(output_of(t, arguments));
  });
  if (values_.size() == first_new) return;
  if (differentiable) {
    hold_inputs(arguments, results);
    if (is_gradient(pending_->op)) {
      has_gradients_ = true;
      note_nodes_of_gradient(results);
      hold_behind_gradient(results);
    }
  } else {
    hold_small(arguments);
  }
  if (differentiable && !differentiable_) {
    differentiable_ = true;
    first_node_ = sequence_before_;
    thread_ = at::RecordFunction::currentThreadId();
    if (!replay_) facts().on_forward();
  }
  if (own_node) own_nodes_.emplace_back(sequence_before_, at::sequence_number::peek());
  pending_->refs = pending_refs_;
  pending_->outputs = pending_outputs_;
  if (before != nullptr) {
    pending_->args = pending_args_;
    if (drew(*pending_)) {
      pending_->draws = static_cast<uint32_t>(draws_.size());
      draws_.push_back(*before);
    }
  }
  log_.add(*pending_, pending_args_);
}

void Tape::commit(at::ArrayRef<c10::IValue> arguments, at::ArrayRef<c10::IValue> results, const RandomState* before) {
  commit_writes();
  if (!record_) return;
  bool followed = true;
  for_each_tensor(results, [&](const at::Tensor& t, int, int) { followed &= follows(*t.unsafeGetTensorImpl()); });
  if (!followed) {  // what it is made of cannot be made in parts from here on
    cut();
    return;
  }
  record_results(arguments, results, before);
  drop_pending();
  record_ = false;
  if (capture_hangs_on_tape_) {  // see Note [Tensors that come back changed]: it may never come back, and be what backward starts from
    cut();
    return;
  }
  if (ops().size() < collect_at_ && values_.size() < 8 * collect_at_) return;
  collect();
  // A loop without gradients whose state descends from itself (a running total, a sampler) has no backward to end it.
  if (!differentiable_ && ops().size() > kWithoutGradientsAtMost) cut();
}

}  // namespace koila
