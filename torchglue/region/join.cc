// An operator joins a region: it runs for micro-batch 0, and the program gets deferred tensors for what it gives.
#include <ATen/EmptyTensor.h>
#include <ATen/OpMathType.h>
#include <ATen/TensorUtils.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <optional>
#include <utility>
#include <vector>

#include "torchglue/base/followed.h"
#include "torchglue/base/graph_walk.h"
#include "torchglue/base/tensor_memory.h"
#include "torchglue/oom/oom.h"
#include "torchglue/oom/python_error.h"
#include "torchglue/op_traits.h"
#include "torchglue/region/constant_views.h"
#include "torchglue/region/deferred.h"
#include "torchglue/region/half_sums.h"
#include "torchglue/region/layout.h"
#include "torchglue/region/node.h"
#include "torchglue/region/real_values.h"
#include "torchglue/region/recovery.h"
#include "torchglue/region/region.h"
#include "torchglue/step/session.h"

namespace koila {

namespace {

// Its inner operators say which result looks at what: a write to one must show in the other.
struct UndeclaredView : CannotJoin {
  const char* what() const noexcept override { return "a result that looks at an argument, which its schema does not say"; }
};

// How it lies in memory at the full batch cannot be told.
struct LayoutUnknown : CannotJoin {
  const char* what() const noexcept override { return "a result whose order in memory would be shown by a run for which there is no room"; }
};

struct NotDense : CannotJoin {
  const char* what() const noexcept override { return "a result that is no dense tensor"; }
};

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

// A view where the sizes let it be one, and a copy where not.
bool is_reshape(const std::string& name) { return name == "aten::reshape" || name == "aten::flatten" || name == "aten::reshape_as" || name == "aten::ravel"; }

// Whether the operator's result shares its argument's storage at the full batch as well. In micro-batches of one row more reshapes are
// views than at full size.
bool aliases_at_full_size(const std::string& name, const at::Tensor& full, at::IntArrayRef sizes) {
  return !is_reshape(name) || at::detail::computeStride(full.sizes(), full.strides(), at::DimVector(sizes)).has_value();
}

// Whether an operator that gave a copy of a part of `full`, whose rows lie apart (it is split along another dimension than the first), gives no copy of all of it: a write to that is one to `full`.
bool is_copy_of_parts(const c10::FunctionSchema& schema, at::ArrayRef<c10::IValue> arguments, at::IntArrayRef sizes) {
  if (arguments.empty() || !arguments[0].isTensor() || !arguments[0].toTensor().defined() || arguments[0].toTensor().layout() != at::kStrided) return false;
  const at::Tensor& full = arguments[0].toTensor();
  const std::string& name = schema.name();
  if (name == "aten::contiguous") return full.is_contiguous(arguments[1].isInt() ? arguments[1].toMemoryFormat() : at::MemoryFormat::Contiguous);
  return is_reshape(name) && aliases_at_full_size(name, full, sizes);
}

}  // namespace

// One operator on its way into the region.
class Region::Joining {
 public:
  Joining(Region& region, const Call& call) : region_(region), call_(call), traits_(op_traits(call.op)) {}

  std::vector<c10::IValue> join() {
    compute();
    note_operands();
    const size_t values_before = region_.values_.size(), groups_before = region_.groups_.size();
    std::vector<c10::IValue> answers;
    try {
      answers = answer_all();
    } catch (const CannotJoin&) {
      answers.clear();
      for (size_t v = values_before; v < region_.values_.size(); ++v) region_.forget(static_cast<ValueId>(v));
      region_.values_.resize(values_before);
      region_.groups_.resize(groups_before);
      region_.forget_write(*joined_);
      throw;
    }
    region_.instructions_.push_back(std::move(*joined_));
    region_.first_.next = region_.instructions_.size();
    return answers;
  }

 private:
  // An operand for micro-batch 0, beside the argument that it stands for: to see what the results alias.
  struct Local {
    const at::Tensor* full;
    at::Tensor local;
    ValueId value;  // or kNoValue: a capture
  };
  // One of the results.
  struct Result {
    at::Tensor local;
    int number;   // of the operator's returns
    int element;  // of the list that it is in; -1: in none
    int flat;     // of all results, from 1
    Placement placement;
  };

  // --- for micro-batch 0 ---

  void compute() {
    Recovery recovery(region_, Recovery::FirstFrame::kFails);
    MicroBatchLoop(recovery).once([this] { return region_.micro_batch_; }, [this] {
      results_.clear();
      for_program_.clear();
      try {
        if (!joined_) region_.note_write(joined_.emplace(region_.instruction_for(call_)));
        Instruction& in = *joined_;
        region_.bury_dead();
        if (region_.first_.next < region_.instructions_.size()) region_.run_first_frame();
        in.in_float = false;
        results_ = region_.call_instruction(region_.first_, in);
        if (gives_half_sum()) run_in_float();
      } catch (const std::exception& error) {  // an operator of the program's own may throw anything
        if (is_python_interrupt(error) || is_out_of_memory(error)) throw;
        forget_python_error(error);
        if (joined_) region_.forget_write(*joined_);
        throw FailsOnRows();
      }
    });
  }

  bool gives_half_sum() const {
    if (!may_run_in_float(*joined_, call_)) return false;
    bool half = false;
    for_each_tensor(results_, [&](const at::Tensor& t, int result, int) {
      half |= static_cast<size_t>(result) < call_.answer.outputs().size() && call_.answer.outputs()[result].is_partial() && is_half(t.scalar_type());
    });
    return half;
  }

  void run_in_float() {
    joined_->in_float = true;
    try {
      for_program_ = region_.call_instruction(region_.first_, *joined_);
      std::swap(results_, for_program_);
    } catch (const std::exception& error) {  // its kernel may know half precision alone
      joined_->in_float = false;
      if (is_python_interrupt(error) || is_out_of_memory(error)) throw;
      forget_python_error(error);
    }
  }

  void note_operands() {
    for_each_tensor(call_.arguments, [&](const at::Tensor& t, int arg, int element) {
      const Operand& operand = joined_->arguments[arg].operands[element < 0 ? 0 : element];
      const bool is_value = operand.kind == Operand::Kind::kValue;
      locals_.push_back({&t, is_value ? region_.first_.values[operand.id] : region_.first_.uses[operand.id], is_value ? operand.id : kNoValue});
    });
    random_ = call_.random;
    for (const Local& l : locals_) random_ |= l.value != kNoValue && region_.values_[l.value].random;
  }

  // --- for the program ---

  std::vector<c10::IValue> answer_all() {
    std::vector<c10::IValue> answers;
    int flat = 0;
    const auto one = [&](const at::Tensor& local, size_t number, int element) {
      return answer({local, static_cast<int>(number), element, ++flat, call_.answer.output_at(number, element)});
    };
    for (size_t r = 0; r < results_.size(); ++r) {
      if (results_[r].isTensor()) {
        answers.emplace_back(one(results_[r].toTensor(), r, -1));
      } else if (results_[r].isTensorList()) {
        c10::List<at::Tensor> list;
        const auto elements = results_[r].toListRef();
        for (size_t j = 0; j < elements.size(); ++j) list.push_back(one(elements[j].toTensor(), r, static_cast<int>(j)));
        answers.emplace_back(std::move(list));
      } else if (call_.answer.aside(static_cast<int>(r)) != nullptr) {
        answers.push_back(results_[r]);
      } else {
        throw RuleMismatch();
      }
    }
    return answers;
  }

  at::Tensor answer(const Result& result) {
    const at::Tensor& local = result.local;
    Instruction& in = *joined_;
    if (!local.defined()) {
      in.outputs.push_back(kNoValue);
      return at::Tensor();
    }
    if (local.layout() != at::kStrided || local.is_quantized() || !follows(*local.unsafeGetTensorImpl())) throw NotDense();  // a deferred tensor has no quantizer
    const Local* same = nullptr;
    const Local* alias = nullptr;
    for (const Local& l : locals_) {
      if (l.local.unsafeGetTensorImpl() == local.unsafeGetTensorImpl()) same = &l;
      if (alias == nullptr && storage_of(local) != nullptr && storage_of(l.local) == storage_of(local)) alias = &l;
    }
    if (same != nullptr) return hand_back(result, *same);
    if (result.placement.is_replicate()) {
      const OpCall::Aside* aside = call_.answer.aside(result.number);
      if ((local.numel() != 0 && aside == nullptr) || alias != nullptr) throw RuleMismatch();
      in.outputs.push_back(kNoValue);  // an output that was not asked for, or none of the rows'
      return aside != nullptr && aside->numbers ? at::tensor(*aside->numbers, at::kLong) : local.detach();
    }
    const std::vector<int64_t> sizes = whole_sizes(result);
    if (alias != nullptr && alias->value == kNoValue) throw AliasOfCapture();
    if (alias == nullptr && is_copy_of_parts(call_.op.schema(), call_.arguments, sizes)) throw AliasOfCapture();
    if (alias != nullptr && !traits_.may_view && traits_.composite) throw UndeclaredView();
    if (alias != nullptr && traits_.may_view && aliases_at_full_size(call_.op.schema().name(), *alias->full, sizes)) return give_view(result, *alias, sizes);
    return give_value(result, alias, sizes);
  }

  // The operator has given one of its arguments.
  at::Tensor hand_back(const Result& result, const Local& same) {
    const Placement& placement = result.placement;
    // Of one row an operator may hand back an argument that it repeats for many: broadcast_tensors() for a tensor of one row.
    if (placement.is_shard() && placement.dim < result.local.dim()) {
      std::vector<int64_t> whole = result.local.sizes().vec();
      whole[placement.dim] = placement.extent(region_.batch_);
      if (same.full->sizes() != at::IntArrayRef(whole)) throw AliasOfCapture();
    }
    if (traits_.in_place && result.flat == 1) {
      const ValueId id = same.value;
      joined_->outputs.push_back(id);
      same.full->unsafeGetTensorImpl()->bump_version();
      region_.values_[id].random |= random_;
      if (has_node(result.local)) region_.attach_gradients(region_.values_[id].group);
    } else {
      joined_->outputs.push_back(kNoValue);
    }
    return *same.full;
  }

  // Its shape at the full batch, of a Shard or a Partial.
  std::vector<int64_t> whole_sizes(const Result& result) const {
    const Placement& placement = result.placement;
    std::vector<int64_t> sizes = result.local.sizes().vec();
    if (placement.is_shard()) {
      const Rows rows = region_.first_.rows;
      if (placement.dim >= result.local.dim() || sizes[placement.dim] != placement.extent(rows.begin, rows.end)) throw RuleMismatch();
      sizes[placement.dim] = placement.extent(region_.batch_);
    } else if (joined_->scale_by_rows && joined_->by_user && !can_be_scaled(result.local.scalar_type())) {
      throw RuleMismatch();
    }
    return sizes;
  }

  // A view of an argument that is a value of the region.
  at::Tensor give_view(const Result& result, const Local& alias, const std::vector<int64_t>& sizes) {
    if (!full_views_) {
      NoInterceptGuard no_intercept;
      at::AutoDispatchBelowADInplaceOrView no_autograd;
      full_views_.emplace(call_.arguments.begin(), call_.arguments.end());
      call_.op.callBoxed(*full_views_);
    }
    const c10::IValue& v = (*full_views_)[result.number];
    const at::Tensor view = result.element < 0 ? v.toTensor() : v.toListRef()[result.element].toTensor();
    if (storage_of(view) != storage_of(*alias.full) || view.sizes() != at::IntArrayRef(sizes)) throw RuleMismatch();
    const ValueId id = region_.new_value(result.placement, region_.values_[alias.value].group, has_node(result.local), random_);
    joined_->outputs.push_back(id);
    region_.set_local(region_.first_, id, result.local);
    if (!region_.values_[id].requires_grad && call_.op.schema().name() != "aten::detach") stand_as_view(view, *alias.full, result.element >= 0);
    region_.install(id, view);
    // A node outside of the region may have saved the one, and is to hear of a write to the other.
    if (!view.is_inference()) view.unsafeGetTensorImpl()->set_version_counter(alias.full->unsafeGetTensorImpl()->version_counter());
    return view;
  }

  // A tensor with a storage of its own at the full batch. `alias`: an argument that it shares memory with in micro-batch 0, or null.
  at::Tensor give_value(const Result& result, const Local* alias, const std::vector<int64_t>& sizes) {
    const ValueId id = region_.new_value(result.placement, 0, has_node(result.local), random_);
    region_.values_[id].group = region_.new_group(id);
    region_.values_[id].hidden_base = result.local.is_view();
    if (alias != nullptr) {
      region_.groups_[region_.values_[id].group].uncertain = true;
      region_.groups_[region_.values_[alias->value].group].uncertain = true;
    }
    joined_->outputs.push_back(id);
    const std::vector<int64_t> strides = whole_strides(result, sizes);
    region_.set_local(region_.first_, id, laid_out(region_.first_, *joined_, strides, result.local));
    const at::Tensor like = as_for_program(result);
    at::Tensor tensor = make_deferred(like, sizes, strides, 0,
                                      empty_storage(at::detail::computeStorageNbytes(sizes, strides, like.element_size()), region_.device_,
                                                    c10::GetAllocator(region_.device_.type())));
    region_.install(id, tensor);
    return tensor;
  }

  std::vector<int64_t> whole_strides(const Result& result, const std::vector<int64_t>& sizes) {
    const at::Tensor& local = result.local;
    std::vector<int64_t> strides = dense_strides_like(local, sizes);
    if (!result.placement.is_shard() || local.dim() <= 1) return strides;
    const bool open = order_is_open(call_.arguments, local);
    if (region_.first_.rows.count() != 1 && !open) return strides;
    if (region_.first_.rows.count() == 1 && open) {
      if (!on_two_rows_) on_two_rows_ = run_for_two_rows();
      if (const at::Tensor two = result_of(*on_two_rows_, result.flat); two.defined() && two.dim() == local.dim()) return dense_strides_like(two, sizes);
    }
    if (!on_meta_) on_meta_ = layouts();
    if (static_cast<size_t>(result.flat) > on_meta_->size()) return strides;
    const Layout& meta = (*on_meta_)[static_cast<size_t>(result.flat) - 1];
    return meta.sizes == sizes && may_lie_as(meta, call_.op, local) ? meta.strides : strides;
  }

  std::vector<Layout> layouts() const {
    try {
      return layouts_on_meta(call_.op, call_.arguments);
    } catch (const std::exception& error) {
      if (is_out_of_memory(error)) throw LayoutUnknown();
      throw;
    }
  }

  // One row does not show where the batch dimension lies in memory, and the meta device lays out some results otherwise than a kernel does (a batch norm's, say). Empty where it cannot be run so.
  torch::jit::Stack run_for_two_rows() {
    const Instruction& in = *joined_;
    if (in.random || traits_.writes || region_.batch_ < 2) return {};
    Frame frame{{0, 2}, /*grad=*/false, {}, {}, 0};
    const NoInterceptGuard no_intercept;
    for (const Argument& argument : in.arguments) {
      for (const Operand& o : argument.operands) {
        if (o.kind == Operand::Kind::kUndefined) continue;
        const Placement& placement = o.kind == Operand::Kind::kValue ? region_.values_[o.id].placement : region_.uses_[o.id].placement;
        if (placement.is_shard() && placement.ragged != nullptr) return {};
        if (o.kind != Operand::Kind::kValue) continue;
        const Value& value = region_.values_[o.id];
        std::vector<int64_t> sizes(value.sizes.begin(), value.sizes.end());
        if (placement.is_shard()) sizes[placement.dim] = placement.extent(0, 2);
        region_.set_local(frame, o.id, zeros_in_order(sizes, value.strides, at::TensorOptions(region_.device_).dtype(value.dtype)));
      }
    }
    try {
      return region_.call_instruction(frame, in);
    } catch (const std::exception& error) {
      if (is_python_interrupt(error)) throw;
      forget_python_error(error);
      if (is_out_of_memory(error)) throw LayoutUnknown();
      return {};
    }
  }

  static at::Tensor result_of(const torch::jit::Stack& results, int flat) {
    at::Tensor found;
    int at = 0;
    for_each_tensor(results, [&](const at::Tensor& t, int, int) {
      if (++at == flat) found = t;
    });
    return found;
  }

  // A tensor of the result's type for the program.
  at::Tensor as_for_program(const Result& result) const {
    const at::Tensor& local = result.local;
    if (joined_->in_float) {
      const c10::IValue& v = for_program_[result.number];
      return result.element < 0 ? v.toTensor() : v.toListRef()[result.element].toTensor();
    }
    const auto type = joined_->keeps_float ? type_for_program(local.scalar_type(), locals_.front().full->scalar_type()) : local.scalar_type();
    if (type == local.scalar_type()) return local;
    const NoInterceptGuard no_intercept;
    const at::NoGradGuard no_grad;
    return local.detach().to(type);
  }

  Region& region_;
  const Call& call_;
  const OpTraits& traits_;
  std::optional<Instruction> joined_;
  // For as long as anything of the call lives.
  const RegionWork work_;
  const AtWork at_work_{region_};
  const Offload::MayFail may_fail_;
  torch::jit::Stack results_;
  torch::jit::Stack for_program_;  // the results in the program's types, where they are others
  std::vector<Local> locals_;
  bool random_ = false;
  std::optional<std::vector<Layout>> on_meta_;
  std::optional<torch::jit::Stack> on_two_rows_;
  std::optional<torch::jit::Stack> full_views_;  // the operator run on the deferred tensors' metadata
};

std::vector<c10::IValue> Region::add(const Call& call) { return Joining(*this, call).join(); }

}  // namespace koila
