// Operators join a region.

#include <ATen/EmptyTensor.h>
#include <ATen/OpMathType.h>
#include <ATen/TensorUtils.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <mutex>

#include "runtime/fork_lock.h"
#include "torchglue/base/followed.h"
#include "torchglue/base/graph_walk.h"
#include "torchglue/base/source_line.h"
#include "torchglue/base/tensor_memory.h"
#include "torchglue/memory/origin.h"
#include "torchglue/oom/events.h"
#include "torchglue/oom/oom.h"
#include "torchglue/oom/python_error.h"
#include "torchglue/op_traits.h"
#include "torchglue/operators/saved.h"
#include "torchglue/proof/invariants.h"
#include "torchglue/proof/key.h"
#include "torchglue/proof/proof.h"
#include "torchglue/region/deferred.h"
#include "torchglue/region/layout.h"
#include "torchglue/region/node.h"
#include "torchglue/region/random_scope.h"
#include "torchglue/region/real_values.h"
#include "torchglue/region/recovery.h"
#include "torchglue/region/region.h"
#include "torchglue/step/session.h"
#include "torchglue/tape/written_since.h"

namespace koila {

namespace {

// Its inner operators say which result looks at what: a write to one must show in the other.
struct UndeclaredView : CannotJoin {
  const char* what() const noexcept override { return "a result that looks at an argument, which its schema does not say"; }
};

struct NotDense : CannotJoin {
  const char* what() const noexcept override { return "a result that is no dense tensor"; }
};

// contiguous() of one row may find nothing to do where the full batch is copied: then micro-batches clone, which takes the same arguments.
bool copies_at_full_size(const c10::OperatorHandle& op, at::ArrayRef<c10::IValue> arguments) {
  if (op.schema().name() != "aten::contiguous") return false;
  const auto format = arguments[1].isNone() ? c10::MemoryFormat::Contiguous : arguments[1].toMemoryFormat();
  return !arguments[0].toTensor().is_contiguous(format);
}

// See Note [Sums of half precision].
bool is_half(at::ScalarType type) { return at::toOpMathType(type) != type; }

bool gives_partial(const Region::Call& call) {
  return std::any_of(call.answer.outputs().begin(), call.answer.outputs().end(), [](const Placement& p) { return p.is_partial(); });
}

// The type of what it gives is asked for by its arguments, and is not its operand's.
bool converts(const c10::OperatorHandle& op) {
  const std::string& name = op.schema().name();
  return name == "aten::to" || name == "aten::type_as" || name == "aten::_to_copy" || name == "aten::_autocast_to_reduced_precision" || name == "aten::_autocast_to_full_precision";
}

// Autocast rounds single precision to half on purpose, on the way into the operator.
bool may_run_in_float(const Instruction& in, const Region::Call& call) {
  if (in.keeps_float || converts(in.op) || !gives_partial(call)) return false;
  if (in.state.excluded.has(c10::DispatchKey::AutocastCPU) && in.state.excluded.has(c10::DispatchKey::AutocastCUDA)) return true;
  bool half = true;
  for_each_tensor(call.arguments, [&](const at::Tensor& t, int, int) { half &= !can_be_scaled(t.scalar_type()) || is_half(t.scalar_type()); });
  return half;
}

// The type that a result has for the program, whose sum runs in `local`'s. `first`: the operator's first operand, for the program.
at::ScalarType type_for_program(at::ScalarType local, at::ScalarType first) {
  if (local == at::toOpMathType(first)) return first;
  return c10::isComplexType(first) && local == c10::toRealValueType(at::toOpMathType(first)) ? c10::toRealValueType(first) : local;
}

// Whether the full batch's result may lie in memory otherwise than a micro-batch's.
bool order_is_open(at::ArrayRef<c10::IValue> arguments, const at::Tensor& local) {
  bool open = !local.is_contiguous();
  for_each_tensor(arguments, [&](const at::Tensor& t, int, int) { open |= t.layout() == at::kStrided && !t.is_contiguous(); });
  return open;
}

// Whether the operator's result shares its argument's storage at the full batch as well. In micro-batches of one row more reshapes are
// views than at full size.
bool aliases_at_full_size(const std::string& name, const at::Tensor& full, at::IntArrayRef sizes) {
  if (name == "aten::reshape" || name == "aten::flatten" || name == "aten::reshape_as" || name == "aten::ravel") {
    return at::detail::computeStride(full.sizes(), full.strides(), at::DimVector(sizes)).has_value();
  }
  return true;
}

ForkLock of_dead;  // of every region's list of tensors that died on other threads

// A view holds its base, and the base may be a value of the region that reads the view: the two would hold each other. A view that takes no gradient is
// read through a handle that has no base.
at::Tensor without_base(const at::Tensor& tensor) {
  return tensor.requires_grad() || torch::autograd::impl::get_view_autograd_meta(tensor) == nullptr ? tensor : handle_of(tensor);
}

}  // namespace

Region::Region(int64_t batch, int64_t micro_batch, at::Device device) : batch_(batch), micro_batch_(micro_batch), device_(device), depth_(session().engine_depth), side_(device) {
  first_.rows = {0, micro_batch};
  first_.grad = true;
}

Region::~Region() {
  release();
  if (deferred_registry().any()) deferred_registry().forget(this);
}

bool Region::has_deferred() const {
  return std::any_of(values_.begin(), values_.end(), [&](const Value& v) { return v.impl != nullptr && !groups_[v.group].materialised; });
}

void Region::close() { open_ = false; }

void Region::consume(ValueId value) { values_[value].consumed = true; }

void Region::hand_over(ValueId id, const at::Tensor& tensor, bool whole) {
  materialise({id});
  if (tensor.requires_grad()) consume(id);
  deferred_registry().remove(tensor.unsafeGetTensorImpl());
  if (values_[id].placement.is_shard() && !whole) session().marks.add(tensor, values_[id].placement, batch_, micro_batch_);
}

void Region::hand_out_group(ValueId id) {
  const uint32_t group = values_[id].group;
  for (ValueId other = 0; other < values_.size(); ++other) {
    Value& value = values_[other];
    if (value.group != group || value.impl == nullptr) continue;
    if (other != id && value.requires_grad && c10::AutogradState::get_tls_state().get_grad_mode()) {
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

void Region::before_exchange(const c10::StorageImpl* storage) {
  const auto lies_there = [&](ValueId id) { return groups_[values_[id].group].materialised && groups_[values_[id].group].filled == storage; };
  const auto reads = [&](const Operand& o) {
    if (o.kind == Operand::Kind::kValue) return lies_there(o.id);
    if (o.kind != Operand::Kind::kUse) return false;
    const at::Tensor& t = captures_[uses_[o.id].capture].tensor;
    return t.defined() && storage_of(t) == storage;
  };
  for (const Instruction& in : instructions_) {
    if (std::none_of(in.outputs.begin(), in.outputs.end(), [&](ValueId out) { return out != kNoValue && values_[out].requires_grad; })) continue;
    if (may_save_result(in.op.schema())) exchanged_saved_ |= std::any_of(in.outputs.begin(), in.outputs.end(), [&](ValueId out) { return out != kNoValue && lies_there(out); });
    if (!may_save_operands(in.op.schema())) continue;
    for (const Argument& argument : in.arguments) exchanged_saved_ |= std::any_of(argument.operands.begin(), argument.operands.end(), reads);
  }
  // Nobody has saved it, or the pass is refused: what is sent need not be looked at again.
  std::vector<char> written_before;
  for (const Capture& capture : captures_) written_before.push_back(capture.before.defined());
  if (captures_storage(storage)) before_write(storage);
  for (size_t c = 0; c < captures_.size() && c < written_before.size(); ++c) {
    Capture& capture = captures_[c];
    if (!capture.before.defined() || written_before[c]) continue;
    capture.tensor = std::exchange(capture.before, at::Tensor());
    capture.version = version_of(capture.tensor);
    capture.data = memory_of(capture.tensor);
  }
  for (ValueId id = 0; id < values_.size(); ++id) {
    if (values_[id].impl != nullptr && lies_there(id)) hand_out_exchanged(id);
  }
}

NodePtr Region::node() const { return node_ == nullptr ? NodePtr() : RegionNode::owner(node_); }

uint32_t Region::capture(const at::Tensor& tensor) {
  if (tensor.requires_grad()) tensor.grad_fn();  // which a view of what was written to makes anew when it is asked for
  const uint32_t version = version_of(tensor);
  auto it = capture_index_.find(tensor.unsafeGetTensorImpl());
  if (it != capture_index_.end()) {
    const Capture& known = captures_[it->second];
    if (known.version == version && known.requires_grad == tensor.requires_grad() && known.graph == koila::node_of(tensor)) return it->second;
  }
  // The tape must not make something else of it, or of the graph that it hangs on, now that this region reads it.
  if (!session().converting) session().tape.settle(tensor);
  let_go_of_region(tensor);
  const auto id = static_cast<uint32_t>(captures_.size());
  capture_index_.insert_or_assign(tensor.unsafeGetTensorImpl(), id);
  captures_.push_back({without_base(tensor), version, memory_of(tensor), tensor.requires_grad(), -1, {}, koila::node_of(tensor),
                       c10::weak_intrusive_ptr<c10::TensorImpl>(tensor.getIntrusivePtr())});
  if (const at::Tensor written = written_since().original_of(tensor); written.defined()) {
    let_go_of_region(written);
    captures_[id].before = tensor;
    captures_[id].tensor = without_base(written);
    captures_[id].data = memory_of(written);
  }
  if (captures_[id].requires_grad && node_ != nullptr) static_cast<RegionNode*>(node_)->add_capture(captures_[id]);
  return id;
}

uint32_t Region::use(uint32_t capture, const Placement& placement) {
  for (uint32_t u = 0; u < uses_.size(); ++u) {
    if (uses_[u].capture == capture && uses_[u].placement == placement) return u;
  }
  uses_.push_back({capture, placement});
  return static_cast<uint32_t>(uses_.size() - 1);
}

// Where an operator is called, for what is said if a check finds it wrong; looked for as long as that may be.
uint32_t Region::line_to_tell_of(const c10::OperatorHandle& op) const {
  Session& s = session();
  constexpr int kTimes = 3;  // that a step like this one may still be a new one to the check
  if (!s.verifies() || s.owner != std::this_thread::get_id()) return 0;
  if (!s.verifies_always() && ++s.proven.lines[combined(combined(std::hash<const void*>()(&op.schema()), instructions_.size()), static_cast<size_t>(batch_))] > kTimes) return 0;
  return python_line_now();
}

Instruction Region::instruction_for(const Call& call) {
  const OpTraits& traits = op_traits(call.op);
  const auto& instead = call.answer.instead();
  const bool copies = copies_at_full_size(call.op, call.arguments);
  Instruction in{copies ? c10::Dispatcher::singleton().findSchemaOrThrow("aten::clone", "") : instead ? c10::Dispatcher::singleton().findSchemaOrThrow(instead->name.c_str(), instead->overload.c_str()) : call.op, {}, {}, OpState::current()};
  if (call.state != nullptr) in.state = *call.state;
  in.in_place = traits.in_place;
  in.random = call.random;
  in.by_user = traits.rule != nullptr && traits.rule->fn.user() != nullptr;
  if (in.random) in.seed = fresh_seed(device_);
  in.place = place_in_progress();
  in.line = in.place != 0 || session().converting ? in.place : line_to_tell_of(in.op);
  in.scale_by_rows = call.answer.outputs_scaled_by_rows();
  in.keeps_float = (traits.may_view || traits.in_place) && !converts(in.op) && gives_partial(call);
  const auto& asked = call.answer.args();
  in.arguments.resize(call.arguments.size());
  // Parameters get their gradients in the order of an operator's arguments, but for the weight of a linear layer, which it transposes. The
  // last to be captured is served first, see Note [Leaves in their turn].
  const size_t last = call.arguments.size() - 1;
  const bool forwards = call.op.schema().name() == "aten::linear";
  for (size_t n = 0; n < call.arguments.size(); ++n) {
    const size_t i = forwards ? n : last - n;
    Argument& argument = in.arguments[i];
    argument.is_tensor = asked[i].is_tensor;
    argument.is_list = asked[i].is_tensor_list;
    if (!argument.is_tensor && !argument.is_list) {
      argument.constant = call.arguments[i];
      continue;
    }
    argument.is_optional_list = call.arguments[i].isOptionalTensorList();
    argument.operands.resize(asked[i].tensors.size());
    const auto join = [&](const at::Tensor& t, int element) {
      const size_t j = element < 0 ? 0 : static_cast<size_t>(element);
      Operand& operand = argument.operands[j];
      Placement placement = asked[i].tensors[j].placement;
      for (const OpCall::Slice& s : call.answer.slices()) {
        if (s.arg.arg == static_cast<int>(i) && (s.arg.element < 0 ? 0u : static_cast<size_t>(s.arg.element)) == j) placement = s.placement;
      }
      const auto entry = deferred_registry().find(t.unsafeGetTensorImpl());
      if (entry.region == this && placement == values_[entry.value].placement) {
        operand = {Operand::Kind::kValue, entry.value, false};
        return;
      }
      // A value of the region that exists, and was taken for the whole that it is: a constant, like any other.
      const NoInterceptGuard no_intercept;
      const at::Tensor read = entry.region == this ? t.detach() : t;
      operand = {Operand::Kind::kUse, use(capture(read), placement), false};
      const Capture& captured = captures_[uses_[operand.id].capture];
      if (captured.requires_grad != read.requires_grad() || captured.graph != koila::node_of(read)) broken(invariant::kCapturesKeepTheirGraph, "an operand of " + call.op.schema().name());
    };
    const c10::IValue& v = call.arguments[i];
    if (v.isTensor()) {
      if (v.toTensor().defined()) join(v.toTensor(), -1);
    } else if (v.isList()) {
      const auto elements = v.toListRef();
      for (size_t j = 0; j < elements.size(); ++j) {
        if (elements[j].isTensor() && elements[j].toTensor().defined()) join(elements[j].toTensor(), static_cast<int>(j));
      }
    }
  }
  for (const auto& [arg, value] : call.answer.replaced()) in.arguments[arg].constant = value;
  for (const OpCall::Literal& literal : call.answer.literals()) {
    in.arguments[literal.arg].literals.emplace_back(literal.element, literal.factor);
  }
  if (instead) {
    for (const c10::IValue& value : instead->more) in.arguments.emplace_back().constant = value;
  }
  for (int arg : call.answer.weighted()) {
    in.arguments[arg].weighted = true;
    for (Operand& operand : in.arguments[arg].operands) operand.weighted = true;
  }
  if (call.answer.denominator()) {
    const std::vector<c10::IValue> full(call.arguments.begin(), call.arguments.end());
    NoInterceptGuard no_intercept;
    at::AutoDispatchBelowADInplaceOrView no_autograd;
    in.denominator = static_cast<int32_t>(use(capture(call.answer.denominator()(full)), Placement::replicate()));
  }
  return in;
}

ValueId Region::new_value(const Placement& placement, uint32_t group, bool requires_grad, bool random) {
  Value& value = values_.emplace_back();
  value.placement = placement;
  value.group = group;
  value.requires_grad = requires_grad;
  value.random = random;
  return static_cast<ValueId>(values_.size() - 1);
}

uint32_t Region::new_group(ValueId base) {
  groups_.emplace_back().base = base;
  return static_cast<uint32_t>(groups_.size() - 1);
}

// Makes `tensor` (fresh, or one the program holds) the deferred tensor of a value. Its storage and strides are set already.
void Region::install(ValueId id, const at::Tensor& tensor) {
  Value& value = values_[id];
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  value.impl = impl;
  value.sizes.assign(impl->sizes().begin(), impl->sizes().end());
  value.strides.assign(impl->strides().begin(), impl->strides().end());
  value.storage_offset = impl->storage_offset();
  value.dtype = tensor.scalar_type();
  impl->set_autograd_meta(std::make_unique<DeferredMeta>(shared_from_this(), impl, id));
  deferred_registry().add(impl, this, id);
  Group& group = groups_[value.group];
  if (!group.materialised && !group.storage) {
    group.storage = tensor.storage();
    deferred_registry().add_storage(storage_of(tensor), this, value.group);
  }
  if (value.requires_grad) attach_gradient(id, tensor);
}

void Region::attach_gradient(ValueId id, const at::Tensor& deferred) {
  NodePtr owner = node();
  if (!owner) {
    owner = make_node<RegionNode>(shared_from_this());
    node_ = owner.get();
    for (Value& value : values_) value.node_output = -1;
    for (Capture& capture : captures_) {
      capture.edge = -1;
      if (capture.requires_grad && capture.tensor.defined()) static_cast<RegionNode*>(node_)->add_capture(capture);
    }
  }
  Value& value = values_[id];
  value.requires_grad = true;
  if (value.node_output < 0) value.node_output = static_cast<RegionNode*>(node_)->add_output(deferred, id);
  torch::autograd::impl::set_gradient_edge(deferred, torch::autograd::Edge(owner, static_cast<uint32_t>(value.node_output)));
}

// A write of something differentiable makes the written tensor, its base and its views differentiable, as far as micro-batch 0 shows. See Note
// [Views that are behind].
void Region::attach_gradients(uint32_t group) {
  const NoInterceptGuard no_intercept;
  for (ValueId id = 0; id < values_.size(); ++id) {
    const Value& value = values_[id];
    if (value.group != group || value.impl == nullptr || value.requires_grad || id >= first_.values.size()) continue;
    const at::Tensor& local = first_.values[id];
    std::vector<torch::autograd::Node*> nodes;
    if (local.defined() && local.requires_grad()) add_nodes_behind(local, nodes);
    if (!nodes.empty()) attach_gradient(id, at::Tensor(c10::intrusive_ptr<c10::TensorImpl>::reclaim_copy(value.impl)));
  }
}

// A new deferred tensor with the storage `storage`.
at::Tensor Region::make_deferred(const at::Tensor& like, at::IntArrayRef sizes, at::IntArrayRef strides, int64_t offset, at::Storage storage) {
  auto impl = like.unsafeGetTensorImpl()->shallow_copy_and_detach(c10::VariableVersion(0), /*allow_tensor_metadata_change=*/true);
  at::Tensor tensor(std::move(impl));
  tensor.unsafeGetTensorImpl()->set_storage_keep_dtype(std::move(storage));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, offset);
  return tensor;
}

std::vector<c10::IValue> Region::add(const Call& call) {
  const OpTraits& traits = op_traits(call.op);
  std::optional<Instruction> joined;

  // Run it for micro-batch 0.
  const RegionWork work;
  const Offload::MayFail may_fail;
  torch::jit::Stack results;
  torch::jit::Stack for_program;  // the results in the program's types, where they are others
  const auto gives_half_sum = [&](const Instruction& in) {
    if (!may_run_in_float(in, call)) return false;
    bool half = false;
    for_each_tensor(results, [&](const at::Tensor& t, int result, int) {
      half |= static_cast<size_t>(result) < call.answer.outputs().size() && call.answer.outputs()[result].is_partial() && is_half(t.scalar_type());
    });
    return half;
  };
  const auto run_in_float = [&](Instruction& in) {
    in.in_float = true;
    try {
      for_program = call_instruction(first_, in);
      std::swap(results, for_program);
    } catch (const std::exception& error) {  // its kernel may know half precision alone
      in.in_float = false;
      if (is_python_interrupt(error) || is_out_of_memory(error)) throw;
      forget_python_error(error);
    }
  };
  Recovery recovery(*this, Recovery::FirstFrame::kFails);
  MicroBatchLoop(recovery).once([this] { return micro_batch_; }, [&] {
    results.clear();
    for_program.clear();
    try {
      if (!joined) note_write(joined.emplace(instruction_for(call)));
      Instruction& in = *joined;
      bury_dead();
      if (first_.next < instructions_.size()) run_first_frame();
      in.in_float = false;
      results = call_instruction(first_, in);
      if (gives_half_sum(in)) run_in_float(in);
    } catch (const std::exception& error) {  // an operator of the program's own may throw anything
      if (is_python_interrupt(error) || is_out_of_memory(error)) throw;
      forget_python_error(error);
      if (joined && joined->in_place) drop_first_frame();  // what it wrote must not stay
      throw FailsOnRows();
    }
  });

  Instruction& in = *joined;

  // The operands' local tensors, beside the arguments they stand for: to see what the results alias.
  struct Local {
    const at::Tensor* full;
    at::Tensor local;
    ValueId value;  // or kNoValue: a capture
  };
  std::vector<Local> locals;
  for_each_tensor(call.arguments, [&](const at::Tensor& t, int arg, int element) {
    const Operand& operand = in.arguments[arg].operands[element < 0 ? 0 : element];
    const bool is_value = operand.kind == Operand::Kind::kValue;
    locals.push_back({&t, is_value ? first_.values[operand.id] : first_.uses[operand.id], is_value ? operand.id : kNoValue});
  });
  bool random = call.random;
  for (const Local& l : locals) random |= l.value != kNoValue && values_[l.value].random;

  std::optional<std::vector<Layout>> on_meta;
  std::optional<torch::jit::Stack> full_views;  // the operator run on the deferred tensors' metadata
  // A tensor of the result's type for the program.
  const auto as_for_program = [&](const at::Tensor& local, int result, int element) {
    if (in.in_float) return element < 0 ? for_program[result].toTensor() : for_program[result].toListRef()[element].toTensor();
    const auto type = in.keeps_float ? type_for_program(local.scalar_type(), locals.front().full->scalar_type()) : local.scalar_type();
    if (type == local.scalar_type()) return local;
    const NoInterceptGuard no_intercept;
    const at::NoGradGuard no_grad;
    return local.detach().to(type);
  };
  int flat = 0;
  const auto one = [&](const at::Tensor& local, int result, int element) -> c10::IValue {
    ++flat;
    if (!local.defined()) {
      in.outputs.push_back(kNoValue);
      return at::Tensor();
    }
    if (local.layout() != at::kStrided || local.is_quantized() || !follows(*local.unsafeGetTensorImpl())) throw NotDense();  // a deferred tensor has no quantizer
    const Placement placement = static_cast<size_t>(result) < call.answer.outputs().size() ? call.answer.outputs()[result] : Placement();
    const Local* same = nullptr;
    const Local* alias = nullptr;
    for (const Local& l : locals) {
      if (l.local.unsafeGetTensorImpl() == local.unsafeGetTensorImpl()) same = &l;
      if (alias == nullptr && storage_of(local) != nullptr && storage_of(l.local) == storage_of(local)) alias = &l;
    }
    if (same != nullptr) {
      // Of one row an operator may hand back an argument that it repeats for many: broadcast_tensors() for a tensor of one row.
      if (placement.is_shard() && placement.dim < local.dim()) {
        std::vector<int64_t> whole = local.sizes().vec();
        whole[placement.dim] = placement.extent(batch_);
        if (same->full->sizes() != at::IntArrayRef(whole)) throw AliasOfCapture();
      }
      if (traits.in_place && flat == 1) {
        const ValueId id = same->value;
        in.outputs.push_back(id);
        same->full->unsafeGetTensorImpl()->bump_version();
        values_[id].random |= random;
        if (has_node(local)) attach_gradients(values_[id].group);
      } else {
        in.outputs.push_back(kNoValue);
      }
      return *same->full;
    }

    // Its shape at the full batch.
    std::vector<int64_t> sizes = local.sizes().vec();
    if (placement.is_shard()) {
      if (placement.dim >= local.dim() || sizes[placement.dim] != placement.extent(first_.rows.begin, first_.rows.end)) throw RuleMismatch();
      sizes[placement.dim] = placement.extent(batch_);
    } else if (placement.is_replicate()) {
      if (local.numel() != 0 || alias != nullptr) throw RuleMismatch();
      in.outputs.push_back(kNoValue);  // an output that was not asked for
      return local.detach();
    } else if (in.scale_by_rows && in.by_user && !can_be_scaled(local.scalar_type())) {
      throw RuleMismatch();
    }

    if (alias != nullptr && alias->value == kNoValue) throw AliasOfCapture();
    if (alias != nullptr && !traits.may_view && traits.composite) throw UndeclaredView();
    if (alias != nullptr && traits.may_view && aliases_at_full_size(call.op.schema().name(), *alias->full, sizes)) {
      if (!full_views) {
        NoInterceptGuard no_intercept;
        at::AutoDispatchBelowADInplaceOrView no_autograd;
        full_views.emplace(call.arguments.begin(), call.arguments.end());
        call.op.callBoxed(*full_views);
      }
      const c10::IValue& v = (*full_views)[result];
      const at::Tensor view = element < 0 ? v.toTensor() : v.toListRef()[element].toTensor();
      if (storage_of(view) != storage_of(*alias->full) || view.sizes() != at::IntArrayRef(sizes)) throw RuleMismatch();
      const ValueId id = new_value(placement, values_[alias->value].group, has_node(local), random);
      in.outputs.push_back(id);
      set_local(first_, id, local);
      install(id, view);
      return view;
    }

    const ValueId id = new_value(placement, 0, has_node(local), random);
    values_[id].group = new_group(id);
    if (alias != nullptr) {
      groups_[values_[id].group].uncertain = true;
      groups_[values_[alias->value].group].uncertain = true;
    }
    in.outputs.push_back(id);
    std::vector<int64_t> strides = dense_strides_like(local, sizes);
    if (placement.is_shard() && local.dim() > 1 && (first_.rows.count() == 1 || order_is_open(call.arguments, local))) {
      if (!on_meta) on_meta = layouts_on_meta(call.op, call.arguments);
      if (static_cast<size_t>(flat) <= on_meta->size()) {
        const Layout& meta = (*on_meta)[static_cast<size_t>(flat) - 1];
        if (meta.sizes == sizes && may_lie_as(meta, call.op, local)) strides = meta.strides;
      }
    }
    set_local(first_, id, laid_out(first_, in, strides, local));
    const at::Tensor like = as_for_program(local, result, element);
    at::Tensor tensor = make_deferred(like, sizes, strides, 0,
                                      empty_storage(at::detail::computeStorageNbytes(sizes, strides, like.element_size()), device_,
                                                    c10::GetAllocator(device_.type())));
    install(id, tensor);
    return tensor;
  };

  std::vector<c10::IValue> answers;
  const size_t values_before = values_.size(), groups_before = groups_.size();
  try {
    for (size_t r = 0; r < results.size(); ++r) {
      if (results[r].isTensor()) {
        answers.push_back(one(results[r].toTensor(), static_cast<int>(r), -1));
      } else if (results[r].isTensorList()) {
        c10::List<at::Tensor> list;
        const auto elements = results[r].toListRef();
        for (size_t j = 0; j < elements.size(); ++j) {
          list.push_back(one(elements[j].toTensor(), static_cast<int>(r), static_cast<int>(j)).toTensor());
        }
        answers.emplace_back(std::move(list));
      } else {
        throw RuleMismatch();
      }
    }
  } catch (const CannotJoin&) {
    answers.clear();
    for (size_t v = values_before; v < values_.size(); ++v) forget(static_cast<ValueId>(v));
    values_.resize(values_before);
    groups_.resize(groups_before);
    if (in.in_place) drop_first_frame();  // what it wrote must not stay
    throw;
  }
  instructions_.push_back(std::move(in));
  first_.next = instructions_.size();
  return answers;
}

std::vector<at::Tensor> Region::add_known(const Call& call, std::vector<KnownOutput> outputs) {
  const OpTraits& traits = op_traits(call.op);
  Instruction in = instruction_for(call);
  note_write(in);
  if (!in.by_user && may_run_in_float(in, call)) {
    in.in_float = std::any_of(outputs.begin(), outputs.end(), [](const KnownOutput& o) { return !o.handed_back.defined() && o.placement.is_partial() && is_half(o.dtype); });
  }
  bool random = call.random;
  for (const Argument& argument : in.arguments) {
    for (const Operand& operand : argument.operands) {
      random |= operand.kind == Operand::Kind::kValue && values_[operand.id].random;
    }
  }
  std::vector<at::Tensor> tensors;
  for (size_t i = 0; i < outputs.size(); ++i) {
    KnownOutput& known = outputs[i];
    if (known.handed_back.defined()) {
      const auto entry = deferred_registry().find(known.handed_back.unsafeGetTensorImpl());
      const bool written = traits.in_place && i == 0 && entry.region == this;
      in.outputs.push_back(written ? entry.value : kNoValue);
      if (written) {
        values_[entry.value].random |= random;
        if (known.requires_grad && !values_[entry.value].requires_grad) attach_gradient(entry.value, known.handed_back);
      }
      tensors.push_back(known.handed_back);
      continue;
    }
    const ValueId id = new_value(known.placement, 0, known.requires_grad, random);
    values_[id].group = known.alias_of != kNoValue ? values_[known.alias_of].group : new_group(id);
    in.outputs.push_back(id);
    Group& group = groups_[values_[id].group];
    at::Storage shared = group.storage;
    if (group.materialised && known.alias_of != kNoValue && values_[known.alias_of].impl != nullptr) {
      shared = values_[known.alias_of].impl->storage();  // it has its value already
    }
    at::Tensor tensor = known.tensor;
    if (tensor.defined()) {
      if (known.keep_data) {
        group.materialised = true;
      } else if (shared && storage_of(tensor) != shared.unsafeGetStorageImpl()) {
        tensor.unsafeGetTensorImpl()->set_storage_keep_dtype(shared);
      }
    } else {
      at::Storage storage = shared ? shared : known.storage;
      if (!storage) {
        storage = empty_storage(at::detail::computeStorageNbytes(known.sizes, known.strides, c10::elementSize(known.dtype), known.storage_offset), device_,
                                c10::GetAllocator(device_.type()));
      }
      if (known.keep_data) group.materialised = true;
      tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), known.keys, c10::scalarTypeToTypeMeta(known.dtype));
      tensor.unsafeGetTensorImpl()->set_sizes_and_strides(known.sizes, known.strides, known.storage_offset);
    }
    install(id, tensor);
    tensors.push_back(std::move(tensor));
  }
  instructions_.push_back(std::move(in));
  return tensors;
}

bool Region::would_cycle(const at::Tensor& tensor) const {
  if (node_ == nullptr || !tensor.requires_grad() || tensor.is_leaf()) return false;
  bool found = false;
  std::vector<torch::autograd::Node*> behind;
  add_nodes_behind(tensor, behind);
  walk_graph(std::move(behind), [&](const torch::autograd::Node* node) {
    found |= node == node_;
    return !found;
  });
  return found;
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

void Region::bury(ValueId id, const c10::TensorImpl* impl) noexcept {
  if (id >= values_.size()) return;
  Value& value = values_[id];
  if (value.impl != impl) return;  // another tensor stands for it by now
  value.impl = nullptr;
  if (!value.consumed && id < first_.values.size()) first_.values[id].reset();
}

void Region::on_death(const c10::TensorImpl* impl, ValueId id) noexcept {
  deferred_registry().remove(impl);
  if (session().owned_by_this_thread()) {
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

// Note [Steps without a backward]
// The same call again may be another tower of this step (an anchor, a positive, a negative), or the next batch of an evaluation loop,
// whose last output the program still holds. Both join; what nothing descends from any more is let go at that moment, with its captures.
// An end to it all: what instructions leave behind is small, and not nothing. And a loop without gradients that collects its outputs would
// keep every input alive for them: after a few batches they are computed.
bool Region::begin_with(uint64_t key, int times) {
  constexpr int kTowersAtMost = 64, kBatchesAtMost = 4;
  int& begun = begun_with_[key];
  if (begun < times) {
    ++begun;
    return true;
  }
  if (!has_deferred()) return false;
  if (begun >= kTowersAtMost) return false;
  if (begun >= times + kBatchesAtMost && !c10::AutogradState::get_tls_state().get_grad_mode()) {
    materialise_held();
    return false;
  }
  prune();
  ++begun;
  return true;
}

void Region::prune() {
  bury_dead();
  const Schedule plan = schedule(in_use());
  std::vector<char> read(captures_.size(), 0);
  for (size_t i = 0; i < instructions_.size(); ++i) {
    Instruction& in = instructions_[i];
    if (!plan.needed[i]) {
      in.arguments.clear();
      in.outputs.clear();
      in.denominator = -1;
      continue;
    }
    if (in.denominator >= 0) read[uses_[in.denominator].capture] = 1;
    for (const Argument& argument : in.arguments) {
      for (const Operand& o : argument.operands) {
        if (o.kind == Operand::Kind::kUse) read[uses_[o.id].capture] = 1;
      }
    }
  }
  for (size_t u = 0; u < uses_.size(); ++u) {
    if (!read[uses_[u].capture] && u < first_.uses.size()) first_.uses[u].reset();
  }
  for (size_t c = 0; c < captures_.size(); ++c) {
    if (read[c] || !captures_[c].tensor.defined()) continue;
    const auto it = capture_index_.find(captures_[c].of._unsafe_get_target());
    if (it != capture_index_.end() && it->second == c) capture_index_.erase(it);
    captures_[c].tensor.reset();
    captures_[c].before.reset();
  }
}

bool Region::captures_storage(const c10::StorageImpl* storage) const {
  return std::any_of(captures_.begin(), captures_.end(), [&](const Capture& c) { return c.tensor.defined() && storage_of(c.tensor) == storage; });
}

bool Region::concerns_storage(const c10::StorageImpl* storage) const {
  return captures_storage(storage) || std::any_of(values_.begin(), values_.end(), [&](const Value& value) {
           const Group& group = groups_[value.group];
           return group.materialised && (group.filled == storage || (value.impl != nullptr && value.impl->unsafe_storage().unsafeGetStorageImpl() == storage));
         });
}

bool Region::is_behind(const at::Tensor& tensor) const {
  const c10::StorageImpl* storage = storage_of(tensor);
  const c10::TensorImpl* own = tensor.unsafeGetTensorImpl();
  const c10::TensorImpl* base = tensor.is_view() ? tensor._base().unsafeGetTensorImpl() : nullptr;
  bool shares = false;
  for (const Value& value : values_) {
    const Group& group = groups_[value.group];
    if (value.impl == nullptr || !group.materialised || group.filled != storage) continue;
    if (value.impl == own || value.impl == base) return false;
    shares = true;
  }
  return shares;
}

void Region::moved(const void* from, const void* to) {
  for (Capture& c : captures_) {
    if (c.data == from && from != nullptr) c.data = to;
  }
}

void Region::give_up(const c10::StorageImpl* storage) {
  for (ValueId id = 0; id < values_.size(); ++id) {
    const Group& group = groups_[values_[id].group];
    if (values_[id].impl != nullptr && group.materialised && group.filled == storage) hand_out_group(id);
  }
}

// Note [Writes to captures]
// A capture is read again when micro-batches are replayed, so a write to it between the operator that read it and the replay would
// be seen where it must not. What the program holds is therefore given its value before the write; and while backward is still to come,
// micro-batches read a copy: see Note [Captures that change].
void Region::before_write(const c10::StorageImpl* storage) {
  materialise_held();
  if (node_ == nullptr) {
    release();
    return;
  }
  drop_first_frame();
  NoInterceptGuard no_intercept;
  at::NoGradGuard no_grad;
  for (Capture& capture : captures_) {
    if (!capture.tensor.defined() || storage_of(capture.tensor) != storage) continue;
    capture_index_.erase(capture.of._unsafe_get_target());
    if (!capture.before.defined()) capture.before = capture.tensor.detach().clone();
  }
}

}  // namespace koila
