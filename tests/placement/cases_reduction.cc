#include "tests/placement/cases.h"

namespace koila::cases {

std::vector<Case> reduction_cases() {
  std::vector<Case> cases;
  const int64_t as_double = code(c10::ScalarType::Double), as_long = code(c10::ScalarType::Long);

  // f(self, dim, keepdim) over one dimension, or several
  for (const char* op : {"aten::amax", "aten::amin", "aten::logsumexp"}) {
    cases.insert(cases.end(), {
      {op, {shard({B, 3, 4}), ints({1}), true}, kLocal, S(0)},
      {op, {shard({3, B, 4}, 1), ints({0, -1})}, kLocal, S(0)},
      {op, {shard({2, 6 * B}, 1, 2, 3), ints({0}), true}, kLocal, S(1, 2, 3)},
      {op, {shard({B, 3}), ints({0})}, kStaged},
      {op, {shard({B, 3}), ints({-2, 1})}, kStaged},
      {op, {partial({3}), ints({0})}, kNo},
    });
  }
  for (const char* op : {"aten::max.dim", "aten::min.dim", "aten::median.dim", "aten::nanmedian.dim", "aten::mode", "aten::argmax", "aten::argmin"}) {
    cases.insert(cases.end(), {
      {op, {shard({B, 3}), 1}, kLocal, S(0)},
      {op, {shard({3, B}, 1), 0}, kLocal, S(0)},
      {op, {shard({3, B}, 1), 0, true}, kLocal, S(1)},
      {op, {shard({B, 3}), 0}, kNo},
      {op, {partial({3}), 0}, kNo},
    });
  }
  for (const char* op : {"aten::any.dim", "aten::all.dim"}) {
    cases.insert(cases.end(), {
      {op, {shard({B, 3}, Fill::kBool), 1}, kLocal, S(0)},
      {op, {shard({3, B}, 1, 1, 1, Fill::kBool), 0, true}, kLocal, S(1)},
      {op, {shard({B, 3}, Fill::kBool), 0}, kStaged},
    });
  }
  for (const char* op : {"aten::any.dims", "aten::all.dims"}) {
    cases.push_back({op, {shard({3, B, 2}, 1, 1, 1, Fill::kBool), ints({0, 2})}, kLocal, S(0)});
    cases.push_back({op, {shard({B, 3}, Fill::kBool), ints({})}, kNo});
    cases.push_back({op, {shard({B, 3}, Fill::kBool), kNil}, kStaged});
  }
  cases.insert(cases.end(), {
    {"aten::any", {shard({B, 3}, Fill::kBool)}, kStaged},
    {"aten::all", {shard({B, 3}, Fill::kBool)}, kStaged},
    {"aten::max", {shard({B, 3})}, kStaged},
    {"aten::min", {shard({B, 3})}, kStaged},
    {"aten::norm.ScalarOpt_dtype", {shard({B, 3}), 2.0}, kStaged, {}, {{"dtype", as_double}}},
    {"aten::argmax", {shard({B, 3})}, kNo},
    {"aten::aminmax", {shard({3, B}, 1)}, kLocal, S(0), {{"dim", 0}}},
    {"aten::aminmax", {shard({3, B}, 1)}, kNo},
    {"aten::kthvalue", {shard({3, B}, 1), 2, 0}, kLocal, S(0)},
    {"aten::kthvalue", {shard({3, B}, 1), 2}, kNo},
    {"aten::prod.dim_int", {shard({3, B}, 1), 0}, kLocal, S(0)},
    {"aten::prod.dim_int", {shard({B, 3}), 0}, kNo},
    {"aten::prod", {shard({B, 3})}, kNo},
    {"aten::linalg_vector_norm", {shard({3, B}, 1), 2.0, ints({0}), true}, kLocal, S(1)},
    {"aten::linalg_vector_norm", {shard({B, 3})}, kStaged},
    {"aten::norm.ScalarOpt_dim", {shard({3, B}, 1), 2.0, ints({0})}, kLocal, S(0)},
    {"aten::norm.ScalarOpt_dim_dtype", {shard({B, 3}), 1.0, ints({1}), true}, kLocal, S(0), {{"dtype", as_double}}},
    {"aten::norm.Scalar", {shard({B, 3})}, kStaged},
    {"aten::norm.ScalarOpt_dim", {partial({3}), 2.0, ints({0})}, kNo},
    {"aten::max.dim", {shard({B, B}, 1), 0}, kLocal, S(0)},
  });
  for (const char* op : {"aten::std", "aten::var", "aten::std_mean", "aten::var_mean"}) {
    const std::string dim = std::string(op) + ".dim", correction = std::string(op) + ".correction";
    cases.insert(cases.end(), {
      {dim, {shard({3, B}, 1), ints({0})}, kLocal, S(0)},
      {dim, {shard({B, 3}), ints({-1}), false, true}, kLocal, S(0)},
      {dim, {shard({B, 3}), ints({0})}, kStaged},
      {correction, {shard({3, B, 2}, 1), ints({0, 2})}, kLocal, S(0), {{"correction", 0}}},
      {correction, {shard({3, B, 2}, 1)}, kStaged},
      {op, {shard({B, 3})}, kStaged},
      {op, {partial({3})}, kNo},
    });
  }

  // sums and means
  for (const char* op : {"aten::sum", "aten::mean", "aten::nansum"}) {
    const bool sums = std::string(op) != "aten::nansum";
    const std::string dim = std::string(op) == "aten::sum" ? "aten::sum.dim_IntList" : std::string(op) == "aten::mean" ? "aten::mean.dim" : op;
    cases.insert(cases.end(), {
      {dim, {shard({3, B, 2}, 1), ints({0, 2})}, kLocal, S(0)},
      {dim, {shard({3, B, 2}, 1), ints({0, 2}), true}, kLocal, S(1)},
      {dim, {shard({3, B, 2}, 1), ints({0, 1})}, kLocal, P()},
      {dim, {shard({3, 6 * B, 2}, 1, 3, 2), ints({-2}), true}, kLocal, P()},
      {dim, {shard({B, 3}), ints({})}, kLocal, P()},
      {dim, {shard({B, 3}), kNil}, kLocal, P()},
      {dim, {partial({3, 2}), ints({0})}, sums ? kLocal : kNo, sums ? P() : Placement()},
    });
    if (!sums) continue;
    cases.insert(cases.end(), {
      {op, {shard({B, 3})}, kLocal, P()},
      {op, {shard({2, 6 * B}, 1, 3, 2)}, kLocal, P()},
      {op, {partial({3})}, kLocal, P()},
      {op, {partial({})}, kLocal, P()},
      {op, {shard({B, 3}, Fill::kIndex)}, kLocal, P(), {{"dtype", as_double}}},
    });
  }
  cases.insert(cases.end(), {
    {"aten::sum", {shard({B, 3}, Fill::kBool)}, kLocal, P()},
    {"aten::sum", {shard({B, 3}, Fill::kIndex)}, kLocal, P()},
    {"aten::sum", {partial({3})}, kNo, {}, {{"dtype", as_long}}},
    {"aten::mean.dim", {shard({B, B}, 1), ints({0})}, kLocal, S(0)},
    {"aten::count_nonzero.dim_IntList", {shard({B, 3}, Fill::kZeroOne), ints({1})}, kLocal, S(0)},
    {"aten::count_nonzero.dim_IntList", {shard({B, 3}, Fill::kZeroOne), ints({0})}, kLocal, P()},
    {"aten::count_nonzero", {shard({B, 3}, Fill::kZeroOne)}, kLocal, P()},
    {"aten::count_nonzero", {partial({3}, Fill::kIndex)}, kNo},
  });

  // along one dimension
  for (const char* op : {"aten::cumprod", "aten::cumsum", "aten::log_softmax.int", "aten::logcumsumexp", "aten::softmax.int", "aten::cummax", "aten::cummin",
                         "aten::argsort", "aten::sort"}) {
    const Expect over_batch = std::string(op).find("softmax") != std::string::npos ? kStaged : kNo;
    cases.insert(cases.end(), {
      {op, {shard({B, 3}), 1}, kLocal, S(0)},
      {op, {shard({3, B, 2}, 1), 0}, kLocal, S(1)},
      {op, {shard({3, B, 2}, 1), -1}, kLocal, S(1)},
      {op, {shard({B, 3}), 0}, over_batch},
      {op, {shard({6 * B, 3}, 0, 2, 3), -2}, over_batch},
    });
  }
  cases.insert(cases.end(), {
    {"aten::histc", {constant(shard({B, 3})), 4, -2.0, 2.0}, kLocal, P()},
    {"aten::histc", {constant(shard({B, 3})), 4}, kNo},
    {"aten::_safe_softmax", {shard({B, 3}), 1}, kLocal, S(0)},
    {"aten::_safe_softmax", {shard({B, 3}), 0}, kNo},
  });
  for (const char* op : {"aten::_log_softmax_backward_data", "aten::_softmax_backward_data"}) {
    cases.push_back({op, {shard({B, 3}), replicate({B, 3}), 1, code(c10::ScalarType::Double)}, kLocal, S(0)});
    cases.push_back({op, {shard({3, B}, 1), shard({3, B}, 1), 1, code(c10::ScalarType::Double)}, kNo});
  }
  for (const char* op : {"aten::_log_softmax", "aten::_softmax"}) {
    cases.push_back({op, {shard({B, 3}), -1, false}, kLocal, S(0)});
    cases.push_back({op, {shard({B, 3}), 0, false}, kStaged});
    cases.push_back({op, {partial({3}), 0, false}, kNo});
  }
  cases.insert(cases.end(), {
    {"aten::cumsum", {partial({3}), 0}, kLocal, P()},
    {"aten::cumsum", {partial({3}), 0}, kNo, {}, {{"dtype", as_long}}},
    {"aten::cumprod", {partial({3}), 0}, kNo},
    {"aten::argsort.stable", {shard({3, B}, 1)}, kLocal, S(1), {{"stable", true}, {"dim", 0}}},
    {"aten::sort.stable", {shard({3, B}, 1)}, kLocal, S(1), {{"stable", true}, {"dim", 0}}},
    {"aten::sort.stable", {shard({3, B}, 1)}, kNo, {}, {{"stable", true}}},
    {"aten::sort", {shard({3, B}, 1)}, kNo},
    {"aten::topk", {shard({3, B}, 1), 2, 0}, kLocal, S(1)},
    {"aten::topk", {shard({3, B}, 1), 2}, kNo},
    {"aten::glu", {shard({B, 4})}, kLocal, S(0)},
    {"aten::glu", {shard({4, B}, 1), 0}, kLocal, S(1)},
    {"aten::glu", {shard({3, 2 * B}, 1, 2)}, kNo},
    {"aten::linalg_cross", {shard({B, 3}), replicate({B, 3})}, kLocal, S(0)},
    {"aten::linalg_cross", {shard({B, 3}), replicate({1, 3})}, kLocal, S(0)},
    {"aten::linalg_cross", {shard({3, B}, 1), shard({3, B}, 1)}, kLocal, S(1), {{"dim", 0}}},
    {"aten::softmax.int", {shard({B, B}, 1), 0}, kLocal, S(1)},
  });
  return cases;
}

}  // namespace koila::cases
