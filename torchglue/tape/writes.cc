#include "torchglue/tape/tape.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstdlib>
#include <new>
#include <string>
#include <utility>

#include "torchglue/base/foreign_memory.h"
#include "torchglue/base/saved_hooks.h"
#include "torchglue/base/tensor_memory.h"
#include "torchglue/op_traits.h"
#include "torchglue/operators/saved.h"
#include "torchglue/statistics/running_arguments.h"

namespace koila {

namespace {

// Of the CPU, outside of the tensors that are counted: the program did not ask for it.
at::Tensor copy_of(const at::Tensor& t) {
  const NoInterceptGuard no_intercept;
  const at::NoGradGuard no_grad;
  const NoInferenceMode no_inference;  // it has a version
  if (!t.is_cpu() || !t.is_non_overlapping_and_dense() || t.numel() == 0) return t.clone();
  void* data = std::malloc(t.nbytes());
  if (data == nullptr) throw std::bad_alloc();
  const at::Tensor copy = at::for_blob(data, t.sizes()).strides(t.strides()).deleter([](void* block) { std::free(block); }).options(t.options().requires_grad(false)).make_tensor();
  copy.copy_(t);
  return copy;
}

bool reads(const TapeOp& op, TapeValueId id) {
  return std::any_of(op.refs.begin(), op.refs.end(), [&](const TapeRef& ref) { return ref.value == id; });
}

}  // namespace

// Note [Losses that are added up]
// `loss = torch.zeros(1)`, and then `loss += part` for each part: a differentiable value is written into a constant, whose graph would end the tape (see Note [Tensors that come back changed]).
// On the tape it is the operator that makes a new tensor, of a copy of what the constant was before; what it has made is the program's own tensor. That holds for a small tensor with memory that
// it has for itself, and that nobody else can look at.
std::optional<Tape::WrittenInto> Tape::written_into(const c10::OperatorHandle& op, const OpTraits& traits, at::ArrayRef<c10::IValue> arguments) {
  if (traits.metadata || !c10::AutogradState::get_tls_state().get_grad_mode()) return std::nullopt;
  const at::Tensor t = arguments[0].toTensor();
  if (!t.defined() || t.requires_grad() || t.is_view() || t.is_inference() || storage_of(t) == nullptr) return std::nullopt;
  if (t.storage().nbytes() > kSmallAtMost || !t.storage().resizable() || t.storage().use_count() != 1) return std::nullopt;
  bool differentiable = false, alike = true;
  for_each_tensor(arguments, [&](const at::Tensor& other, int arg, int) {
    differentiable |= other.requires_grad();
    alike &= other.scalar_type() == t.scalar_type() && other.device() == t.device() && (arg == 0 || !other.is_same(t));
  });
  if (!differentiable || !alike) return std::nullopt;
  constexpr std::string_view kAddUp[] = {"aten::add", "aten::sub", "aten::mul", "aten::div"};  // aten::copy has no derivative
  const std::string_view twin = functional_twin(op.schema().name());
  if (std::find(std::begin(kAddUp), std::end(kAddUp), twin) == std::end(kAddUp)) return std::nullopt;
  const auto instead = c10::Dispatcher::singleton().findSchema({std::string(twin), op.schema().overload_name()});
  if (!instead || instead->schema().arguments().size() != arguments.size()) return std::nullopt;
  return WrittenInto{*instead, copy_of(t)};
}

// Who reads it from now on reads what the call has made; who read it before has a copy.
void Tape::forget_constant(const at::Tensor& written) {
  c10::TensorImpl* impl = written.unsafeGetTensorImpl();
  index_.erase(impl);
  for (TapeValue& value : values_) {
    if (value.weak._unsafe_get_target() != impl || value.is_copied()) continue;
    value.weak.reset();
    value.strong.reset();
  }
}

// A write through an alias that shows no version (`parameter.data`).
void Tape::note_write_behind(const at::Tensor& tensor) {
  const void* storage = storage_of(tensor);
  if (storage == nullptr) return;
  const TapeValueId known = find(tensor.unsafeGetTensorImpl());
  for (TapeValueId id = 0; id < values_.size(); ++id) {
    TapeValue& value = values_[id];
    if (!value.lies_in(storage) || value.is_copied() || (known != kNoTapeValue && value.group == values_[known].group)) continue;
    if (value.is_capture()) keep_copy(id);
    if (!part_from_tensor(id)) return;
  }
}

// Who reads its tensor from now on reads another value. Who read it before has a copy, or makes do without; what the step has made, such as the statistics of a model that is made in its first step, or copied, is
// made again as it was. False: a graph may have saved what the step has made, or an optimizer has moved what a pass went by, and the tape was cut.
bool Tape::part_from_tensor(TapeValueId id) {
  TapeValue& value = values_[id];
  // A view of a capture that was copied is made again of the copy, and known for what has been written to since.
  const auto is_copied = [&](const TapeValue& other) { return other.group == value.group && other.is_capture() && other.is_copied(); };
  const bool of_copy = !value.is_capture() && !value.requires_grad && !value.differentiable() && groups_[value.group].on_capture && std::any_of(values_.begin(), values_.end(), is_copied);
  if (value.is_capture() ? has_run_ && value.requires_grad : !of_copy && may_be_in_graph(id)) {
    cut();
    return false;
  }
  index_.erase(value.weak._unsafe_get_target());
  if (value.is_copied()) return true;
  value.weak.reset();
  value.strong.reset();
  return true;
}

// Whether a graph has the value, or may have saved it: then it is what it has become. Any other is made again as it was.
bool Tape::may_be_in_graph(TapeValueId id) const {
  const TapeValue& value = values_[id];
  if (value.requires_grad || value.differentiable()) return true;
  return std::any_of(ops().begin(), ops().end(), [&](const TapeOp& op) { return reads(op, id) && makes_graph(op); });
}

// Note [Captures that are written to]
// A codebook that a forward pass reads and then moves, a counter, a mean of what has been seen: a step that is made again must read what it
// read. A small one is copied before the write, and the copy takes its place in what has been recorded. The
// tensor itself stays known: what gradients read of it is what it is by then, see Note [Captures that change]. Who reads it after the write reads another value, which is what it is now: labels that
// are masked in place before the model sees them.
void Tape::keep_before_write(const at::Tensor& tensor) {
  const TapeValueId id = find(tensor.unsafeGetTensorImpl());
  if (id == kNoTapeValue || !groups_[values_[id].group].on_capture) return;
  for (TapeValueId v = 0; v < values_.size(); ++v) {
    if (values_[v].group == values_[id].group && values_[v].is_capture()) keep_copy(v);
  }
}

// Of a capture, where there is room, and operators of the step have read it.
void Tape::keep_copy(TapeValueId id) {
  TapeValue& value = values_[id];
  if (value.requires_grad) return;
  auto impl = value.weak.lock();
  if (!impl || (value.strong.defined() && value.strong.unsafeGetTensorImpl() != impl.get())) return;  // copied already
  const at::Tensor t(std::move(impl));
  if (version_of(t) != value.version || storage_of(t) != value.storage) return;
  if (std::none_of(ops().begin(), ops().end(), [&](const TapeOp& op) { return reads(op, id); })) return;
  if (!affordable(t, held_for_origins_ + value.bytes(), kShareOfOrigins)) return;
  held_for_origins_ += value.bytes();
  try {
    value.strong = copy_of(t);
  } catch (const std::exception&) {  // no room: the step is refused, should it run out
    return;
  }
  value.strong.unsafeGetTensorImpl()->set_version_counter(c10::VariableVersion(value.version));
}

// Note [Writes that no version counts]
// A batch norm moves its running statistics without a word, and some operators that name what they write to count no version up (an observer of a fake
// quantisation, a fused optimizer). What a graph has saved of it is then what is there when backward comes, and so is what a region's gradients read
// (see Note [Captures that change]). On the tape the tensor is another one from then on, and who read it before has the copy, or makes do without.
void Tape::before_silent_write(const at::Tensor& tensor) {
  forget_exposed(tensor);
  if (values_.empty()) return;
  keep_before_write(tensor);
  forget_written(tensor);
}

void Tape::before_resize(const c10::StorageImpl* storage) {
  const auto lies_there = std::find_if(values_.begin(), values_.end(), [&](const TapeValue& value) { return value.lies_in(storage); });
  if (lies_there == values_.end()) return;
  const at::Tensor t(lies_there->weak.lock());
  before_silent_write(t);
}

void Tape::forget_written(const at::Tensor& tensor) {
  if (storage_of(tensor) == nullptr) return;
  for (TapeValueId id = 0; id < values_.size(); ++id) {
    TapeValue& value = values_[id];
    // Another value has taken the place of one that is not found: what reads it has its copy, or makes do without.
    if (!value.lies_in(storage_of(tensor)) || find(value.weak._unsafe_get_target()) != id) continue;
    if (!part_from_tensor(id)) return;
  }
}

void Tape::begin_writes(const c10::OperatorHandle& op, const OpTraits& traits, at::ArrayRef<c10::IValue> arguments) {
  written_.clear();
  if (traits.writes && !values_.empty()) {
    for_each_written(op.schema(), arguments, [&](const at::Tensor& t, int) {
      if (has_run_ && t.requires_grad() && t.is_leaf() && find(t.unsafeGetTensorImpl()) != kNoTapeValue) return cut();
      keep_before_write(t);
      if (traits.metadata) return;
      note_write_behind(t);
      if (!t.is_inference()) written_.emplace_back(t, version_of(t));
    });
  }
  if (!effects_under_hooks_ && NoSavedTensorHooksGuard::active()) effects_under_hooks_ = has_effect(op, arguments, at::SavedTensorDefaultHooks::get_tls_state());
  silent_.clear();
  if (!traits.silent_effect) return;
  if (uses_batch_statistics(op.schema(), arguments)) silent_ = running_statistics(op.schema(), arguments);
  for (const at::Tensor& t : silent_) before_silent_write(t);
}

void Tape::commit_writes() {
  for (const at::Tensor& t : silent_) index_.erase(t.unsafeGetTensorImpl());  // what the call has read is no more
  silent_.clear();
  if (written_.empty()) return;
  for (const auto& [t, version] : written_) {
    if (version_of(t) == version) forget_written(t);
  }
  written_.clear();
}

// Note [Effects in a checkpoint]
// A checkpoint runs its part of the model again in backward, with whatever effects that has: a batch norm's statistics move twice, and what it draws without preserve_rng_state is drawn
// anew; a batch norm in evaluation reads what another one has moved since. In micro-batches it would not be run again, so such a step stays as it is.
bool Tape::has_effect(const c10::OperatorHandle& op, at::ArrayRef<c10::IValue> arguments, const at::impl::SavedTensorDefaultHooksTLS& hooks) const {
  const OpTraits& traits = op_traits(op);
  if (traits.random && draws_anew_in_checkpoint(hooks)) return true;
  bool effect = traits.silent_effect && !running_statistics(op.schema(), arguments).empty();
  if (traits.writes) {
    for_each_tensor(arguments.slice(0, 1), [&](const at::Tensor& t, int, int) {
      const TapeValueId known = find(t.unsafeGetTensorImpl());
      effect |= !t.requires_grad() && (known == kNoTapeValue || groups_[values_[known].group].on_capture);
    });
  }
  return effect && is_of_checkpoint(hooks);
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
  for (const TapeOp& op : ops()) {
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

void Tape::given_memory(const at::Tensor& tensor) {
  const TapeValueId id = find(tensor.unsafeGetTensorImpl());
  if (id != kNoTapeValue) values_[id].storage = storage_of(tensor);
}

void Tape::settle(const at::Tensor& tensor) {
  const TapeValueId id = find(tensor.unsafeGetTensorImpl());
  if (id != kNoTapeValue && !values_[id].is_capture()) cut();
}

}  // namespace koila
