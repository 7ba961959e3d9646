#include "tests/placement/cases.h"

namespace koila::cases {

namespace {

// f(a), for every way that the batch can lie in a.
void unary(std::vector<Case>& cases, std::initializer_list<const char*> ops, Fill fill = Fill::kNormal) {
  for (const char* op : ops) {
    cases.push_back({op, {shard({B, 3}, fill)}, kLocal, S(0)});
    cases.push_back({op, {shard({2, B * 3, 2}, 1, 1, 3, fill)}, kLocal, S(1, 1, 3)});
    cases.push_back({op, {partial({3}, fill == Fill::kBool ? Fill::kIndex : fill)}, kNo});
  }
}

// f(a, b), broadcast in every way.
void binary(std::vector<Case>& cases, std::initializer_list<const char*> ops, Fill fill = Fill::kNormal) {
  for (const char* op : ops) {
    cases.push_back({op, {shard({B, 3}, fill), shard({B, 3}, fill)}, kLocal, S(0)});
    cases.push_back({op, {shard({B, 3}, fill), replicate({B, 3}, fill)}, kLocal, S(0)});   // sliced on use
    cases.push_back({op, {replicate({3}, fill), shard({2, B, 3}, 1, 1, 1, fill)}, kLocal, S(1)});
    cases.push_back({op, {shard({B, 1}, fill), replicate({2, 1, 3}, fill)}, kLocal, S(1)});
    cases.push_back({op, {shard({B, B}, fill), replicate({B}, fill)}, kLocal, S(0)});      // b's 5 is not the batch
    cases.push_back({op, {replicate({}, fill), shard({3 * B}, 0, 3, 1, fill)}, kLocal, S(0, 3, 1)});
    cases.push_back({op, {shard({B, B}, 0, 1, 1, fill), shard({B, B}, 1, 1, 1, fill)}, kNo});
    cases.push_back({op, {shard({B, 1}, fill), shard({B}, fill)}, kNo});
    cases.push_back({op, {shard({6 * B}, 0, 2, 3, fill), shard({6 * B}, 0, 3, 2, fill)}, kNo});
    cases.push_back({op, {shard({B, 3}, fill), partial({3}, fill == Fill::kBool ? Fill::kIndex : fill)}, kNo});
  }
}

}  // namespace

std::vector<Case> pointwise_cases() {
  std::vector<Case> cases;
  unary(cases, {"aten::abs",        "aten::angle",      "aten::asinh",      "aten::atan",        "aten::celu",      "aten::cos",
                "aten::cosh",       "aten::digamma",    "aten::elu",        "aten::erf",         "aten::erfc",      "aten::exp",
                "aten::exp2",       "aten::expm1",      "aten::floor",      "aten::ceil",        "aten::frac",      "aten::frexp.Tensor",
                "aten::gelu",       "aten::hardshrink", "aten::hardsigmoid", "aten::hardswish",  "aten::hardtanh",  "aten::i0",
                "aten::isfinite",   "aten::isinf",      "aten::isnan",      "aten::isneginf",    "aten::isposinf",  "aten::leaky_relu",
                "aten::log_sigmoid", "aten::logical_not", "aten::mish",     "aten::nan_to_num",  "aten::relu",      "aten::relu6",
                "aten::round",      "aten::selu",       "aten::sgn",        "aten::sigmoid",     "aten::sign",      "aten::signbit",
                "aten::silu",       "aten::sin",        "aten::sinc",       "aten::sinh",        "aten::softplus",  "aten::softshrink",
                "aten::special_erfcx", "aten::special_i0e", "aten::special_i1", "aten::special_i1e", "aten::special_log_ndtr",
                "aten::square",     "aten::tan",        "aten::tanh",       "aten::trunc"});
  unary(cases, {"aten::acos", "aten::asin", "aten::atanh", "aten::erfinv", "aten::lgamma", "aten::log", "aten::log10", "aten::log1p",
                "aten::log2", "aten::logit", "aten::reciprocal", "aten::rsqrt", "aten::special_entr", "aten::special_ndtri", "aten::sqrt"},
        Fill::kUnit);
  unary(cases, {"aten::bitwise_not"}, Fill::kBool);
  for (const char* op : {"airy_ai", "bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1", "modified_bessel_i0", "modified_bessel_i1", "modified_bessel_k0",
                         "modified_bessel_k1", "scaled_modified_bessel_k0", "scaled_modified_bessel_k1", "spherical_bessel_j0"}) {
    cases.push_back({std::string("aten::special_") + op, {constant(shard({B, 3}, Fill::kPositive))}, kLocal, S(0)});
  }
  for (const char* op : {"chebyshev_polynomial_t", "chebyshev_polynomial_u", "chebyshev_polynomial_v", "chebyshev_polynomial_w", "hermite_polynomial_h",
                         "hermite_polynomial_he", "laguerre_polynomial_l", "legendre_polynomial_p", "shifted_chebyshev_polynomial_t",
                         "shifted_chebyshev_polynomial_u", "shifted_chebyshev_polynomial_v", "shifted_chebyshev_polynomial_w"}) {
    const std::string name = std::string("aten::special_") + op;
    const Operand x = constant(shard({B, 3}, Fill::kUnit)), n = constant(replicate({B, 1}, Fill::kLabel));
    cases.insert(cases.end(), {{name, {x, n}, kLocal, S(0)}, {name + ".n_scalar", {x, 2}, kLocal, S(0)}, {name + ".x_scalar", {0.5, constant(shard({B, 3}, Fill::kLabel))}, kLocal, S(0)}});
  }
  cases.insert(cases.end(), {
    {"aten::ldexp.Tensor", {shard({B, 3}), constant(replicate({B, 1}, Fill::kLabel))}, kLocal, S(0)},
    {"aten::native_dropout_backward", {shard({B, 3}), replicate({B, 3}, Fill::kBool), 2.0}, kLocal, S(0)},
    {"aten::deg2rad", {shard({B, 3})}, kLocal, S(0)},
    {"aten::deg2rad", {partial({3})}, kLocal, P()},
    {"aten::rad2deg", {partial({3})}, kLocal, P()},
  });
  cases.insert(cases.end(), {
    {"aten::acosh", {as(shard({B, 3}, Fill::kIndex), c10::ScalarType::Double)}},
    {"aten::mvlgamma", {as(shard({B, 3}, Fill::kPositive), c10::ScalarType::Double), 1}},
    {"aten::polygamma", {1, shard({B, 3}, Fill::kPositive)}},
    {"aten::round.decimals", {constant(shard({B, 3}))}, kLocal, S(0), {{"decimals", 1}}},
    {"aten::threshold", {shard({B, 3}), 0.1, 2.0}, kLocal, S(0)},
    {"aten::prelu", {shard({B, 3, 2}), replicate({3})}, kLocal, S(0)},
    {"aten::prelu", {shard({2, B, 3}, 1), replicate({1})}, kLocal, S(1)},
    {"aten::prelu", {shard({2, B, 3}, 1), replicate({B})}, kNo},
    {"aten::prelu", {shard({B}), replicate({1})}, kLocal, S(0)},
    {"aten::clone", {partial({3})}, kLocal, P()},
  });

  binary(cases, {"aten::atan2", "aten::copysign.Tensor", "aten::eq.Tensor", "aten::fmax", "aten::fmin", "aten::ge.Tensor", "aten::gt.Tensor",
                 "aten::heaviside", "aten::hypot", "aten::le.Tensor", "aten::logaddexp", "aten::logaddexp2", "aten::logical_and",
                 "aten::logical_or", "aten::logical_xor", "aten::lt.Tensor", "aten::max.other", "aten::maximum", "aten::min.other",
                 "aten::minimum", "aten::ne.Tensor", "aten::nextafter", "aten::isclose", "aten::mul.Tensor", "aten::add.Tensor",
                 "aten::sub.Tensor", "aten::rsub.Tensor", "aten::complex"});
  binary(cases, {"aten::float_power.Tensor_Tensor", "aten::floor_divide", "aten::fmod.Tensor", "aten::igamma", "aten::igammac", "aten::polar",
                 "aten::pow.Tensor_Tensor", "aten::remainder.Tensor", "aten::special_xlog1py", "aten::special_zeta", "aten::xlogy.Tensor",
                 "aten::div.Tensor", "aten::true_divide.Tensor"},
         Fill::kPositive);
  binary(cases, {"aten::bitwise_and.Tensor", "aten::bitwise_left_shift.Tensor", "aten::bitwise_or.Tensor", "aten::bitwise_right_shift.Tensor",
                 "aten::bitwise_xor.Tensor", "aten::gcd", "aten::lcm"},
         Fill::kIndex);
  // igamma and zeta have no gradient of their first argument.
  for (Case& c : cases) {
    const bool partly = c.op == "aten::igamma" || c.op == "aten::igammac" || c.op == "aten::special_zeta" || c.op == "aten::nextafter" || c.op == "aten::heaviside";
    for (Argument& a : c.args) {
      if (auto* o = std::get_if<Operand>(&a); o != nullptr && partly) o->differentiable = false;
    }
  }

  // numbers
  for (const char* op : {"aten::eq.Scalar", "aten::ge.Scalar", "aten::gt.Scalar", "aten::le.Scalar", "aten::lt.Scalar", "aten::ne.Scalar",
                         "aten::copysign.Scalar", "aten::clamp_max", "aten::clamp_min", "aten::fill.Scalar"}) {
    cases.push_back({op, {shard({B, 3}), 0.3}, kLocal, S(0)});
    cases.push_back({op, {partial({3}), 0.3}, kNo});
  }
  for (const char* op : {"aten::pow.Tensor_Scalar", "aten::float_power.Tensor_Scalar", "aten::floor_divide.Scalar", "aten::fmod.Scalar",
                         "aten::remainder.Scalar", "aten::xlogy.Scalar_Other", "aten::special_xlog1py.other_scalar", "aten::special_zeta.other_scalar"}) {
    cases.push_back({op, {constant(shard({B, 3}, Fill::kPositive)), 2.0}, kLocal, S(0)});
  }
  for (const char* op : {"aten::pow.Scalar", "aten::float_power.Scalar", "aten::remainder.Scalar_Tensor", "aten::xlogy.Scalar_Self",
                         "aten::special_xlog1py.self_scalar", "aten::special_zeta.self_scalar"}) {
    cases.push_back({op, {2.0, constant(shard({B, 3}, Fill::kPositive))}, kLocal, S(0)});
  }
  for (const char* op : {"aten::bitwise_and.Scalar", "aten::bitwise_or.Scalar", "aten::bitwise_xor.Scalar", "aten::bitwise_left_shift.Tensor_Scalar",
                         "aten::bitwise_right_shift.Tensor_Scalar"}) {
    cases.push_back({op, {shard({B, 3}, Fill::kIndex), 1}, kLocal, S(0)});
  }
  for (const char* op : {"aten::bitwise_and.Scalar_Tensor", "aten::bitwise_or.Scalar_Tensor", "aten::bitwise_xor.Scalar_Tensor",
                         "aten::bitwise_left_shift.Scalar_Tensor", "aten::bitwise_right_shift.Scalar_Tensor"}) {
    cases.push_back({op, {1, shard({B, 3}, Fill::kIndex)}, kLocal, S(0)});
  }

  // three operands and more
  cases.insert(cases.end(), {
    {"aten::addcdiv", {shard({B, 3}), replicate({B, 3}), shard({B, 1}, Fill::kPositive)}, kLocal, S(0), {{"value", 0.5}}},
    {"aten::addcmul", {replicate({3}), shard({B, 1}), replicate({2, B, 3})}, kLocal, S(1), {{"value", 0.5}}},
    {"aten::addcmul", {shard({B, B}), shard({B, B}, 1), replicate({})}, kNo},
    {"aten::broadcast_tensors", {List{shard({B, 1}), replicate({1, 3}), replicate({B, 3})}}, kLocal, S(0)},
    {"aten::broadcast_tensors", {List{shard({B, 1}), replicate({2, 1, 3})}}, kLocal, S(1)},
    {"aten::clamp", {shard({B, 3}), -0.5, 0.5}, kLocal, S(0)},
    {"aten::clamp.Tensor", {shard({B, 3}), replicate({B, 1}), none()}, kLocal, S(0)},
    {"aten::clamp.Tensor", {shard({B, 3}), none(), replicate({3})}, kLocal, S(0)},
    {"aten::clamp_max.Tensor", {shard({B, 3}), replicate({B, 1})}, kLocal, S(0)},
    {"aten::clamp_min.Tensor", {shard({B, 3}), replicate({3})}, kLocal, S(0)},
    {"aten::lerp.Scalar", {shard({B, 3}), replicate({3}), 0.25}, kLocal, S(0)},
    {"aten::lerp.Tensor", {shard({B, 3}), shard({B, 3}), replicate({B, 1})}, kLocal, S(0)},
    {"aten::masked_fill.Scalar", {shard({B, 3}), replicate({B, 1}, Fill::kBool), -1.0}, kLocal, S(0)},
    {"aten::masked_fill.Scalar", {shard({B, 2, 3, 3}), replicate({3, 3}, Fill::kBool), -1.0}, kLocal, S(0)},
    {"aten::masked_fill.Tensor", {shard({B, 3}), shard({B, 3}, Fill::kBool), replicate({})}, kLocal, S(0)},
    {"aten::masked_fill.Scalar", {partial({3}), replicate({3}, Fill::kBool), -1.0}, kNo},
    {"aten::where.self", {shard({B, 1}, Fill::kBool), replicate({B, 3}), replicate({})}, kLocal, S(0)},
    {"aten::where.self", {replicate({3}, Fill::kBool), shard({B, 3}), replicate({B, 1})}, kLocal, S(0)},
    {"aten::where.Scalar", {shard({B, 3}, Fill::kBool), 1.0, 2.0}, kLocal, S(0)},
    {"aten::where.ScalarOther", {shard({B, 3}, Fill::kBool), replicate({B, 1}), 2.0}, kLocal, S(0)},
    {"aten::where.ScalarSelf", {shard({B, 3}, Fill::kBool), 1.0, replicate({3})}, kLocal, S(0)},
  });

  // linear in what is summed
  cases.insert(cases.end(), {
    {"aten::neg", {shard({B, 3})}, kLocal, S(0)},
    {"aten::neg", {partial({})}, kLocal, P()},
    {"aten::positive", {partial({3})}, kLocal, P()},
    {"aten::mul.Tensor", {partial({}), replicate({})}, kLocal, P()},
    {"aten::mul.Tensor", {replicate({2, 3}), partial({3})}, kLocal, P()},
    {"aten::mul.Tensor", {partial({3}, Fill::kIndex), replicate({3})}, kLocal, P()},
    {"aten::mul.Tensor", {partial({3}), partial({3})}, kNo},
    {"aten::mul.Tensor", {partial({}), number(0.5)}, kLocal, P()},
    {"aten::mul.Tensor", {as(partial({}), c10::ScalarType::Float), number(0.5)}, kLocal, P()},
    {"aten::mul.Scalar", {partial({}), 0.5}, kLocal, P()},
    {"aten::mul.Scalar", {shard({B, 3}), 0.5}, kLocal, S(0)},
    {"aten::div.Tensor", {partial({}), number(int64_t{8})}, kLocal, P()},
    {"aten::div.Tensor", {partial({3}, Fill::kIndex), replicate({3}, Fill::kPositive)}, kLocal, P()},
    {"aten::div.Tensor", {replicate({}), partial({}, Fill::kPositive)}, kNo},
    {"aten::div.Tensor", {partial({}), partial({})}, kNo},
    {"aten::div.Scalar", {partial({}), 4.0}, kLocal, P()},
    {"aten::div.Tensor_mode", {shard({B, 3}), replicate({3}, Fill::kPositive)}, kLocal, S(0), {{"rounding_mode", "floor"}}},
    {"aten::div.Tensor_mode", {partial({3}), replicate({3}, Fill::kPositive)}, kLocal, P(), {{"rounding_mode", kNil}}},
    {"aten::div.Tensor_mode", {partial({3}), replicate({3}, Fill::kPositive)}, kNo, {}, {{"rounding_mode", "trunc"}}},
    {"aten::div.Scalar_mode", {shard({B, 3}), 0.3}, kLocal, S(0), {{"rounding_mode", "floor"}}},
    {"aten::div.Scalar_mode", {partial({3}), 0.3}, kNo, {}, {{"rounding_mode", "floor"}}},
    {"aten::true_divide.Scalar", {partial({3}), 0.3}, kLocal, P()},
    {"aten::add.Tensor", {partial({}), partial({})}, kLocal, P(), {{"alpha", 2.5}}},
    {"aten::add.Tensor", {partial({3}), replicate({2, 3})}, kLocal, P(), {{"alpha", 2.5}}},
    {"aten::add.Tensor", {replicate({2, 3}), partial({3})}, kLocal, P(), {{"alpha", 2.5}}},
    {"aten::add.Tensor", {partial({}), number(int64_t{1})}, kLocal, P()},
    {"aten::add.Tensor", {as(partial({}), c10::ScalarType::Float), number(0.5)}, kLocal, P()},
    {"aten::add.Tensor", {partial({3}, Fill::kIndex), partial({3}, Fill::kIndex)}, kLocal, P()},
    {"aten::add.Tensor", {partial({3}, Fill::kIndex), number(int64_t{1})}, kNo},
    {"aten::add.Tensor", {partial({3}, Fill::kIndex), number(0.5)}, kLocal, P()},
    {"aten::add.Tensor", {partial({3}, Fill::kIndex), replicate({3}, Fill::kIndex)}, kNo},
    {"aten::add.Tensor", {partial({3}), replicate({3}, Fill::kIndex)}, kNo},
    {"aten::add.Tensor", {partial({3}), shard({B, 3})}, kNo},
    {"aten::add.Scalar", {partial({3}), 1.5, 2.0}, kLocal, P()},
    {"aten::add.Scalar", {partial({3}), 2, 3}, kLocal, P()},
    {"aten::add.Scalar", {shard({B, 3}), 2, 3}, kLocal, S(0)},
    {"aten::add.Scalar", {partial({3}, Fill::kIndex), 1}, kNo},
    {"aten::sub.Tensor", {partial({3}), replicate({})}, kLocal, P(), {{"alpha", 3.0}}},
    {"aten::sub.Tensor", {replicate({}), partial({3})}, kLocal, P(), {{"alpha", 3.0}}},
    {"aten::sub.Tensor", {number(int64_t{1}), partial({3})}, kLocal, P()},
    {"aten::sub.Scalar", {partial({3}), 1.5, 2.0}, kLocal, P()},
    {"aten::rsub.Tensor", {partial({3}), replicate({3})}, kLocal, P(), {{"alpha", 3.0}}},
    {"aten::rsub.Scalar", {partial({3}), 1, 3}, kLocal, P()},
    {"aten::rsub.Scalar", {shard({B, 3}), 1, 3}, kLocal, S(0)},
  });

  // copies
  for (const char* op : {"aten::alias", "aten::clone", "aten::contiguous", "aten::detach", "aten::conj_physical", "aten::resolve_conj",
                         "aten::resolve_neg", "aten::real", "aten::zero"}) {
    cases.push_back({op, {shard({2, 3 * B}, 1, 3)}, kLocal, S(1, 3)});
    cases.push_back({op, {partial({3})}, kLocal, P()});
  }
  const int64_t as_double = code(c10::ScalarType::Double);
  const int64_t as_long = code(c10::ScalarType::Long), as_bool = code(c10::ScalarType::Bool);
  cases.insert(cases.end(), {
    {"aten::_conj", {as(shard({B, 3}), c10::ScalarType::ComplexDouble)}, kLocal, S(0)},
    {"aten::_conj", {as(partial({3}), c10::ScalarType::ComplexDouble)}, kLocal, P()},
    {"aten::real", {as(shard({B, 3}), c10::ScalarType::ComplexDouble)}, kLocal, S(0)},
    {"aten::imag", {as(shard({B, 3}), c10::ScalarType::ComplexDouble)}, kLocal, S(0)},
    {"aten::_to_copy", {shard({B, 3})}, kLocal, S(0), {{"dtype", as_long}}},
    {"aten::_to_copy", {partial({3}, Fill::kIndex)}, kLocal, P(), {{"dtype", as_double}}},
    {"aten::_to_copy", {partial({3})}, kNo, {}, {{"dtype", as_long}}},
    {"aten::_to_copy", {partial({3})}, kLocal, P()},
    {"aten::to.dtype", {partial({3}, Fill::kIndex), as_double}, kLocal, P()},
    {"aten::to.dtype", {partial({3}, Fill::kIndex), as_bool}, kNo},
    {"aten::to.dtype", {partial({3}), as_long}, kNo},
    {"aten::to.dtype", {shard({B, 3}), as_bool}, kLocal, S(0)},
    {"aten::to.dtype_layout", {shard({B, 3})}, kLocal, S(0), {{"dtype", as_long}}},
    {"aten::to.dtype_layout", {partial({3})}, kNo, {}, {{"dtype", as_long}}},
    {"aten::to.device", {shard({B, 3}), Special::kCpu, as_double, false, true}, kLocal, S(0)},
    {"aten::to.other", {shard({B, 3}), replicate({2, 7}, Fill::kIndex)}, kLocal, S(0)},
    {"aten::to.other", {shard({B, 3}), shard({4, B, 2}, 1)}, kLocal, S(0)},
    {"aten::to.other", {partial({3}, Fill::kIndex), shard({B})}, kLocal, P()},
    {"aten::to.other", {partial({3}), shard({B}, Fill::kIndex)}, kNo},
    {"aten::type_as", {shard({B, 3}, Fill::kBool), partial({})}, kLocal, S(0)},
    {"aten::type_as", {replicate({B, 3}), shard({B})}, kNo},
    {"aten::copy", {shard({B, 3}), replicate({B, 1})}, kLocal, S(0)},
    {"aten::copy", {shard({B, 3}), shard({B, 3}, Fill::kIndex)}, kLocal, S(0)},
    {"aten::copy", {partial({3}), partial({3}, Fill::kIndex)}, kLocal, P()},
    {"aten::copy", {partial({3}, Fill::kIndex), partial({3})}, kNo},
    {"aten::expand_as", {shard({B, 1}), replicate({B, 3})}, kLocal, S(0)},
    {"aten::expand_as", {shard({B, 1}), shard({B, 3})}, kLocal, S(0)},
    {"aten::expand_as", {replicate({1, 3}), shard({B, 3})}, kLocal, S(0)},
    {"aten::expand_as", {partial({1}), replicate({B, 3})}, kLocal, P()},
    {"aten::expand_as", {partial({1}), shard({B, 3})}, kNo},
    {"aten::fill.Tensor", {shard({B, 3}), replicate({})}, kLocal, S(0)},
    {"aten::fill.Scalar", {partial({3}), 1.0}, kNo},
  });

  // shape and dtype only
  for (const char* op : {"aten::zeros_like", "aten::ones_like"}) {
    cases.push_back({op, {shard({B, 3})}, kLocal, S(0)});
    cases.push_back({op, {partial({3})}, kReal});
  }
  cases.insert(cases.end(), {
    {"aten::full_like", {shard({B, 3}), 2.0}, kLocal, S(0)},
    {"aten::full_like", {partial({}), 2.0}, kReal},
    {"aten::empty_like", {shard({B, 3})}, kLocal, S(0), {}, /*random=*/true},
    {"aten::empty_like", {partial({3})}, kReal, {}, {}, /*random=*/true},
    {"aten::is_complex", {shard({B, 3})}, kReal},
    {"aten::is_floating_point", {partial({3})}, kReal},
    {"aten::is_same_size", {shard({B, 3}), replicate({B, 3})}, kReal},
    {"aten::is_signed", {shard({B, 3})}, kReal},
    {"aten::new_empty", {shard({B, 3}), ints({B, 2})}, kReal, {}, {}, /*random=*/true},
    {"aten::new_empty_strided", {shard({B, 3}), ints({B, 2}), ints({2, 1})}, kReal, {}, {}, /*random=*/true},
    {"aten::new_full", {shard({B, 3}), ints({B, 2}), 1.0}, kReal},
    {"aten::new_ones", {partial({3}), ints({B, 2})}, kReal},
    {"aten::new_zeros", {shard({B, 3}), ints({B, 2})}, kReal},
    {"aten::result_type.Tensor", {shard({B, 3}), replicate({B, 2}, Fill::kIndex)}, kReal},
    {"aten::result_type.Scalar", {shard({B, 3}), 1.5}, kReal},
    {"aten::result_type.Scalar_Tensor", {1.5, shard({B, 3})}, kReal},
    {"aten::size.int", {shard({B, 3}), 0}, kReal},
    {"aten::stride.int", {shard({B, 3}), 0}, kReal},
    {"aten::numel", {shard({B, 3})}, kReal},
    {"aten::dim", {shard({B, 3})}, kReal},
    {"aten::sym_numel", {shard({B, 3})}, kReal},
    {"aten::sym_size.int", {shard({B, 3}), 0}, kReal},
    {"aten::sym_stride.int", {shard({B, 3}), 0}, kReal},
  });
  return cases;
}

}  // namespace koila::cases
