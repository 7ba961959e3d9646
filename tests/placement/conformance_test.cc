// Every entry of the rule tables, run in micro-batches as it answers and compared with the full batch.
#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "tests/placement/calls.h"
#include "torchglue/placement/rule.h"

namespace koila::cases {
namespace {

// Operators that not every release of torch has. Where it is missing its cases do not apply; any other name that torch does not know is a mistake.
bool is_missing(const std::string& op) {
  static const std::set<std::string> of_some_releases = {"aten::_upsample_lanczos2d_aa"};
  const std::string name = op.substr(0, op.find('.'));
  return of_some_releases.count(name) && !c10::Dispatcher::singleton().findSchema({name, ""});
}

const std::vector<Case>& all_cases() {
  static const std::vector<Case> cases = [] {
    std::vector<Case> all;
    for (auto family : {pointwise_cases, view_cases, reduction_cases, matrix_cases, layer_cases, loss_cases, indexing_cases, kernel_cases}) {
      for (Case& c : family()) {
        if (!is_missing(c.op)) all.push_back(std::move(c));
      }
    }
    return all;
  }();
  return cases;
}

const char* name_of(Verdict v) { return v == Verdict::kNo ? "kNo" : v == Verdict::kLocal ? "kLocal" : v == Verdict::kStaged ? "kStaged" : "kReal"; }
const char* name_of(Expect v) { return v == Expect::kNo ? "kNo" : v == Expect::kLocal ? "kLocal" : v == Expect::kStaged ? "kStaged" : "kReal"; }

conformance::Outcome check(const conformance::Call& call, const Case& c) {
  conformance::Options options;
  options.batch = B;
  options.random = c.random;
  return conformance::check(call, options);
}

class Conformance : public ::testing::TestWithParam<size_t> {};

TEST_P(Conformance, EqualsTheFullBatch) {
  at::manual_seed(GetParam());
  const Case& c = all_cases()[GetParam()];
  const conformance::Call call = call_of(c);
  SCOPED_TRACE(to_string(call));
  const conformance::Outcome outcome = check(call, c);
  ASSERT_NE(outcome.rule, nullptr) << "no rule";
  ASSERT_STREQ(name_of(outcome.verdict), name_of(c.verdict));
  for (const std::string& error : outcome.errors) ADD_FAILURE() << error;
  if (!c.output.is_replicate()) {
    ASSERT_FALSE(outcome.outputs.empty());
    EXPECT_EQ(to_string(outcome.outputs[0]), to_string(c.output));
  }
}

// Rows in the order of their lengths stay the rows that they are; in any other order they are a batch of their own.
TEST(Indices, RowsInTheOrderOfASortStayTheirs) {
  const Case c{"aten::index_select", {shard({3, B}, 1), 1, with_values({4, 0, 3, 2, 1})}, kLocal, R(1)};
  conformance::Options options;
  options.batch = B;
  EXPECT_EQ(conformance::check(call_of(c), options).verdict, Verdict::kNo);
  options.index_sorts = true;
  const conformance::Outcome outcome = conformance::check(call_of(c), options);
  EXPECT_EQ(outcome.verdict, Verdict::kLocal);
  EXPECT_EQ(to_string(outcome.outputs.at(0)), to_string(c.output));
  for (const std::string& error : outcome.errors) ADD_FAILURE() << error;
}

// The machinery asks the same entry for `add_`, and the written argument keeps its placement.
const Operand* written(const Case& c) { return c.args.empty() ? nullptr : std::get_if<Operand>(&c.args[0]); }

bool has_in_place_twin(const Case& c) {
  const Operand* self = written(c);
  return c.verdict == Expect::kLocal && self != nullptr && (c.output.is_replicate() || c.output == self->placement) &&
         !conformance::twin(c.op, "_").empty();
}

class InPlaceTwin : public Conformance {};

TEST_P(InPlaceTwin, EqualsTheFullBatch) {
  at::manual_seed(GetParam());
  const Case& c = all_cases()[GetParam()];
  conformance::Call call = call_of(c);
  conformance::Outcome outcome = check(call, c);
  if (outcome.outputs.empty() || outcome.outputs[0] != written(c)->placement) GTEST_SKIP();
  try {
    call.op = conformance::twin(c.op, "_");
    outcome = check(call, c);
  } catch (const c10::Error&) {
    GTEST_SKIP();  // the result would not fit into self
  }
  SCOPED_TRACE(to_string(call));
  for (const std::string& error : outcome.errors) ADD_FAILURE() << error;
}

// As for `view_copy`, whose result shares no memory.
bool has_copying_twin(const Case& c) { return !conformance::twin(c.op, "_copy").empty(); }

class CopyingTwin : public Conformance {};

TEST_P(CopyingTwin, EqualsTheFullBatch) {
  at::manual_seed(GetParam());
  const Case& c = all_cases()[GetParam()];
  conformance::Call call = call_of(c);
  call.op = conformance::twin(c.op, "_copy");
  SCOPED_TRACE(to_string(call));
  conformance::Outcome outcome;
  try {
    outcome = check(call, c);
  } catch (const c10::Error&) {
    GTEST_SKIP();  // some of them have no gradient
  }
  EXPECT_STREQ(name_of(outcome.verdict), name_of(c.verdict));
  for (const std::string& error : outcome.errors) ADD_FAILURE() << error;
}

// A case that has no such twin is no test that was skipped.
std::vector<size_t> numbers_of(bool (*applies)(const Case&)) {
  std::vector<size_t> numbers;
  for (size_t i = 0; i < all_cases().size(); ++i) {
    if (applies(all_cases()[i])) numbers.push_back(i);
  }
  return numbers;
}

std::string test_name(const ::testing::TestParamInfo<size_t>& info) {
  std::string name = all_cases()[info.param].op.substr(6) + "_" + std::to_string(info.param);
  std::replace_if(name.begin(), name.end(), [](char ch) { return !std::isalnum(static_cast<unsigned char>(ch)); }, '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Rules, Conformance, ::testing::Range<size_t>(0, all_cases().size()), test_name);
INSTANTIATE_TEST_SUITE_P(Rules, InPlaceTwin, ::testing::ValuesIn(numbers_of(has_in_place_twin)), test_name);
INSTANTIATE_TEST_SUITE_P(Rules, CopyingTwin, ::testing::ValuesIn(numbers_of(has_copying_twin)), test_name);

// Overloads that no case can call: no kernel on the CPU, or no tensor among the arguments.
const std::set<std::string> kOutOfReach = {
    "aten::addmm.dtype", "aten::baddbmm.dtype", "aten::bmm.dtype", "aten::mm.dtype", "aten::normal.float_float", "aten::result_type.Scalar_Scalar",
};

// A rule without a conformance case does not exist: every entry has a call that it splits, and every overload that it answers has a case.
TEST(Coverage, EveryEntryAndOverloadHasACase) {
  std::set<std::string> covered;
  std::set<std::string> split;
  for (const Case& c : all_cases()) {
    covered.insert(c.op);
    covered.insert(conformance::twin(c.op, "_copy"));
    if (c.verdict != Expect::kNo) split.insert(c.op);
  }
  auto& dispatcher = c10::Dispatcher::singleton();
  std::set<const Rule*> splits;
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (name.name.rfind("aten::", 0) != 0 && name.name.rfind("koila::", 0) != 0) continue;
    const auto op = dispatcher.findSchema(name);
    if (!op) continue;
    const Rule* rule = find_rule(op->schema());
    if (rule == nullptr) continue;
    const auto& arguments = op->schema().arguments();
    const bool writes = std::any_of(arguments.begin(), arguments.end(), [](const c10::Argument& a) {
      return a.is_out() || (a.alias_info() != nullptr && a.alias_info()->isWrite());
    });
    const std::string text = name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
    if (split.count(text)) splits.insert(rule);
    if (writes || kOutOfReach.count(text)) continue;
    EXPECT_TRUE(covered.count(text)) << text << " answers by the entry " << rule->name << ", without a case";
  }
  // A rule of a mask's values, which no case gives: tests/conformance and tests/e2e/test_masks.py do.
  const std::set<std::string> by_values = {"aten::masked_scatter", "aten::masked_select", "koila::gradient",  // and one of a graph, which they have not: gradient_test.cc;
                                           "koila::function", "koila::function_view"};                      // and two that Python has the kernels of: tests/e2e/functions_by_rows.py
  for (const Rule* rule : registered_rules()) EXPECT_TRUE(splits.count(rule) || by_values.count(rule->name) || is_missing(rule->name)) << rule->name << " has no case that splits";
}

}  // namespace
}  // namespace koila::cases
