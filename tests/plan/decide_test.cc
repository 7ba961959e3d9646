#include "torchglue/plan/decide.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "torchglue/placement/user_rules.h"

namespace koila {
namespace {

constexpr int64_t kRows = 8;

const Placement kWholeOne = Placement::replicate();
const Placement kSplit = Placement::shard(0);
const Placement kSum = Placement::partial();

// A tensor argument: its sizes, and how it is split.
struct Tensor {
  std::vector<int64_t> sizes;
  Placement placement;
};

TensorSpec spec_of(const Tensor& t) {
  TensorSpec spec;
  spec.defined = true;
  spec.sizes.assign(t.sizes.begin(), t.sizes.end());
  spec.placement = t.placement;
  return spec;
}

// A call as data. `others` are the arguments behind the tensors.
struct Case {
  const char* what;
  const char* name;
  const char* overload;
  std::vector<Tensor> tensors;
  std::vector<c10::IValue> others;
  Way way;
  bool held_whole = false;
  bool draws_whole = false;
  std::optional<Placement> written = std::nullopt;
  bool free_to_write = false;
  bool takes_gradient = false;
  bool drawn = false;
};

OpCall call_of(const Case& c, const c10::OperatorHandle& op) {
  OpCall call(op.schema(), kRows);
  call.args().resize(op.schema().arguments().size());
  for (size_t i = 0; i < c.tensors.size(); ++i) {
    call.args()[i].is_tensor = true;
    call.args()[i].tensors = {spec_of(c.tensors[i])};
  }
  for (size_t i = 0; i < c.others.size(); ++i) call.args()[c.tensors.size() + i].value = c.others[i];
  for (size_t i = c.tensors.size() + c.others.size(); i < call.args().size(); ++i) {
    OpCall::Arg& arg = call.args()[i];
    arg.is_tensor = op_traits(op).kinds[i] == ArgumentKind::kTensor;
    if (arg.is_tensor) arg.tensors.resize(1);
  }
  return call;
}

Decision decide_case(const Case& c) {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(c.name, c.overload);
  OpCall call = call_of(c, op);
  const auto takes_gradient = [&](int) { return c.takes_gradient; };
  Context context{op_traits(op)};
  context.held_whole = c.held_whole;
  context.draws_whole = c.draws_whole;
  context.written = c.written;
  context.free_to_write = c.free_to_write;
  context.takes_gradient = takes_gradient;
  return decide(call, context);
}

const Tensor kRow{{kRows, 4}, kSplit};
const Tensor kWeight{{4, 4}, kWholeOne};
const Tensor kScalarSum{{}, kSum};

const std::vector<Case> kCases = {
    {"element by element", "aten::relu", "", {kRow}, {}, Way::kJoin},
    {"with a weight that every row sees", "aten::mm", "", {kRow, kWeight}, {}, Way::kJoin},
    {"no rule", "aten::linalg_svdvals", "", {kRow}, {}, Way::kWhole},
    {"along the batch", "aten::cumsum", "", {kRow}, {0}, Way::kWhole},
    {"along the rows", "aten::cumsum", "", {kRow}, {1}, Way::kJoin},
    {"under the program's own hooks", "aten::relu", "", {kRow}, {}, Way::kWhole, /*held_whole=*/true},
    {"reads no value", "aten::zeros_like", "", {kScalarSum}, {}, Way::kReal},
    {"the same held whole", "aten::zeros_like", "", {kScalarSum}, {}, Way::kWhole, /*held_whole=*/true},
    {"needs the sum of all rows", "aten::mul", "Tensor", {kRow, kScalarSum}, {}, Way::kStage},
    {"a dropout", "aten::dropout", "", {kRow}, {0.5, true}, Way::kJoin},
    {"that was drawn for the full batch", "aten::dropout", "", {kRow}, {0.5, true}, Way::kWhole, false, /*draws_whole=*/true, std::nullopt, false, false, /*drawn=*/true},
    {"that draws nothing, outside of training", "aten::dropout", "", {kRow}, {0.5, false}, Way::kJoin, false, /*draws_whole=*/true},
    {"a write to a value that stays split", "aten::relu_", "", {kRow}, {}, Way::kJoin, false, false, kSplit},
    {"a write to what the region did not make", "aten::relu_", "", {kRow}, {}, Way::kWhole},
    {"a write of rows into what is whole", "aten::add_", "Tensor", {Tensor{{kRows, 4}, kWholeOne}, kRow}, {1}, Way::kWhole, false, false, kWholeOne},
    {"a change of how a tensor looks", "aten::unsqueeze_", "", {kRow}, {0}, Way::kJoin, false, false, std::nullopt, /*free_to_write=*/true},
    {"a part of a sum through which a gradient flows", "aten::diagonal", "", {Tensor{{4, 4}, kSum}}, {}, Way::kWhole, false, false, std::nullopt, false, /*takes_gradient=*/true},
    {"a part of a sum without a gradient", "aten::diagonal", "", {Tensor{{4, 4}, kSum}}, {}, Way::kJoin},
    {"a view of all of a sum", "aten::t", "", {Tensor{{4, 4}, kSum}}, {}, Way::kJoin, false, false, std::nullopt, false, /*takes_gradient=*/true},
    {"a part of each row", "aten::slice", "Tensor", {kRow}, {1, 0, 2}, Way::kJoin, false, false, std::nullopt, false, /*takes_gradient=*/true},
    {"a write to nothing in particular", "aten::relu", "out", {kRow, Tensor{{kRows, 4}, kWholeOne}}, {}, Way::kWhole, false, false, kSplit},
};

TEST(Decide, ByTheTable) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(std::string(c.what) + ": " + c.name);
    const Decision decision = decide_case(c);
    EXPECT_EQ(static_cast<int>(decision.way), static_cast<int>(c.way));
    EXPECT_EQ(decision.drawn, c.drawn);
  }
}

TEST(Decide, AGradientDoesNotFlowThroughADenominator) {
  // cross_entropy_loss divides by the number of labels that count, which it reads of all of them.
  Case c{"a mean over labels", "aten::cross_entropy_loss", "", {kRow, Tensor{{kRows}, kSplit}}, {}, Way::kJoin};
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(c.name, c.overload);
  OpCall call = call_of(c, op);
  call.args()[1].tensors[0].dtype = at::kLong;
  call.args()[3].value = 1;     // reduction: mean
  call.args()[4].value = -100;  // ignore_index
  call.args()[5].value = 0.0;   // label_smoothing
  OpCall again = call;
  Context context{op_traits(op)};
  EXPECT_TRUE(decide(call, context).way == Way::kJoin);
  ASSERT_FALSE(call.real_arguments().empty());
  const auto all = [](int) { return true; };
  context.takes_gradient = all;
  EXPECT_TRUE(decide(again, context).way == Way::kWhole);
}

TEST(Decide, WhatAConstantIsMadeOf) {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::zeros", "");
  Case c{"zeros", "aten::zeros", "", {}, {std::vector<int64_t>{kRows, 3}}, Way::kJoin};
  Context context{op_traits(op)};
  context.creates = kSplit;
  OpCall rows = call_of(c, op);
  EXPECT_TRUE(decide(rows, context).way == Way::kJoin);
  EXPECT_EQ(rows.outputs()[0], kSplit);
  c.others = {std::vector<int64_t>{kRows + 1, 3}};
  OpCall none = call_of(c, op);
  EXPECT_TRUE(decide(none, context).way == Way::kWhole);
}

}  // namespace
}  // namespace koila
