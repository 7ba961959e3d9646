#include "torchglue/collectives.h"

#include <c10/core/AutogradState.h>

#include <torch/csrc/autograd/cpp_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <optional>
#include <string_view>
#include <typeinfo>
#include <vector>

#include "torchglue/base/tensor_memory.h"
#include "torchglue/oom/events.h"
#include "torchglue/oom/oom.h"
#include "torchglue/oom/python_error.h"
#include "torchglue/op_traits.h"
#include "torchglue/operators/collective.h"
#include "torchglue/region/boundary_store.h"
#include "torchglue/region/deferred.h"
#include "torchglue/rescue/eager.h"
#include "torchglue/step/session.h"

namespace koila {

namespace {

// The functional ones say in their schemas what they write to, but for these. Of the others an argument is only read where that is known.
bool writes_to(const c10::FunctionSchema& schema, size_t argument) {
  const c10::AliasInfo* alias = schema.arguments()[argument].alias_info();
  if (alias != nullptr && alias->isWrite()) return true;
  const std::string_view space = namespace_of(schema);
  if (space == "c10d") return argument == 0 && schema.name() != "c10d::send" && schema.name() != "c10d::check_for_nan";
  if (!space.starts_with("_c10d_functional") && space != "c10d_functional" && space != "_dtensor") return true;
  const std::string_view name = std::string_view(schema.name()).substr(space.size() + 2);
  return name == "wait_tensor" || name == "irecv" || name == "batch_p2p_ops";
}

struct Exchanged {
  at::Tensor tensor;
  bool written;
  // Where it was split: its rows can be taken apart again.
  Placement placement;
  int64_t batch = 0;
  int64_t micro_batch = 0;
  std::optional<size_t> hooks;  // of C++ that a region's tensor with a gradient had
};

torch::autograd::hooks_list* hooks_of(const at::Tensor& t) {
  const auto* meta = torch::autograd::impl::get_autograd_meta(t);
  return meta == nullptr ? nullptr : meta->cpp_hooks_list_.get();
}

// PyTorch hangs a hook on a differentiable tensor that is given to a collective operation: a warning, in backward, that the operation has no gradient. To a region any
// hook is one that wants the tensor's full gradient.
void drop_warning(const Exchanged& e) {
  auto* hooks = hooks_of(e.tensor);
  if (!e.hooks || hooks == nullptr || hooks->size() == *e.hooks) return;
  if (*e.hooks > 0) {
    for (size_t i = *e.hooks; i < hooks->size(); ++i) (*hooks)[i] = nullptr;
    return;
  }
  const auto ours = [&](const auto& hook, bool of_node) {
    if (std::string_view(typeid(*hook).name()).find("24CppFunctionTensorPreHook") == std::string_view::npos) return false;  // PyTorch exports no type information of it
    const auto* cpp = static_cast<const torch::autograd::CppFunctionTensorPreHook*>(hook.get());
    return !of_node || static_cast<int64_t>(cpp->value_idx_) == e.tensor.output_nr();
  };
  auto* meta = torch::autograd::impl::get_autograd_meta(e.tensor);
  std::erase_if(meta->hooks_, [&](const auto& hook) { return ours(hook, false); });
  if (meta->grad_fn_) std::erase_if(meta->grad_fn_->tensor_pre_hooks(), [&](const auto& hook) { return ours(hook, true); });
  meta->cpp_hooks_list_.reset();
}

// Lists of lists too: one list for each process.
void collect(const c10::IValue& value, bool written, std::vector<Exchanged>& tensors) {
  if (value.isTensor()) {
    if (value.toTensor().defined() && !value.toTensor().unsafeGetTensorImpl()->is_python_dispatch()) tensors.push_back({value.toTensor(), written, {}, 0, 0, std::nullopt});
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) collect(element, written, tensors);
  }
}

// An argument has its value, and its memory stays where it is.
void settle(Exchanged& e) {
  const auto entry = deferred_registry().find(e.tensor.unsafeGetTensorImpl());
  if (entry.region != nullptr) {
    const Value& value = entry.region->value(entry.value);
    e.placement = value.placement;
    e.batch = entry.region->batch();
    e.micro_batch = entry.region->micro_batch();
    const auto* hooks = hooks_of(e.tensor);
    if (e.tensor.requires_grad()) e.hooks = hooks == nullptr ? 0 : hooks->size();
  }
  materialise_tensor(e.tensor);
}

}  // namespace

void run_collective(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  Session& s = session();
  const c10::FunctionSchema& schema = op.schema();
  s.tape.discard();
  // FSDP takes the memory of parameters away between forward and backward, and gives it back: a region reads them again when they are not there.
  if (namespace_of(schema) == "fsdp") {
    if (s.engine_depth == 0 && s.owned_by_this_thread()) s.stay_out("koila stays out from here on: parameters are sharded (fully_shard), which is not supported yet.");
    return run_plainly(op, keys, stack);
  }
  std::vector<Exchanged> tensors;
  const auto arguments = torch::jit::last(*stack, schema.arguments().size());
  for (size_t i = 0; i < arguments.size(); ++i) collect(arguments[i], writes_to(schema, i), tensors);
  for (Exchanged& e : tensors) settle(e);
  for (const Exchanged& e : tensors) {
    if (!e.written || storage_of(e.tensor) == nullptr) continue;
    boundaries().keep_value(storage_of(e.tensor));
    for (const auto& region : s.live_regions()) region->before_exchange(storage_of(e.tensor));
    if (e.placement.is_shard()) s.marks.add(e.tensor, e.placement, e.batch, e.micro_batch);
  }
  s.pin([&](Tape& tape) {
    for (const Exchanged& e : tensors) tape.exchange(e.tensor, e.written);
  });
  try {
    const Offload::MustNotFail must_not(s.had_backward || c10::AutogradState::get_tls_state().get_grad_mode());
    call_kernel([&] { run_plainly(op, keys, stack); });
  } catch (const std::exception& error) {
    if (is_out_of_memory(error) && s.engine_depth == 0) report_refusal(describe_out_of_memory(schema.name()), "a collective operation ran out of memory, and may not be run a second time.", 0);
    throw;
  }
  for (const Exchanged& e : tensors) drop_warning(e);
}

}  // namespace koila
