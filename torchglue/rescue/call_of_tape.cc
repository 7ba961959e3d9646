#include "torchglue/rescue/call_of_tape.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "torchglue/op_traits.h"

namespace koila {

namespace {

bool holds_optionals(const c10::TypePtr& type) {
  if (type->kind() == c10::TypeKind::OptionalType) return holds_optionals(type->containedType(0));
  return type->kind() == c10::TypeKind::ListType && type->containedType(0)->kind() == c10::TypeKind::OptionalType;
}

}  // namespace

std::string describe(const TapeValue& v) {
  std::string text = std::string(c10::toString(v.dtype)) + " [";
  for (size_t i = 0; i < v.sizes.size(); ++i) text += (i ? ", " : "") + std::to_string(v.sizes[i]);
  return text + "]";
}

torch::jit::Stack arguments_of(const TapeOp& op, const std::function<at::Tensor(const TapeRef&)>& tensor_of) {
  const OpTraits& traits = op_traits(op.op);
  torch::jit::Stack stack;
  std::vector<std::vector<at::Tensor>> lists(op.args.size());
  std::vector<at::Tensor> singles(op.args.size());
  for (size_t i = 0; i < op.args.size(); ++i) {
    if (traits.kinds[i] == ArgumentKind::kTensorList && op.args[i].isInt()) lists[i].resize(std::max<int64_t>(0, op.args[i].toInt()));
  }
  for (const TapeRef& ref : op.refs) {
    (ref.element < 0 ? singles[ref.arg] : lists[ref.arg][ref.element]) = tensor_of(ref);
  }
  for (size_t i = 0; i < op.args.size(); ++i) {
    switch (traits.kinds[i]) {
      case ArgumentKind::kTensor:
        stack.push_back(singles[i].defined() ? c10::IValue(singles[i]) : c10::IValue());
        break;
      case ArgumentKind::kTensorList: {
        if (!op.args[i].isInt() || op.args[i].toInt() < 0) {
          stack.emplace_back();
        } else if (holds_optionals(op.op.schema().arguments()[i].type())) {
          c10::List<std::optional<at::Tensor>> list;
          for (at::Tensor& t : lists[i]) list.push_back(t.defined() ? std::make_optional(t) : std::nullopt);
          stack.emplace_back(std::move(list));
        } else {
          stack.emplace_back(c10::List<at::Tensor>(lists[i]));
        }
        break;
      }
      case ArgumentKind::kOther:
        stack.push_back(op.args[i]);
        break;
    }
  }
  return stack;
}

}  // namespace koila
