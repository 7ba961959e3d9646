#include "torchglue/updates/entries.h"

#include <ATen/ATen.h>
#include <c10/core/AutogradState.h>

#include <algorithm>
#include <string_view>

#include "torchglue/base/followed.h"
#include "torchglue/op_traits.h"
#include "torchglue/oom/oom.h"
#include "torchglue/base/tensor_memory.h"
#include "torchglue/base/tls.h"

namespace koila {

namespace {

// Not `_foreach_norm` and `_foreach_max`, which mix the elements of a tensor.
constexpr std::string_view kForeach[] = {
    "abs", "acos", "add", "addcdiv", "addcmul", "asin", "atan", "ceil", "clamp_max", "clamp_min", "clone", "copy", "cos", "cosh", "div", "erf", "erfc", "exp",
    "expm1", "floor", "frac", "lerp", "lgamma", "log", "log10", "log1p", "log2", "maximum", "minimum", "mul", "neg", "pow", "reciprocal", "round", "rsqrt",
    "sigmoid", "sign", "sin", "sinh", "sqrt", "sub", "tan", "tanh", "trunc", "zero"};

bool is_foreach_by_element(std::string_view name) {
  constexpr std::string_view kPrefix = "aten::_foreach_";
  if (!name.starts_with(kPrefix)) return false;
  name.remove_prefix(kPrefix.size());
  if (name.ends_with('_')) name.remove_suffix(1);
  return std::find(std::begin(kForeach), std::end(kForeach), name) != std::end(kForeach);
}

// A tensor that is plain memory, each element once and no gap between them.
bool is_plain(const at::Tensor& t) {
  return t.defined() && t.layout() == at::kStrided && follows(*t.unsafeGetTensorImpl()) && !t.is_inference() && !t.is_conj() && !t.is_neg() && storage_of(t) != nullptr &&
         t.unsafeGetTensorImpl()->is_non_overlapping_and_dense();
}

bool laid_out_alike(const at::Tensor& a, const at::Tensor& b) { return a.sizes() == b.sizes() && a.strides() == b.strides() && a.device() == b.device(); }

size_t length_of(at::ArrayRef<c10::IValue> arguments) {
  for (const c10::IValue& v : arguments) {
    if (v.isTensorList()) return v.toListRef().size();
  }
  return 0;
}

c10::IValue list_of(const c10::IValue& list, size_t element) {
  c10::impl::GenericList one(list.toList().elementType());
  one.push_back(list.toListRef()[element]);
  return one;
}

// What entry `i` of a foreach operator takes for this argument; None where that is not known.
c10::IValue part_of(const c10::Argument& declared, const c10::IValue& argument, size_t i, size_t length) {
  if (argument.isList()) return argument.toListRef().size() == length ? list_of(argument, i) : c10::IValue();
  if (!argument.isTensor() || argument.toTensor().dim() == 0) return argument;
  const at::Tensor& scalars = argument.toTensor();  // a number for each entry
  if (declared.name() != "scalars" || scalars.dim() != 1 || scalars.size(0) != static_cast<int64_t>(length) || !scalars.device().is_cpu() || !is_plain(scalars)) return {};
  const NoInterceptGuard no_intercept;
  return scalars.narrow(0, static_cast<int64_t>(i), 1).clone();
}

// Puts the entry's tensors in their places. False where they are not laid out alike.
bool find_operands(const c10::FunctionSchema& schema, Entry& entry, bool foreach) {
  std::vector<Entry::Operand> tensors;
  for_each_tensor(entry.arguments, [&](const at::Tensor& t, int argument, int element) {
    if (foreach && schema.arguments()[argument].name() == "scalars") return;
    tensors.push_back({argument, element >= 0, t});
  });
  const auto shaped = [&](const Entry::Operand& o) { return foreach ? o.in_list : o.tensor.dim() > 0; };
  auto like = std::find_if(tensors.begin(), tensors.end(), shaped);
  if (like == tensors.end()) like = tensors.begin();
  if (like == tensors.end()) return false;
  const at::Tensor first = like->tensor;
  for (const Entry::Operand& o : tensors) {
    if (!is_plain(o.tensor)) return false;
    const c10::AliasInfo* alias = schema.arguments()[o.argument].alias_info();
    const bool written = alias != nullptr && alias->isWrite();
    const bool number = o.tensor.unsafeGetTensorImpl()->is_wrapped_number();  // Python's: nobody else has it
    if (number && !written && !first.is_same(o.tensor)) continue;
    if (laid_out_alike(first, o.tensor)) {
      entry.operands.push_back(o);
    } else if (o.tensor.dim() == 0 && !written) {
      entry.numbers.push_back(o);
    } else {
      return false;
    }
  }
  // The same memory seen in two ways, or elements of one tensor beside other ones of the other.
  for (size_t i = 0; i < entry.operands.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      const at::Tensor &a = entry.operands[i].tensor, &b = entry.operands[j].tensor;
      if (storage_of(a) == storage_of(b) && (a.storage_offset() != b.storage_offset() || a.scalar_type() != b.scalar_type())) return false;
    }
  }
  return true;
}

// Whether the result is laid out as the operands are. TensorIterator sees to that, and so do the foreach kernels; a copy may be asked to be laid out anew.
bool keeps_layout(const c10::OperatorHandle& op, const Entry& entry) {
  const std::string& name = op.schema().name();
  return (name != "aten::clone" && name != "aten::_foreach_clone") || entry.arguments.back().isNone() || entry.like().is_contiguous();
}

// One element on the CPU in place of the tensor.
at::Tensor one_like(const at::Tensor& t) {
  if (t.unsafeGetTensorImpl()->is_wrapped_number()) return t;
  return at::ones(std::vector<int64_t>(t.dim(), 1), at::TensorOptions().dtype(t.scalar_type()));
}

// What type the operator's result has: it is asked for one element. (Meta kernels are Python's for some operators.) Undefined where it has none, or raises: the program gets its error.
at::ScalarType result_type(const c10::OperatorHandle& op, const Entry& entry, bool foreach) {
  const NoInterceptGuard no_intercept;
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  try {
    torch::jit::Stack stack(entry.arguments.begin(), entry.arguments.end());
    for (size_t i = 0; i < stack.size(); ++i) {
      if (stack[i].isTensor() && !(foreach && op.schema().arguments()[i].name() == "scalars")) {
        stack[i] = one_like(stack[i].toTensor());
      } else if (stack[i].isTensorList()) {
        stack[i] = c10::List<at::Tensor>({one_like(stack[i].toListRef()[0].toTensor())});
      }
    }
    op.callBoxed(stack);
    if (stack.size() != 1 || (stack[0].isTensorList() && stack[0].toListRef().size() != 1)) return at::ScalarType::Undefined;
    if (!stack[0].isTensor() && !stack[0].isTensorList()) return at::ScalarType::Undefined;
    const at::Tensor made = stack[0].isTensor() ? stack[0].toTensor() : stack[0].toListRef()[0].toTensor();
    const bool as_many = made.dim() == entry.like().dim() && made.numel() == 1;
    return as_many ? made.scalar_type() : at::ScalarType::Undefined;
  } catch (const std::exception& error) {
    (void)is_out_of_memory(error);  // it has been met
    return at::ScalarType::Undefined;
  }
}

bool have_types_of(const Entry& a, const Entry& b) {
  return a.operands.size() == b.operands.size() && a.numbers.empty() && b.numbers.empty() &&
         std::equal(a.operands.begin(), a.operands.end(), b.operands.begin(), [](const Entry::Operand& x, const Entry::Operand& y) {
           return x.argument == y.argument && x.tensor.scalar_type() == y.tensor.scalar_type() && (x.tensor.dim() == 0) == (y.tensor.dim() == 0);
         });
}

}  // namespace

bool works_by_element(const c10::OperatorHandle& op) {
  const c10::FunctionSchema& schema = op.schema();
  const OpTraits& traits = op_traits(op);
  if (traits.random || traits.collective || traits.silent_effect || traits.metadata || traits.forward_mode) return false;
  if (traits.may_view) return false;
  if (traits.foreach) return is_foreach_by_element(schema.name()) && !traits.out;
  if (!schema.name().starts_with("aten::") || schema.returns().size() != 1) return false;
  if (std::find(traits.kinds.begin(), traits.kinds.end(), ArgumentKind::kTensorList) != traits.kinds.end()) return false;
  if (!traits.pointwise && schema.name() != "aten::copy_" && schema.name() != "aten::zero_") return false;
  return !traits.writes || traits.in_place || traits.out;
}

std::optional<Entries> take_apart(const c10::OperatorHandle& op, at::ArrayRef<c10::IValue> arguments) {
  const c10::FunctionSchema& schema = op.schema();
  const OpTraits& traits = op_traits(op);
  if (!works_by_element(op)) return std::nullopt;
  Entries found;
  found.list_result = traits.foreach && !traits.writes;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::AliasInfo* alias = schema.arguments()[i].alias_info();
    if (alias == nullptr || !alias->isWrite()) continue;
    if (found.written >= 0) return std::nullopt;
    found.written = static_cast<int>(i);
  }
  const size_t length = traits.foreach ? length_of(arguments) : 1;
  for (size_t i = 0; i < length; ++i) {
    Entry entry;
    for (size_t a = 0; a < arguments.size(); ++a) {
      entry.arguments.push_back(traits.foreach ? part_of(schema.arguments()[a], arguments[a], i, length) : arguments[a]);
      if (entry.arguments.back().isNone() && !arguments[a].isNone()) return std::nullopt;
    }
    if (!find_operands(schema, entry, traits.foreach)) return std::nullopt;
    if (found.written < 0) {
      const bool known = !found.entries.empty() && have_types_of(found.entries.back(), entry);
      entry.result = known ? found.entries.back().result : result_type(op, entry, traits.foreach);
      if (entry.result == at::ScalarType::Undefined || !keeps_layout(op, entry)) return std::nullopt;
    }
    found.entries.push_back(std::move(entry));
  }
  return found.entries.empty() ? std::nullopt : std::make_optional(std::move(found));
}

torch::jit::Stack with_operands(const std::vector<c10::IValue>& arguments, at::ArrayRef<Entry::Operand> operands) {
  torch::jit::Stack stack(arguments.begin(), arguments.end());
  for (const Entry::Operand& o : operands) stack[o.argument] = o.in_list ? c10::IValue(c10::List<at::Tensor>({o.tensor})) : c10::IValue(o.tensor);
  return stack;
}

}  // namespace koila
