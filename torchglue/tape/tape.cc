#include "torchglue/tape/tape.h"

#include <ATen/ATen.h>
#include <ATen/SequenceNumber.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cstdlib>
#include <new>
#include <string_view>
#include <typeinfo>

#include "torchglue/base/followed.h"
#include "torchglue/base/tensor_memory.h"
#include "torchglue/facts/facts.h"
#include "torchglue/memory/origin.h"
#include "torchglue/op_traits.h"
#include "torchglue/operators/saved.h"
#include "torchglue/statistics/running_arguments.h"

namespace koila {

namespace {

int64_t (*bytes_in_use)(int device) = nullptr;

constexpr size_t kCollectAtLeast = 128;
constexpr int64_t kShareOfOrigins = 200;  // see Note [What the tape holds]
constexpr int64_t kShareOfSmall = 400;
constexpr size_t kWithoutGradientsAtMost = 4096;

bool same_state(const OpState& a, const OpState& b) {
  return a.included == b.included && a.excluded == b.excluded && a.grad_mode == b.grad_mode && a.inference_mode == b.inference_mode && a.foreign_hooks == b.foreign_hooks &&
         a.autocast_cpu == b.autocast_cpu && a.autocast_cuda == b.autocast_cuda;
}

// Whether PyTorch's own operators made the node; false for what Python and C++ users define.
bool is_builtin(const torch::autograd::Node& node) {
  static thread_local auto* known = new ska::flat_hash_map<const std::type_info*, bool>;
  const std::type_info& type = typeid(node);
  if (auto it = known->find(&type); it != known->end()) return it->second;
  const std::string_view name = type.name();
  const bool builtin = name.find("8autograd9generated") != std::string_view::npos || name.find("8autograd10CopySlices") != std::string_view::npos;
  known->emplace(&type, builtin);
  return builtin;
}

// What a base becomes when something differentiable is written into a view of it.
bool is_copy_slices(const torch::autograd::Node& node) {
  return std::string_view(typeid(node).name()).find("8autograd10CopySlices") != std::string_view::npos;
}

// Whether the operator gives the same again from the same arguments.
bool can_run_again(const TapeOp& op) {
  return !op.in_place && !drew(op);
}

}  // namespace

bool drew(const TapeOp& op) {
  const OpTraits& traits = op_traits(op.op);
  if (!traits.random) return false;
  OpCall call(op.op.schema(), 1);
  call.args().resize(op.args.size());
  for (size_t i = 0; i < op.args.size(); ++i) {
    if (traits.kinds[i] == ArgumentKind::kOther) call.args()[i].value = op.args[i];
  }
  return traits.rule != nullptr && (traits.rule->flags & kRandom) != 0 ? draws(traits.rule, call) : may_draw(call);
}

void set_bytes_in_use(int64_t (*in_use)(int device)) { bytes_in_use = in_use; }

const torch::autograd::Node* node_of(const at::Tensor& tensor) {
  const torch::autograd::AutogradMeta* meta = torch::autograd::impl::get_autograd_meta(tensor);
  return meta == nullptr ? nullptr : meta->grad_fn_.get();
}

uint32_t version_of(const at::Tensor& tensor) {
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  return impl->version_counter().enabled() ? impl->version_counter().current_version() : 0;
}

at::Tensor TapeValue::lock() const {
  if (strong.defined()) return strong;
  auto impl = weak.lock();
  return impl ? at::Tensor(std::move(impl)) : at::Tensor();
}

bool TapeValue::known_node(const torch::autograd::Node* node) const {
  return node == grad_fn || (node != nullptr && (grad_fn != nullptr ? is_builtin(*node) : !is_capture() && is_copy_slices(*node)));
}

int64_t TapeValue::bytes() const {
  int64_t n = static_cast<int64_t>(c10::elementSize(dtype));
  for (int64_t size : sizes) n *= size;
  return n;
}

bool TapeValue::held_elsewhere() const {
  const auto held = hold.lock();
  return weak.use_count() > (strong.defined() ? 1u : 0u) + (held && held->tensor.defined() ? 1u : 0u);
}

TapeValueId Tape::find(const c10::TensorImpl* impl) const {
  auto it = index_.find(impl);
  return it == index_.end() ? kNoTapeValue : it->second;
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
  value.requires_grad = tensor.requires_grad();
  value.grad_fn = node_of(tensor);
  value.conjugated = tensor.is_conj();
  value.negated = tensor.is_neg();
  index_[impl] = id;
  return id;
}

// Note [Tensors that come back changed]
// A tensor that the tape knows may have changed in ways that no operator showed: written to through an alias the tape does not know,
// made a leaf (`Parameter(t)`, `t.requires_grad_()`), or given another grad_fn by an autograd.Function. It then enters anew, as a capture.
// But a capture whose graph points into graphs of the tape (an opaque function's output; a buffer that a differentiable value was written
// into) needs them as they are, so the tape is cut before it enters. Which ones do is told by autograd's sequence numbers, which
// grow with every node that this thread makes.
bool Tape::hangs_on_tape(const torch::autograd::Node* node) const {
  return node != nullptr && differentiable_ && node->sequence_nr() >= first_node_ && node->name() != kRegionNode;
}

bool Tape::may_have_made(const torch::autograd::Node& node) const {
  if (!hangs_on_tape(&node)) return false;
  const auto after = std::upper_bound(own_nodes_.begin(), own_nodes_.end(), node.sequence_nr(), [](uint64_t number, const auto& made) { return number < made.second; });
  return is_builtin(node) || (after != own_nodes_.end() && after->first <= node.sequence_nr());
}

TapeValueId Tape::look_up(const at::Tensor& tensor) {
  auto it = index_.find(tensor.unsafeGetTensorImpl());
  if (it != index_.end()) {
    TapeValue& value = values_[it->second];
    const torch::autograd::Node* node = node_of(tensor);
    if (!value.exchanged && value.known_node(node) && groups_[value.group].version == version_of(tensor) && value.storage == storage_of(tensor)) {
      if (node != nullptr && value.grad_fn == nullptr) {  // zeros that have been written into
        value.grad_fn = node;
        value.requires_grad = true;
      }
      if (tensor.requires_grad() == value.requires_grad) return it->second;
    }
    if (!hangs_on_tape(node)) {
      let_go(values_[it->second]);
    }
  }
  if (const auto* node = node_of(tensor); node != nullptr && node->name() != kRegionNode && !is_builtin(*node)) saw_functions_ = true;
  if (hangs_on_tape(node_of(tensor))) {
    cut();
    record_ = false;  // arguments of the pending call that were looked up before are captures now: begin() repeats the walk
  }
  if (tensor.requires_grad() && tensor.is_leaf() && tensor.layout() == c10::kStrided) parameter_sizes_.insert(tensor.sizes().vec());
  groups_.push_back({version_of(tensor), /*on_capture=*/true, /*pinned=*/false});
  return add_value(tensor, kNoProducer, 0, static_cast<uint32_t>(groups_.size() - 1));
}

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
  pending_->refs.push_back({arg, element, value, version_of(tensor)});
}

uint32_t Tape::intern_state() {
  const OpState now = OpState::current();
  if (states_.empty() || !same_state(states_.back(), now)) states_.push_back(now);
  return static_cast<uint32_t>(states_.size() - 1);
}

// A write through an alias that shows no version (`parameter.data`).
void Tape::note_write_behind(const at::Tensor& tensor) {
  const void* storage = storage_of(tensor);
  if (storage == nullptr) return;
  const TapeValueId known = find(tensor.unsafeGetTensorImpl());
  for (TapeValue& value : values_) {
    if (value.storage != storage || value.weak.expired() || value.is_copied() || (known != kNoTapeValue && value.group == values_[known].group)) continue;
    if (!value.is_capture()) {
      cut();
      return;
    }
    index_.erase(value.weak._unsafe_get_target());
    value.weak.reset();
    value.strong.reset();
  }
}

// Of the CPU, outside of the tensors that are counted: the program did not ask for it.
at::Tensor copy_of(const at::Tensor& t) {
  const NoInterceptGuard no_intercept;
  const at::NoGradGuard no_grad;
  if (!t.is_cpu() || !t.is_non_overlapping_and_dense() || t.numel() == 0) return t.clone();
  void* data = std::malloc(t.nbytes());
  if (data == nullptr) throw std::bad_alloc();
  const at::Tensor copy = at::for_blob(data, t.sizes()).strides(t.strides()).deleter([](void* block) { std::free(block); }).options(t.options().requires_grad(false)).make_tensor();
  copy.copy_(t);
  return copy;
}

// Note [Captures that are written to]
// A codebook that a forward pass reads and then moves, a counter, a mean of what has been seen: a step that is made again must read what it
// read. A small one is copied before the write, and the copy takes its place in what has been recorded. The
// tensor itself stays known: what gradients read of it is what it is by then, see Note [Captures that change].
void Tape::keep_before_write(const at::Tensor& tensor) {
  const TapeValueId id = find(tensor.unsafeGetTensorImpl());
  if (id == kNoTapeValue || !groups_[values_[id].group].on_capture) return;
  for (TapeValue& value : values_) {
    if (value.group != values_[id].group || !value.is_capture() || value.requires_grad) continue;
    auto impl = value.weak.lock();
    if (!impl || (value.strong.defined() && value.strong.unsafeGetTensorImpl() != impl.get())) continue;  // copied already
    const at::Tensor t(std::move(impl));
    if (version_of(t) != value.version) continue;
    if (!std::any_of(ops_.begin(), ops_.end(), [&](const TapeOp& op) {
          return std::any_of(op.refs.begin(), op.refs.end(), [&](const TapeRef& r) { return &values_[r.value] == &value; });
        })) continue;
    if (!affordable(t, held_for_origins_ + value.bytes(), kShareOfOrigins)) continue;
    held_for_origins_ += value.bytes();
    try {
      value.strong = copy_of(t);
    } catch (const std::exception&) {  // no room: the step is refused, should it run out
      continue;
    }
    value.strong.unsafeGetTensorImpl()->set_version_counter(c10::VariableVersion(value.version));
  }
}

// Note [Writes that no version counts]
// A batch norm moves its running statistics without a word, and some operators that name what they write to count no version up (an observer of a fake
// quantisation, a fused optimizer). What a graph has saved of it is then what is there when backward comes, and so is what a region's gradients read
// (see Note [Captures that change]). On the tape the tensor is another one from then on, and who read it before has the copy, or makes do without.
void Tape::before_silent_write(const at::Tensor& tensor) {
  if (values_.empty()) return;
  keep_before_write(tensor);
  forget_written(tensor);
}

void Tape::forget_written(const at::Tensor& tensor) {
  if (storage_of(tensor) == nullptr) return;
  for (TapeValueId id = 0; id < values_.size(); ++id) {
    TapeValue& value = values_[id];
    // Another value has taken the place of one that is not found: what reads it has its copy, or makes do without.
    if (value.storage != storage_of(tensor) || value.weak.expired() || find(value.weak._unsafe_get_target()) != id) continue;
    if (!value.is_capture()) {  // a view of it
      cut();
      return;
    }
    index_.erase(value.weak._unsafe_get_target());
    if (value.is_copied()) continue;
    value.weak.reset();
    value.strong.reset();
  }
}

// Whether the tape may hold so much on its own account: one part in `share` of what is in use.
bool Tape::affordable(const at::Tensor& like, int64_t bytes, int64_t share) {
  const int64_t in_use = bytes_in_use != nullptr ? bytes_in_use(like.is_cpu() ? -1 : static_cast<int>(like.device().index())) : 0;
  return bytes * share <= in_use;
}

void Tape::begin(const c10::OperatorHandle& op, at::ArrayRef<c10::IValue> arguments) {
  const OpTraits& traits = op_traits(op);
  written_.clear();
  if (traits.writes && !values_.empty()) {
    for_each_written(op.schema(), arguments, [&](const at::Tensor& t, int) {
      keep_before_write(t);
      if (traits.metadata) return;
      note_write_behind(t);
      if (!t.is_inference()) written_.emplace_back(t, version_of(t));
    });
  }
  if ((traits.writes || traits.silent_effect) && NoSavedTensorHooksGuard::active()) note_effect(traits, arguments);
  silent_.clear();
  if (traits.silent_effect && uses_batch_statistics(op.schema(), arguments)) silent_ = running_statistics(op.schema(), arguments);
  for (const at::Tensor& t : silent_) before_silent_write(t);
  pending_.reset();
  record_ = traits.tensor_result && !traits.foreach;
  if (!record_) return;
  if (traits.writes && !c10::AutogradState::get_tls_state().get_grad_mode()) {
    // Optimisers, running statistics, initialisation: effects on tensors that the tape never saw need no record.
    bool known = false;
    for_each_tensor(arguments, [&](const at::Tensor& t, int, int) { known |= index_.find(t.unsafeGetTensorImpl()) != index_.end(); });
    if (!known) {
      record_ = false;
      return;
    }
  }
  for (bool again = true; again;) {
    pending_.emplace(TapeOp{op, {}, {}, {}, 0, false, place_in_progress()});
    record_ = true;
    for_each_tensor(arguments, [&](const at::Tensor& t, int arg, int element) {
      if (record_) add_ref(t, static_cast<uint16_t>(arg), element);
    });
    again = !record_;  // cut on the way, see Note [Tensors that come back changed]; a tape that is empty is not cut again
  }
  if (pending_->refs.empty() && !(traits.creates >= 0 && c10::AutogradState::get_tls_state().get_grad_mode())) {
    pending_.reset();
    record_ = false;
    return;
  }
  pending_->state = intern_state();
  sequence_before_ = at::sequence_number::peek();
  pending_->args.reserve(arguments.size());
  for (size_t i = 0; i < arguments.size(); ++i) {
    switch (traits.kinds[i]) {
      case ArgumentKind::kTensor:
        pending_->args.emplace_back();
        break;
      case ArgumentKind::kTensorList:
        pending_->args.emplace_back(arguments[i].isList() ? static_cast<int64_t>(arguments[i].toListRef().size()) : -1);
        break;
      case ArgumentKind::kOther:
        pending_->args.push_back(arguments[i]);
        break;
    }
  }
}

// Note [Effects under saved-tensor hooks]
// A checkpoint runs its part of the model again in backward, with whatever effects that has: a batch norm's statistics move twice. In
// micro-batches it would not be run again, so such a step stays as it is.
void Tape::note_effect(const OpTraits& traits, at::ArrayRef<c10::IValue> arguments) {
  bool effect = traits.silent_effect;
  for_each_tensor(arguments, [&](const at::Tensor& t, int i, int) {
    if (!traits.writes || i > 0 || t.requires_grad()) return;
    const TapeValueId known = find(t.unsafeGetTensorImpl());
    effect |= known == kNoTapeValue || groups_[values_[known].group].on_capture;
  });
  effects_under_hooks_ |= effect;
}

// Note [Collectives on the tape]
// A collective operation is on no tape: nobody may run it again. Where it writes, no version counter tells, and it may do so at any time until it is
// waited for. What was recorded of such memory holds for what it was before: operators make that again, or a copy has it. From here on the tensor is
// another one, a capture. What a graph saved is what other processes sent, in the plain run too, and no operator makes that again: then the tape is cut.
// A tensor with a graph, such as a loss that is averaged for a log, may be where backward starts: it keeps its value on the tape, its memory stays as
// it is, and an operator that reads it cuts the tape.
void Tape::exchange(const at::Tensor& tensor, bool written) {
  const c10::StorageImpl* storage = storage_of(tensor);
  if (storage == nullptr) return;
  if (!written) return pin_storage(storage);  // it is read in its place, perhaps on another thread
  ska::flat_hash_set<uint32_t> groups;
  for (const TapeValue& value : values_) {
    if (value.storage == storage && !value.weak.expired()) groups.insert(value.group);
  }
  if (groups.empty()) return;
  const auto concerned = [&](TapeValueId v) { return groups.count(values_[v].group) > 0; };
  const auto makes_graph = [&](const TapeOp& op) {
    return std::any_of(op.outputs.begin(), op.outputs.end(), [&](TapeValueId out) { return out != kNoTapeValue && values_[out].differentiable(); });
  };
  for (const TapeOp& op : ops_) {
    if (!makes_graph(op)) continue;
    const bool reads = std::any_of(op.refs.begin(), op.refs.end(), [&](const TapeRef& ref) { return concerned(ref.value); });
    const bool gives = std::any_of(op.outputs.begin(), op.outputs.end(), [&](TapeValueId out) { return out != kNoTapeValue && concerned(out); });
    if ((reads && !gives) || (gives && (op.in_place || may_save_result(op.op.schema())))) return cut();
    // A view of it shares its memory, and its graph saves nothing.
    if (reads && may_save_operands(op.op.schema())) return cut();
  }
  keep_before_write(tensor);
  for (TapeValueId v = 0; v < values_.size(); ++v) {
    TapeValue& value = values_[v];
    if (!concerned(v)) continue;
    if (!value.is_capture() && value.differentiable()) {
      value.exchanged = true;
      groups_[value.group].pinned = true;
      continue;
    }
    if (find(value.weak._unsafe_get_target()) == v) index_.erase(value.weak._unsafe_get_target());
    if (value.is_copied()) continue;
    value.weak.reset();
    value.strong.reset();
  }
}

void Tape::discard() {
  pending_.reset();
  written_.clear();
  record_ = false;
}

void Tape::add_output(const at::Tensor& tensor, at::ArrayRef<c10::IValue> arguments) {
  TapeOp& op = *pending_;
  if (op.refs.empty() && (tensor.layout() != c10::kStrided || tensor.nbytes() < kCreatedAtLeast)) {  // a constant too small to be worth anything
    op.outputs.push_back(kNoTapeValue);
    return;
  }
  const auto flat = static_cast<int32_t>(op.outputs.size());
  const auto producer = static_cast<int32_t>(ops_.size());
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  if (auto it = index_.find(impl); it != index_.end()) {
    const TapeValue& known = values_[it->second];
    Group& group = groups_[known.group];
    const uint32_t version = version_of(tensor);
    if (group.version == version && known.requires_grad == tensor.requires_grad() && known.known_node(node_of(tensor))) {  // an argument handed back as it was
      op.outputs.push_back(it->second);
      return;
    }
    group.version = version;
    if (group.on_capture) {  // an effect: what comes next reads a new capture
      capture_hangs_on_tape_ |= hangs_on_tape(node_of(tensor));
      index_.erase(it);
      op.outputs.push_back(kNoTapeValue);
      return;
    }
    op.in_place = true;
    op.outputs.push_back(add_value(tensor, producer, flat, known.group));
    return;
  }
  uint32_t group = UINT32_MAX;
  if (const c10::StorageImpl* storage = storage_of(tensor)) {
    size_t ref = 0;
    for_each_tensor(arguments, [&](const at::Tensor& t, int, int) {
      if (group == UINT32_MAX && ref < op.refs.size() && storage_of(t) == storage) group = values_[op.refs[ref].value].group;
      ++ref;
    });
  }
  const bool view = group != UINT32_MAX;
  if (!view) {
    groups_.push_back({version_of(tensor), false, false});
    group = static_cast<uint32_t>(groups_.size() - 1);
  }
  const TapeValueId id = add_value(tensor, producer, flat, group);
  values_[id].is_view = view;
  op.outputs.push_back(id);
}

std::shared_ptr<Hold> Tape::hold(TapeValueId id) {
  auto hold = values_[id].hold.lock();
  if (!hold) values_[id].hold = hold = std::make_shared<Hold>(Hold{values_[id].lock(), {}});
  return hold;
}

// What the value, as it was at that version, is made from and nothing else holds for certain. False when it cannot be made again.
bool Tape::find_origins(TapeValueId id, uint32_t version, int depth, std::vector<TapeValueId>& origins) const {
  const TapeValue& value = values_[id];
  if (value.differentiable()) return true;  // a region makes it again
  if (value.strong.defined() && version_of(value.strong) == version) return true;
  if (value.is_capture() || !can_run_again(ops_[value.producer])) {
    const at::Tensor t = value.lock();
    if (!t.defined() || version_of(t) != version) return false;
    if (value.hold.expired() && std::find(origins.begin(), origins.end(), id) == origins.end()) origins.push_back(id);
    return true;
  }
  const auto& refs = ops_[value.producer].refs;
  return value.version == version && depth < kRunAgainAtMost &&
         std::all_of(refs.begin(), refs.end(), [&](const TapeRef& ref) { return find_origins(ref.value, ref.version, depth + 1, origins); });
}

std::shared_ptr<Hold> Tape::hold_origins(TapeValueId id) {
  if (auto known = values_[id].hold.lock()) return known;
  std::vector<TapeValueId> origins;
  if (!find_origins(id, values_[id].version, 0, origins)) origins = {id};
  int64_t bytes = 0;
  for (TapeValueId origin : origins) bytes += values_[origin].bytes();
  const at::Tensor t = values_[id].lock();
  if (origins.empty() || !t.defined() || !affordable(t, held_for_origins_ + bytes, kShareOfOrigins)) return nullptr;
  held_for_origins_ += bytes;
  auto all = std::make_shared<Hold>();
  for (TapeValueId origin : origins) {
    if (origin == id) {
      all->tensor = t;
    } else {
      all->origins.push_back(hold(origin));
    }
  }
  values_[id].hold = all;
  return all;
}

// Note [Small things that are gone]
// A mask is made in a function, of an arange that is gone when the function returns. Only the mask enters the differentiable part, and by then it may be
// as large as the batch is. So what is small, what no operator can make again, and what an operator without gradient reads, is held from then on, until
// nothing descends from it, or the tape is cut: all of that under one part in four hundred of the memory in use. Only memory that the tensor has for itself,
// and PyTorch gave: what others may write to (an array of NumPy's, the rest of a buffer) would not be what it was.
void Tape::hold_small(at::ArrayRef<c10::IValue> arguments) {
  size_t ref = 0;
  for_each_tensor(arguments, [&](const at::Tensor& t, int, int) {
    const TapeRef& r = pending_->refs[ref++];
    TapeValue& value = values_[r.value];
    if (value.strong.defined() || value.requires_grad || value.differentiable() || !value.hold.expired() || groups_[value.group].pinned) return;
    if (!value.is_capture() && can_run_again(ops_[value.producer])) return;
    if (storage_of(t) == nullptr || version_of(t) != r.version || find(t.unsafeGetTensorImpl()) != r.value) return;
    const auto bytes = static_cast<int64_t>(t.storage().nbytes());
    if (bytes > kSmallAtMost || !t.storage().resizable() || t.storage().use_count() != 1) return;
    if (!affordable(t, held_small_ + bytes, kShareOfSmall)) return;
    held_small_ += bytes;
    value.strong = t;
    value.small = bytes;
  });
}

void Tape::hold_inputs(at::ArrayRef<c10::IValue> arguments, at::ArrayRef<c10::IValue> results) {
  std::vector<std::shared_ptr<Hold>> holds;
  size_t ref = 0;
  for_each_tensor(arguments, [&](const at::Tensor& t, int, int) {
    const TapeValueId id = pending_->refs[ref++].value;
    TapeValue& value = values_[id];
    // What is differentiable is held by the graph where it needs to be. What is written to was something else before.
    if (value.strong.defined() || value.differentiable() || find(t.unsafeGetTensorImpl()) != id) return;
    value.entered = true;
    auto kept = !value.is_capture() && can_run_again(ops_[value.producer]) ? hold_origins(id) : hold(id);
    if (kept) holds.push_back(std::move(kept));
  });
  if (holds.empty()) return;
  torch::autograd::Node* last = nullptr;
  for_each_tensor(results, [&](const at::Tensor& t, int, int) {
    auto* node = const_cast<torch::autograd::Node*>(node_of(t));
    // A node from before the call came with an argument that was handed back.
    if (node != nullptr && node != last && node->sequence_nr() >= sequence_before_ && node->name() != kRegionNode) node->add_pre_hook(std::make_unique<HoldHook>(holds));
    last = node;
  });
}

void Tape::commit(at::ArrayRef<c10::IValue> arguments, at::ArrayRef<c10::IValue> results) {
  for (const at::Tensor& t : silent_) index_.erase(t.unsafeGetTensorImpl());  // what the call has read is no more
  silent_.clear();
  for (const auto& [t, version] : std::exchange(written_, {})) {
    if (version_of(t) == version) forget_written(t);
  }
  if (!record_) return;
  const TapeValueId first_new = static_cast<TapeValueId>(values_.size());
  bool followed = true;
  for_each_tensor(results, [&](const at::Tensor& t, int, int) { followed &= follows(*t.unsafeGetTensorImpl()); });
  if (!followed) {  // what it is made of cannot be made in parts from here on
    cut();
    return;
  }
  bool differentiable = false, own_node = false;
  const auto look_at = [&](const at::Tensor& t) {
    const torch::autograd::Node* node = node_of(t);
    differentiable |= node != nullptr;
    own_node |= node != nullptr && !is_builtin(*node) && node->sequence_nr() >= sequence_before_;
  };
  for (const c10::IValue& v : results) {
    if (v.isTensor()) {
      if (v.toTensor().defined()) {
        look_at(v.toTensor());
        add_output(v.toTensor(), arguments);
      } else {
        pending_->outputs.push_back(kNoTapeValue);
      }
    } else if (v.isList()) {
      for (const c10::IValue& element : v.toListRef()) {
        if (element.isTensor() && element.toTensor().defined()) {
          look_at(element.toTensor());
          add_output(element.toTensor(), arguments);
        } else {
          pending_->outputs.push_back(kNoTapeValue);
        }
      }
    }
  }
  if (values_.size() != first_new) {
    if (differentiable) {
      hold_inputs(arguments, results);
    } else {
      hold_small(arguments);
    }
    if (differentiable && !differentiable_) {
      differentiable_ = true;
      first_node_ = sequence_before_;
      if (!replay_) facts().on_forward();
    }
    if (own_node) own_nodes_.emplace_back(sequence_before_, at::sequence_number::peek());
    ops_.push_back(std::move(*pending_));
  }
  pending_.reset();
  record_ = false;
  if (capture_hangs_on_tape_) {  // see Note [Tensors that come back changed]: it may never come back, and be what backward starts from
    cut();
    return;
  }
  if (ops_.size() < collect_at_ && values_.size() < 8 * collect_at_) return;
  collect();
  // A loop without gradients whose state descends from itself (a running total, a sampler) has no backward to end it.
  if (!differentiable_ && ops_.size() > kWithoutGradientsAtMost) cut();
}

void Tape::pin(const at::Tensor& tensor) {
  const TapeValueId id = find(tensor.unsafeGetTensorImpl());
  if (id != kNoTapeValue) groups_[values_[id].group].pinned = true;
}

void Tape::pin_storage(const c10::StorageImpl* storage) {
  for (const TapeValue& value : values_) {
    if (value.weak.expired()) continue;
    const at::Tensor t = value.lock();
    if (t.defined() && storage_of(t) == storage) groups_[value.group].pinned = true;
  }
}

void Tape::settle(const at::Tensor& tensor) {
  const TapeValueId id = find(tensor.unsafeGetTensorImpl());
  if (id != kNoTapeValue && !values_[id].is_capture()) cut();
}

void Tape::cut() {
  for (TapeValue& value : values_) {
    if (const auto hold = value.hold.lock()) hold->tensor.reset();
  }
  ops_.clear();
  values_.clear();
  groups_.clear();
  states_.clear();
  index_.clear();
  pending_.reset();
  record_ = false;
  differentiable_ = false;
  held_for_origins_ = 0;
  held_small_ = 0;
  effects_under_hooks_ = false;
  capture_hangs_on_tape_ = false;
  own_nodes_.clear();
  collect_at_ = kCollectAtLeast;
}

void Tape::collect() {
  // Backwards: an operator is needed when an output of it is alive, or is read by a needed operator.
  std::vector<char> needed_value(values_.size(), 0);
  std::vector<char> needed_op(ops_.size(), 0);
  std::vector<char> needed_group(groups_.size(), 0);  // for writes through one alias that another alias shows
  const auto need = [&](TapeValueId v) {
    needed_value[v] = 1;
    needed_group[values_[v].group] = 1;
  };
  for (size_t v = 0; v < values_.size(); ++v) {
    if (!values_[v].is_capture() && values_[v].held_elsewhere()) need(static_cast<TapeValueId>(v));
  }
  for (size_t i = ops_.size(); i-- > 0;) {
    for (TapeValueId out : ops_[i].outputs) {
      if (out == kNoTapeValue) continue;
      if (needed_value[out] || (ops_[i].in_place && needed_group[values_[out].group])) needed_op[i] = 1;
    }
    if (!needed_op[i]) continue;
    for (const TapeRef& ref : ops_[i].refs) need(ref.value);
  }
  for (size_t i = 0; i < ops_.size(); ++i) {
    if (!needed_op[i]) continue;
    for (TapeValueId out : ops_[i].outputs) {
      if (out != kNoTapeValue) needed_value[out] = 1;
    }
  }

  facts().on_forgotten(ops_, values_, needed_op);
  compact(needed_value, needed_op);
  collect_at_ = std::max(kCollectAtLeast, ops_.size() + ops_.size() / 2);
}

void Tape::keep_apart(const std::vector<char>& taken, const std::function<bool(const at::Tensor&)>& captured) {
  discard();
  std::vector<char> needed_value(values_.size(), 0);
  std::vector<char> needed_op(ops_.size(), 0);
  std::vector<char> taken_group(groups_.size(), 0);
  for (size_t v = 0; v < values_.size(); ++v) taken_group[values_[v].group] |= taken[v];
  const auto apart = [&](TapeValueId v) { return v == kNoTapeValue || taken_group[values_[v].group] == 0; };
  for (size_t i = 0; i < ops_.size(); ++i) {
    const auto& refs = ops_[i].refs;
    if (!std::all_of(ops_[i].outputs.begin(), ops_[i].outputs.end(), apart)) continue;
    if (!std::all_of(refs.begin(), refs.end(), [&](const TapeRef& r) { return apart(r.value) && (values_[r.value].is_capture() || needed_value[r.value]); })) continue;
    needed_op[i] = 1;
    for (const TapeRef& ref : refs) needed_value[ref.value] = 1;
    for (TapeValueId out : ops_[i].outputs) {
      if (out != kNoTapeValue) needed_value[out] = 1;
    }
  }
  // What has been taken must not hang on what stays: that would change under it when it is taken in turn.
  for (size_t v = 0; v < values_.size(); ++v) {
    const TapeValue& value = values_[v];
    const at::Tensor t = needed_value[v] && !value.is_capture() && value.differentiable() ? value.lock() : at::Tensor();
    if (t.defined() && captured(t)) {
      cut();
      return;
    }
  }
  compact(needed_value, needed_op);
}

// What stays moves down in place: the vectors keep their memory.
void Tape::compact(const std::vector<char>& needed_value, const std::vector<char>& needed_op) {
  std::vector<TapeValueId> new_id(values_.size(), kNoTapeValue);
  std::vector<int32_t> new_op(ops_.size(), kNoProducer);
  size_t ops = 0;
  for (size_t i = 0; i < ops_.size(); ++i) {
    if (!needed_op[i]) continue;
    new_op[i] = static_cast<int32_t>(ops);
    if (ops != i) ops_[ops] = std::move(ops_[i]);
    ++ops;
  }
  ops_.erase(ops_.begin() + static_cast<ptrdiff_t>(ops), ops_.end());
  std::vector<Group> groups;
  std::vector<uint32_t> new_group(groups_.size(), UINT32_MAX);
  index_.clear();
  size_t values = 0;
  for (size_t v = 0; v < values_.size(); ++v) {
    TapeValue& value = values_[v];
    if (!needed_value[v]) {
      held_small_ -= value.small;
      continue;
    }
    new_id[v] = static_cast<TapeValueId>(values);
    if (new_group[value.group] == UINT32_MAX) {
      new_group[value.group] = static_cast<uint32_t>(groups.size());
      groups.push_back(groups_[value.group]);
    }
    value.group = new_group[value.group];
    if (!value.is_capture()) value.producer = new_op[value.producer];
    if (!value.weak.expired() && !value.is_copied()) index_[value.weak._unsafe_get_target()] = new_id[v];
    if (values != v) values_[values] = std::move(value);
    ++values;
  }
  values_.erase(values_.begin() + static_cast<ptrdiff_t>(values), values_.end());
  for (TapeOp& op : ops_) {
    for (TapeRef& ref : op.refs) ref.value = new_id[ref.value];
    for (TapeValueId& out : op.outputs) {
      if (out != kNoTapeValue) out = new_id[out];
    }
  }
  groups_ = std::move(groups);
}

}  // namespace koila
