#include "tests/placement/cases.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ATen.h>

#include "tests/placement/calls.h"

namespace koila::cases {

namespace {

at::Tensor filled(const Sizes& sizes, Fill fill) {
  switch (fill) {
    case Fill::kNormal:
      return at::randn(sizes, at::kDouble);
    case Fill::kUnit:
      return at::rand(sizes, at::kDouble) * 0.9 + 0.05;
    case Fill::kPositive:
      return at::rand(sizes, at::kDouble) * 2 + 0.5;
    case Fill::kSorted:
      return std::get<0>(at::randn(sizes, at::kDouble).sort(-1));
    case Fill::kIndex:
      return at::randint(3, sizes, at::kLong);
    case Fill::kLabel:
      return at::randint(1, 4, sizes, at::kLong);
    case Fill::kBool:
      return at::rand(sizes) < 0.5;
    case Fill::kZeroOne:
      return at::randint(2, sizes, at::kDouble);
    case Fill::kSigns:
      return at::randint(2, sizes, at::kDouble) * 2 - 1;
  }
  return {};
}

at::Tensor tensor_of(const Operand& o) {
  if (!o.defined) return {};
  at::Tensor t = filled(o.sizes, o.fill);
  if (!o.values.empty()) t = at::tensor(o.values, at::kLong).view(o.sizes);
  if (o.number && o.values.empty()) t = at::scalar_tensor(o.fraction, at::kDouble);
  for (int64_t place : o.ignored) t.view(-1)[place] = -100;
  if (o.dtype != c10::ScalarType::Undefined) t = t.to(o.dtype);
  if (o.number) t.unsafeGetTensorImpl()->set_wrapped_number(true);
  return t;
}

conformance::Operand operand_of(const Operand& o) { return {tensor_of(o), o.placement, o.differentiable}; }

struct ToArgument {
  conformance::Argument operator()(std::monostate) const { return c10::IValue(); }
  conformance::Argument operator()(Special special) const {
    if (special == Special::kCpu) return c10::IValue(c10::Device(c10::kCPU));
    return c10::IValue(at::detail::getDefaultCPUGenerator());
  }
  conformance::Argument operator()(const Operand& o) const { return operand_of(o); }
  conformance::Argument operator()(const List& list) const {
    std::vector<conformance::Operand> operands;
    for (const Operand& o : list) operands.push_back(operand_of(o));
    return operands;
  }
  template <typename T>
  conformance::Argument operator()(const T& value) const {
    return c10::IValue(value);
  }
};

}  // namespace

conformance::Call call_of(const Case& c) {
  conformance::Call call{c.op, {}, {}};
  for (const Argument& a : c.args) call.args.push_back(std::visit(ToArgument(), a));
  for (const auto& [name, value] : c.keywords) call.keywords.emplace_back(name, std::visit(ToArgument(), value));
  return call;
}

}  // namespace koila::cases
