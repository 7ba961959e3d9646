#include "torchglue/placement/rule.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <gtest/gtest.h>

#include "tests/placement/specs.h"

namespace koila {
namespace {

OpCall::Arg tensor(const Placement& placement, std::initializer_list<int64_t> sizes) {
  OpCall::Arg arg;
  arg.is_tensor = true;
  arg.tensors = {spec(placement, sizes)};
  return arg;
}

OpCall::Arg integer(int64_t value) {
  OpCall::Arg arg;
  arg.value = value;
  return arg;
}

OpCall call_of(const char* name, const char* overload, std::vector<OpCall::Arg> args) {
  OpCall call(c10::Dispatcher::singleton().findSchemaOrThrow(name, overload).schema(), kBatch);
  call.args() = std::move(args);
  return call;
}

using Whole = std::vector<OpCall::ArgRef>;

TEST(Rule, MakesNothingWholeWhereRowsAreEnough) {
  OpCall call = call_of("aten::mm", "", {tensor(Placement::shard(0), {kBatch, 3}), tensor({}, {3, 4})});
  EXPECT_EQ(ask(find_rule(call.schema()), call), Verdict::kLocal);
  EXPECT_EQ(call.whole(), Whole{});
}

TEST(Rule, EachRowAgainstAllOthersGathersTheSecond) {
  OpCall call = call_of("aten::mm", "", {tensor(Placement::shard(0), {kBatch, 3}), tensor(Placement::shard(1), {3, kBatch})});
  EXPECT_EQ(ask(find_rule(call.schema()), call), Verdict::kStaged);
  EXPECT_EQ(call.whole(), Whole{{1}});
  EXPECT_TRUE(call.is_whole({1}));
  EXPECT_FALSE(call.is_whole({0}));
  EXPECT_TRUE(call.tensor(1).placement.is_replicate());
  call.clear_answer();
  EXPECT_EQ(call.whole(), Whole{});
}

TEST(Rule, OrTheSmaller) {
  OpCall call = call_of("aten::mm", "", {tensor(Placement::shard(0), {kBatch, 3}), tensor(Placement::shard(1, 1, 2), {3, 2 * kBatch})});
  EXPECT_EQ(ask(find_rule(call.schema()), call), Verdict::kStaged);
  EXPECT_EQ(call.whole(), Whole{{0}});
}

TEST(Rule, SumsWhatIsPartialBesideRows) {
  OpCall call = call_of("aten::mul", "Tensor", {tensor(Placement::shard(0), {kBatch, 3}), tensor(Placement::partial(), {3})});
  EXPECT_EQ(ask(find_rule(call.schema()), call), Verdict::kStaged);
  EXPECT_EQ(call.whole(), Whole{{1}});
}

TEST(Rule, NamesElementsOfLists) {
  OpCall::Arg list;
  list.is_tensor_list = true;
  list.tensors = {spec(Placement::shard(0), {kBatch, 3}), spec(Placement::partial(), {kBatch, 1})};
  OpCall call = call_of("aten::cat", "", {list, integer(1)});
  EXPECT_EQ(ask(find_rule(call.schema()), call), Verdict::kStaged);
  EXPECT_EQ(call.whole(), (Whole{{0, 1}}));
}

TEST(Rule, AQuestionWithoutAnswerStaysAsItWas) {
  OpCall call = call_of("aten::linalg_cross", "", {tensor(Placement::shard(0), {kBatch, 3}), tensor(Placement::shard(0), {kBatch, 3}), integer(0)});
  EXPECT_EQ(ask(find_rule(call.schema()), call), Verdict::kNo);
  EXPECT_EQ(call.whole(), Whole{});
  EXPECT_EQ(call.tensor(0).placement, Placement::shard(0));
  EXPECT_EQ(call.tensor(1).placement, Placement::shard(0));
}

TEST(Rule, TheTablesAnswerForTwins) {
  for (const char* name : {"aten::add", "aten::add_", "aten::view", "aten::view_copy", "aten::log_softmax"}) EXPECT_TRUE(has_built_in_rule(name, "")) << name;
  for (const char* name : {"aten::ad", "aten::nothing_copy", "aten::__iadd__", "mine::add_"}) EXPECT_FALSE(has_built_in_rule(name, "")) << name;
  EXPECT_TRUE(has_built_in_rule("aten::log_softmax", "int"));
  EXPECT_FALSE(has_built_in_rule("aten::log_softmax", "other"));
}

}  // namespace
}  // namespace koila
