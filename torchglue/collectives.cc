#include "torchglue/collectives.h"

#include <c10/core/AutogradState.h>
#include <c10/util/flat_hash_map.h>

#include <torch/csrc/autograd/cpp_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <optional>
#include <string_view>
#include <typeinfo>
#include <vector>

#include "torchglue/op_traits.h"
#include "torchglue/region/deferred.h"
#include "torchglue/rescue/eager.h"
#include "torchglue/rescue/events.h"
#include "torchglue/rescue/oom.h"
#include "torchglue/rescue/python_error.h"
#include "torchglue/session.h"
#include "torchglue/tensor_memory.h"

namespace koila {

namespace {

using Names = ska::flat_hash_set<std::string_view>;

std::string_view namespace_of(const c10::FunctionSchema& schema) {
  const std::string_view name = schema.name();
  return name.substr(0, name.find("::"));
}

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

bool is_collective(const c10::FunctionSchema& schema) {
  static const Names kNamespaces = {"c10d", "_c10d_functional", "_c10d_functional_autograd", "c10d_functional", "_dtensor", "symm_mem", "fsdp"};
  return kNamespaces.count(namespace_of(schema)) > 0;
}

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

bool may_save_operands(const c10::FunctionSchema& schema) { return may_save_anything(schema); }

bool may_save_anything(const c10::FunctionSchema& schema) {
  static const Names kSaveNone = {
      "aten::_conj", "aten::_fft_c2c", "aten::_fft_c2r", "aten::_fft_r2c", "aten::_to_copy", "aten::_unsafe_view", "aten::add", "aten::add_", "aten::adjoint", "aten::alias",
      "aten::broadcast_tensors", "aten::broadcast_to", "aten::cat", "aten::ceil", "aten::channel_shuffle", "aten::chunk", "aten::clone", "aten::column_stack", "aten::concat", "aten::concatenate",
      "aten::conj", "aten::constant_pad_nd", "aten::contiguous", "aten::copy_", "aten::cumsum", "aten::detach", "aten::diag_embed", "aten::diagonal", "aten::dsplit", "aten::dstack",
      "aten::expand", "aten::expand_as", "aten::fill_", "aten::flatten", "aten::flip", "aten::fliplr", "aten::flipud", "aten::floor", "aten::hsplit", "aten::hstack", "aten::im2col", "aten::imag", "aten::mH",
      "aten::mT", "aten::matrix_H", "aten::mean", "aten::moveaxis", "aten::movedim", "aten::narrow", "aten::narrow_copy", "aten::neg", "aten::neg_", "aten::numpy_T", "aten::permute", "aten::pixel_shuffle",
      "aten::pixel_unshuffle", "aten::positive", "aten::ravel", "aten::real", "aten::repeat", "aten::reshape", "aten::reshape_as", "aten::resolve_conj", "aten::resolve_neg", "aten::roll", "aten::rot90",
      "aten::round", "aten::row_stack", "aten::rsub", "aten::select", "aten::select_scatter", "aten::sign", "aten::slice", "aten::slice_scatter", "aten::split", "aten::split_with_sizes", "aten::squeeze",
      "aten::stack", "aten::sub", "aten::sub_", "aten::sum", "aten::swapaxes", "aten::swapdims", "aten::t", "aten::tensor_split", "aten::tile", "aten::to", "aten::transpose", "aten::tril",
      "aten::triu", "aten::trunc", "aten::type_as", "aten::unbind", "aten::unflatten", "aten::unfold", "aten::unsafe_chunk", "aten::unsafe_split", "aten::unsafe_split_with_sizes", "aten::unsqueeze",
      "aten::view", "aten::view_as", "aten::view_as_complex", "aten::view_as_real", "aten::vsplit", "aten::vstack", "aten::zero_"};
  return kSaveNone.count(schema.name()) == 0;
}

bool may_save_result(const c10::FunctionSchema& schema) {
  static const Names kSaveNone = {"aten::mul",       "aten::div",          "aten::mm",         "aten::bmm",                "aten::addmm",        "aten::matmul",
                                  "aten::linear",    "aten::conv1d",       "aten::conv2d",     "aten::conv3d",             "aten::nll_loss",     "aten::nll_loss_nd",
                                  "aten::embedding", "aten::mse_loss",     "aten::l1_loss",    "aten::cross_entropy_loss", "aten::huber_loss",   "aten::smooth_l1_loss",
                                  "aten::kl_div",    "aten::batch_norm",   "aten::layer_norm", "aten::nll_loss_forward",   "aten::nll_loss2d",   "aten::binary_cross_entropy",
                                  "aten::dropout",   "aten::binary_cross_entropy_with_logits"};
  return kSaveNone.count(schema.name()) == 0 && may_save_operands(schema);
}

}  // namespace koila
