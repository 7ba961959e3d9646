// Which operators of a region run in single precision for the sake of a sum over the rows: see Note [Sums of half precision].
#pragma once

#include <ATen/OpMathType.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <string>

#include "torchglue/op_traits.h"
#include "torchglue/region/region.h"

namespace koila {

inline bool is_half(at::ScalarType type) { return at::toOpMathType(type) != type; }

inline bool gives_partial(const Region::Call& call) {
  return std::any_of(call.answer.outputs().begin(), call.answer.outputs().end(), [](const Placement& p) { return p.is_partial(); });
}

// The type of what it gives is asked for by its arguments, and is not its operand's.
inline bool converts(const c10::OperatorHandle& op) {
  const std::string& name = op.schema().name();
  return name == "aten::to" || name == "aten::type_as" || name == "aten::_to_copy" || name == "aten::_autocast_to_reduced_precision" || name == "aten::_autocast_to_full_precision";
}

// Autocast rounds single precision to half on purpose, on the way into the operator.
inline bool may_run_in_float(const Instruction& in, const Region::Call& call) {
  if (in.keeps_float || converts(in.op) || !gives_partial(call)) return false;
  if (in.state.excluded.has(c10::DispatchKey::AutocastCPU) && in.state.excluded.has(c10::DispatchKey::AutocastCUDA)) return true;
  bool half = true;
  for_each_tensor(call.arguments, [&](const at::Tensor& t, int, int) { half &= !can_be_scaled(t.scalar_type()) || is_half(t.scalar_type()); });
  return half;
}

}  // namespace koila
