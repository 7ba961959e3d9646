// Pointwise operators: entry for entry, after broadcasting. The linear ones also keep Partial.
#include "torchglue/placement/alignment.h"
#include "torchglue/placement/operands.h"

namespace koila {
namespace {

Verdict pointwise(OpCall&);       // f(a, b, ...): keeps Shard
Verdict linear_unary(OpCall&);    // f(a) linear in a
Verdict cast(OpCall&);            // a in another dtype, device or layout
Verdict product(OpCall&);         // a * b: linear in each
Verdict quotient(OpCall&);        // a / b: linear in a, unless it rounds
Verdict sum_of_two(OpCall&);      // a + alpha * b: linear in both together
Verdict accumulate(OpCall&);      // copy_: a is overwritten by b
Verdict metadata_twin(OpCall&);   // zeros_like: a's shape and dtype, none of its values
Verdict like_other(OpCall&);      // a in b's dtype or shape: none of b's values
Verdict channelwise(OpCall&);     // prelu: a weight per entry of dimension 1

const RegisterRules kTable{
    {"koila::function", pointwise},  // see Note [Functions as operators]
    {"koila::function_view", pointwise},
    // one operand
    {"aten::abs", pointwise},
    {"aten::acos", pointwise},
    {"aten::acosh", pointwise},
    {"aten::angle", pointwise},
    {"aten::asin", pointwise},
    {"aten::asinh", pointwise},
    {"aten::atan", pointwise},
    {"aten::atanh", pointwise},
    {"aten::bitwise_not", pointwise},
    {"aten::ceil", pointwise},
    {"aten::celu", pointwise},
    {"aten::cos", pointwise},
    {"aten::cosh", pointwise},
    {"aten::digamma", pointwise},
    {"aten::elu", pointwise},
    {"aten::erf", pointwise},
    {"aten::erfc", pointwise},
    {"aten::erfinv", pointwise},
    {"aten::exp", pointwise},
    {"aten::exp2", pointwise},
    {"aten::expm1", pointwise},
    {"aten::floor", pointwise},
    {"aten::frac", pointwise},
    {"aten::frexp", pointwise},
    {"aten::gelu", pointwise},
    {"aten::hardshrink", pointwise},
    {"aten::hardsigmoid", pointwise},
    {"aten::hardswish", pointwise},
    {"aten::hardtanh", pointwise},
    {"aten::i0", pointwise},
    {"aten::isfinite", pointwise},
    {"aten::isinf", pointwise},
    {"aten::isnan", pointwise},
    {"aten::isneginf", pointwise},
    {"aten::isposinf", pointwise},
    {"aten::leaky_relu", pointwise},
    {"aten::lgamma", pointwise},
    {"aten::log", pointwise},
    {"aten::log10", pointwise},
    {"aten::log1p", pointwise},
    {"aten::log2", pointwise},
    {"aten::log_sigmoid", pointwise},
    {"aten::logical_not", pointwise},
    {"aten::logit", pointwise},
    {"aten::mish", pointwise},
    {"aten::mvlgamma", pointwise},
    {"aten::nan_to_num", pointwise},
    {"aten::polygamma", pointwise},
    {"aten::reciprocal", pointwise},
    {"aten::relu", pointwise},
    {"aten::relu6", pointwise},
    {"aten::round", pointwise},
    {"aten::rsqrt", pointwise},
    {"aten::selu", pointwise},
    {"aten::sgn", pointwise},
    {"aten::sigmoid", pointwise},
    {"aten::sign", pointwise},
    {"aten::signbit", pointwise},
    {"aten::silu", pointwise},
    {"aten::sin", pointwise},
    {"aten::sinc", pointwise},
    {"aten::sinh", pointwise},
    {"aten::softplus", pointwise},
    {"aten::softshrink", pointwise},
    {"aten::special_airy_ai", pointwise},
    {"aten::special_bessel_j0", pointwise},
    {"aten::special_bessel_j1", pointwise},
    {"aten::special_bessel_y0", pointwise},
    {"aten::special_bessel_y1", pointwise},
    {"aten::special_entr", pointwise},
    {"aten::special_erfcx", pointwise},
    {"aten::special_i0e", pointwise},
    {"aten::special_i1", pointwise},
    {"aten::special_i1e", pointwise},
    {"aten::special_log_ndtr", pointwise},
    {"aten::special_modified_bessel_i0", pointwise},
    {"aten::special_modified_bessel_i1", pointwise},
    {"aten::special_modified_bessel_k0", pointwise},
    {"aten::special_modified_bessel_k1", pointwise},
    {"aten::special_ndtri", pointwise},
    {"aten::special_scaled_modified_bessel_k0", pointwise},
    {"aten::special_scaled_modified_bessel_k1", pointwise},
    {"aten::special_spherical_bessel_j0", pointwise},
    {"aten::sqrt", pointwise},
    {"aten::square", pointwise},
    {"aten::tan", pointwise},
    {"aten::tanh", pointwise},
    {"aten::threshold", pointwise},
    {"aten::trunc", pointwise},

    // two operands
    {"aten::atan2", pointwise},
    {"aten::bitwise_and", pointwise},
    {"aten::bitwise_left_shift", pointwise},
    {"aten::bitwise_or", pointwise},
    {"aten::bitwise_right_shift", pointwise},
    {"aten::bitwise_xor", pointwise},
    {"aten::complex", pointwise},
    {"aten::copysign", pointwise},
    {"aten::eq", pointwise},
    {"aten::float_power", pointwise},
    {"aten::floor_divide", pointwise},
    {"aten::fmax", pointwise},
    {"aten::fmin", pointwise},
    {"aten::fmod", pointwise},
    {"aten::gcd", pointwise},
    {"aten::ge", pointwise},
    {"aten::gt", pointwise},
    {"aten::heaviside", pointwise},
    {"aten::hypot", pointwise},
    {"aten::igamma", pointwise},
    {"aten::igammac", pointwise},
    {"aten::lcm", pointwise},
    {"aten::ldexp", pointwise},
    {"aten::le", pointwise},
    {"aten::logaddexp", pointwise},
    {"aten::logaddexp2", pointwise},
    {"aten::logical_and", pointwise},
    {"aten::logical_or", pointwise},
    {"aten::logical_xor", pointwise},
    {"aten::lt", pointwise},
    {"aten::max.other", pointwise},
    {"aten::maximum", pointwise},
    {"aten::min.other", pointwise},
    {"aten::minimum", pointwise},
    {"aten::native_dropout_backward", pointwise},
    {"aten::ne", pointwise},
    {"aten::nextafter", pointwise},
    {"aten::polar", pointwise},
    {"aten::pow", pointwise},
    {"aten::remainder", pointwise},
    {"aten::special_chebyshev_polynomial_t", pointwise},
    {"aten::special_chebyshev_polynomial_u", pointwise},
    {"aten::special_chebyshev_polynomial_v", pointwise},
    {"aten::special_chebyshev_polynomial_w", pointwise},
    {"aten::special_hermite_polynomial_h", pointwise},
    {"aten::special_hermite_polynomial_he", pointwise},
    {"aten::special_laguerre_polynomial_l", pointwise},
    {"aten::special_legendre_polynomial_p", pointwise},
    {"aten::special_shifted_chebyshev_polynomial_t", pointwise},
    {"aten::special_shifted_chebyshev_polynomial_u", pointwise},
    {"aten::special_shifted_chebyshev_polynomial_v", pointwise},
    {"aten::special_shifted_chebyshev_polynomial_w", pointwise},
    {"aten::special_xlog1py", pointwise},
    {"aten::special_zeta", pointwise},
    {"aten::xlogy", pointwise},

    // three and more
    {"aten::addcdiv", pointwise},
    {"aten::addcmul", pointwise},
    {"aten::broadcast_tensors", pointwise},
    {"aten::clamp", pointwise},
    {"aten::clamp_max", pointwise},
    {"aten::clamp_min", pointwise},
    {"aten::isclose", pointwise},
    {"aten::lerp", pointwise},
    {"aten::masked_fill", pointwise},
    {"aten::where.self", pointwise},
    {"aten::where.Scalar", pointwise},
    {"aten::where.ScalarOther", pointwise},
    {"aten::where.ScalarSelf", pointwise},

    // linear in what is summed
    {"aten::add", sum_of_two},
    {"aten::deg2rad", linear_unary},
    {"aten::div", quotient},
    {"aten::mul", product},
    {"aten::neg", linear_unary},
    {"aten::positive", linear_unary},
    {"aten::rad2deg", linear_unary},
    {"aten::rsub", sum_of_two},
    {"aten::sub", sum_of_two},
    {"aten::true_divide", quotient},

    // copies
    {"aten::_conj", linear_unary},
    {"aten::_to_copy", cast},
    {"aten::alias", linear_unary},
    {"aten::clone", linear_unary},
    {"aten::conj_physical", linear_unary},
    {"aten::contiguous", linear_unary},
    {"aten::copy", accumulate},
    {"aten::detach", linear_unary},
    {"aten::expand_as", like_other},
    {"aten::fill", pointwise},
    {"aten::imag", linear_unary},
    {"aten::real", linear_unary},
    {"aten::resolve_conj", linear_unary},
    {"aten::resolve_neg", linear_unary},
    {"aten::to", cast},
    {"aten::to.other", like_other},
    {"aten::type_as", like_other},
    {"aten::zero", linear_unary},

    // shape and dtype only
    {"aten::empty_like", metadata_twin},
    {"aten::full_like", metadata_twin},
    {"aten::ones_like", metadata_twin},
    {"aten::zeros_like", metadata_twin},

    {"aten::prelu", channelwise},
};

const RegisterRagged kRagged{accumulate, cast, linear_unary, pointwise, product, quotient, sum_of_two};

Verdict pointwise(OpCall& call) {
  auto out = align(call, defined_operands(call));
  return out ? local(call, *out) : Verdict::kNo;
}

Verdict linear_unary(OpCall& call) { return linear_in_first(call) ? local(call, Placement::partial()) : pointwise(call); }

Verdict cast(OpCall& call) {
  if (!linear_in_first(call)) return pointwise(call);
  const auto to = dtype_argument(call);
  if (to && !cast_is_linear(call.tensor(0).dtype, *to)) return Verdict::kNo;
  return local(call, Placement::partial());
}

Verdict product(OpCall& call) {
  const ArgRefs refs = defined_operands(call);
  if (!any_partial(call, refs)) return pointwise(call);
  int partial = 0;
  for (ArgRef ref : refs) {
    const Placement& p = spec(call, ref).placement;
    if (p.is_shard()) return Verdict::kNo;
    if (p.is_partial()) ++partial;
  }
  return partial == 1 ? local(call, Placement::partial()) : Verdict::kNo;
}

Verdict quotient(OpCall& call) {
  if (!linear_in_first(call)) return pointwise(call);
  return call.none(call.find("rounding_mode")) ? local(call, Placement::partial()) : Verdict::kNo;
}

// A constant joins a sum once, not once a micro-batch: each takes rows / B of it. Not when the result counts in whole numbers.
bool weight(OpCall& call, int constant, const TensorSpec& partial) {
  const OpCall::Arg& c = call.args()[constant];
  const bool partial_is_whole = c10::isIntegralType(partial.dtype, /*includeBool=*/true);
  if (!c.is_tensor) {
    if (c.value.isInt() || c.value.isBool()) {
      if (partial_is_whole) return false;
    } else if (!c.value.isDouble()) {
      return false;
    }
  } else {
    const TensorSpec& t = call.tensor(constant);
    const bool whole = c10::isIntegralType(t.dtype, /*includeBool=*/true);
    // A weighted whole number is a fraction; only as a 0-dim operand does it leave the result's dtype alone.
    if (whole && (partial_is_whole || t.dim() > 0)) return false;
  }
  call.weight_by_rows(constant);
  return true;
}

Verdict sum_of_two(OpCall& call) {
  const TensorSpec& self = call.tensor(0);
  const TensorSpec& other = call.tensor(1);
  if (!any_partial(call, defined_operands(call))) return pointwise(call);
  if (self.placement.is_shard() || other.placement.is_shard()) return Verdict::kNo;
  if (!self.placement.is_partial() && !weight(call, 0, other)) return Verdict::kNo;
  if (!other.placement.is_partial() && !weight(call, 1, self)) return Verdict::kNo;
  return local(call, Placement::partial());
}

Verdict accumulate(OpCall& call) {
  const TensorSpec& self = call.tensor(0);
  const TensorSpec& src = call.tensor(1);
  if (self.placement.is_partial() && src.placement.is_partial()) {
    return cast_is_linear(src.dtype, self.dtype) ? local(call, Placement::partial()) : Verdict::kNo;
  }
  return pointwise(call);
}

Verdict metadata_twin(OpCall& call) {
  return call.tensor(0).placement.is_partial() ? Verdict::kReal : pointwise(call);
}

Verdict like_other(OpCall& call) {
  const TensorSpec& self = call.tensor(0);
  const TensorSpec& other = call.tensor(1);
  const bool takes_shape = call.schema().name() == "aten::expand_as";
  if (self.placement.is_partial()) {
    if (!takes_shape) return cast_is_linear(self.dtype, other.dtype) ? local(call, Placement::partial()) : Verdict::kNo;
    return other.placement.is_shard() ? Verdict::kNo : local(call, Placement::partial());
  }
  if (!takes_shape || other.placement.is_partial()) {
    // Of `other` only the dtype matters, or a shape that no micro-batch changes.
    auto out = align(call, defined_operands(call, {0}));
    if (!out) return Verdict::kNo;
    if (takes_shape) out = out->at(out->dim + other.dim() - self.dim());
    return local(call, *out);
  }
  return pointwise(call);
}

Verdict channelwise(OpCall& call) {
  const TensorSpec& self = call.tensor(0);
  if (!self.placement.is_shard() || !others_replicate(call, {0})) return Verdict::kNo;
  const TensorSpec& weight = call.tensor(1);
  const bool shared = weight.dim() == 0 || (weight.dim() == 1 && weight.sizes[0] == 1);
  if (!shared && self.placement.dim == 1) return Verdict::kNo;
  return local(call, self.placement);
}

}  // namespace
}  // namespace koila
