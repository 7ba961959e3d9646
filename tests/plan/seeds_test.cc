#include "torchglue/plan/seeds.h"

#include <gtest/gtest.h>

#include "tests/tape/recorder.h"

namespace koila {
namespace {

constexpr int64_t kRows = 32;

TapeValueId value_of(const Tape& tape, const at::Tensor& t) { return tape.find(t.unsafeGetTensorImpl()); }
at::Tensor parameter(at::IntArrayRef sizes) { return at::rand(sizes).set_requires_grad(true); }

// The plan that a backward pass from `root` would get.
std::optional<Plan> plan_for(const Tape& tape, const at::Tensor& root) {
  const auto serves = [&](const Plan& plan) { return plan.descends[value_of(tape, root)] != 0; };
  return choose_seeds(tape, {serves, [](const Plan&) { return true; }, 0});
}

class Mlp {
 public:
  explicit Mlp(Tape& tape) : run(tape) {}
  at::Tensor operator()(const at::Tensor& x) { return run.linear(run.tanh(run.linear(x, first)), second); }

  Recorder run;
  const at::Tensor first = parameter({48, 20});
  const at::Tensor second = parameter({10, 48});
};

TEST(Seeds, TheBatchOfAnMlp) {
  Tape tape;
  Mlp mlp(tape);
  const at::Tensor x = at::rand({kRows, 20});
  const at::Tensor out = mlp(x);
  const at::Tensor loss = mlp.run.sum(out);
  const auto plan = plan_for(tape, loss);
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->batch, kRows);
  ASSERT_EQ(plan->seeds.size(), 1u);
  EXPECT_EQ(plan->seeds[0].value, value_of(tape, x));
  EXPECT_EQ(plan->seeds[0].placement, Placement::shard(0));
  EXPECT_EQ(plan->placements[value_of(tape, out)], Placement::shard(0));
  EXPECT_TRUE(plan->placements[value_of(tape, loss)].is_partial());
  EXPECT_EQ(plan->whole_ops, 0);
}

// What adapters are trained behind: the columns' weights could be split, too, and would serve.
TEST(Seeds, ALeafThatTheStepHasComputedIsTheBatch) {
  Tape tape;
  Mlp mlp(tape);
  const at::Tensor table = at::rand({7, 20}), numbers = at::randint(7, {kRows}, at::kLong), columns = at::rand({10});
  const at::Tensor h = mlp.run("aten::embedding", {table, numbers, -1, false, false});
  h.set_requires_grad(true);
  const at::Tensor loss = mlp.run.sum(mlp.run("aten::mul", "Tensor", {mlp(h), columns}));
  const auto plan = plan_for(tape, loss);
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->batch, kRows);
  EXPECT_TRUE(is_seed(*plan, value_of(tape, h)));
}

TEST(Seeds, BothTowersGoAlong) {
  Tape tape;
  Mlp mlp(tape);
  const at::Tensor a = at::rand({kRows, 20}), b = at::rand({kRows, 20});
  const at::Tensor loss = mlp.run.sum(mlp.run.add(mlp(a), mlp(b)));
  const auto plan = plan_for(tape, loss);
  ASSERT_TRUE(plan);
  EXPECT_TRUE(is_seed(*plan, value_of(tape, a)));
  EXPECT_TRUE(is_seed(*plan, value_of(tape, b)));
}

TEST(Seeds, SomethingAsLongAsTheBatchThatDoesNotFitIsLeft) {
  Tape tape;
  Recorder run(tape);
  // [B, T, C] + [T, C] with T == B, as token and position embeddings are.
  const at::Tensor words = parameter({50, 16}), places = parameter({kRows, 16});
  const at::Tensor tokens = at::randint(50, {kRows, kRows}), positions = at::arange(kRows);
  const at::Tensor x = run.add(run("aten::embedding", {words, tokens, -1, false, false}), run("aten::embedding", {places, positions, -1, false, false}));
  const at::Tensor loss = run.sum(run.tanh(x));
  const auto plan = plan_for(tape, loss);
  ASSERT_TRUE(plan);
  EXPECT_TRUE(is_seed(*plan, value_of(tape, tokens)));
  EXPECT_FALSE(is_seed(*plan, value_of(tape, positions)));
  EXPECT_EQ(plan->whole_ops, 0);
}

TEST(Seeds, WhatCameOfDrawsThatAreGoneIsTakenAsItIs) {
  Tape tape;
  Mlp mlp(tape);
  const at::Tensor x = at::rand({kRows, 20}), weight = at::rand({10, 20});
  at::Tensor target;
  {
    const at::NoGradGuard teacher;
    const c10::IValue none;
    target = mlp.run.linear(mlp.run.add(x, mlp.run("aten::randn_like", {x, none, none, none, none, none})), weight);
  }
  const at::Tensor out = mlp(x);
  const at::Tensor loss = mlp.run.sum(mlp.run.tanh(mlp.run.add(out, target)));
  const auto plan = plan_for(tape, loss);
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->placements[value_of(tape, out)], Placement::shard(0));
  EXPECT_FALSE(plan->descends[value_of(tape, target)]);
}

TEST(Seeds, TokensThatTheProgramHasGenerated) {
  Tape tape;
  Recorder run(tape);
  const at::Tensor words = parameter({50, 16}), weight = parameter({50, 16}), prompt = at::randint(50, {kRows, 4});
  const at::NoGradGuard generation;
  const auto logits = [&](const at::Tensor& tokens) { return run.linear(run.tanh(run("aten::embedding", {words, tokens, -1, false, false})), weight); };
  const auto drawn = [&] {
    const at::Tensor p = run("aten::softmax", "int", {run("aten::select", "int", {logits(prompt), 1, -1}), -1, c10::IValue()});
    return run("aten::multinomial", {p, 1, false, c10::IValue()});
  };
  const at::Tensor tokens = run("aten::cat", {c10::List<at::Tensor>({prompt, drawn()}), 1});  // the draws are gone, and only the tokens have them
  const at::Tensor out = logits(tokens);
  tape.begin(c10::Dispatcher::singleton().findSchemaOrThrow("aten::relu", ""), std::vector<c10::IValue>{out});  // it is what runs out
  const auto plan = plan_for(tape, out);
  tape.discard();
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->batch, kRows);
  EXPECT_EQ(plan->placements[value_of(tape, out)], Placement::shard(0));
}

TEST(Seeds, ZerosThatRowsAreAddedToAreASum) {
  Tape tape;
  Recorder run(tape);
  constexpr int64_t kNodes = 128;
  const at::Tensor table = parameter({kNodes, 64}), source = at::randint(kNodes, {400}), target = at::randint(kNodes, {400});
  const at::Tensor messages = run.tanh(run("aten::index", "Tensor", {table, c10::List<std::optional<at::Tensor>>({source})}));
  const c10::IValue none;
  const at::Tensor zeros = run("aten::zeros", {std::vector<int64_t>{kNodes, 64}, none, none, none, none});
  const at::Tensor together = run("aten::index_add_", {zeros, 0, target, messages, 1});
  const at::Tensor loss = run.sum(run.tanh(together));
  const auto plan = plan_for(tape, loss);
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->batch, 400);
  EXPECT_TRUE(plan->placements[value_of(tape, together)].is_partial());
  EXPECT_EQ(plan->whole_ops, 1);  // tanh() of the sum
}

TEST(Seeds, ABatchThatTheProgramPutTogether) {
  Tape tape;
  Mlp mlp(tape);
  const at::Tensor x = at::rand({kRows, 20});
  const at::Tensor mixed = mlp.run("aten::index", "Tensor", {x, c10::List<std::optional<at::Tensor>>({at::randperm(kRows)})});
  const at::Tensor loss = mlp.run.sum(mlp(mixed));
  const auto plan = plan_for(tape, loss);
  ASSERT_TRUE(plan);
  EXPECT_TRUE(is_seed(*plan, value_of(tape, mixed)));
}

TEST(Seeds, AConstantThatIsWrittenInto) {
  Tape tape;
  Mlp mlp(tape);
  const at::Tensor x = at::rand({kRows, 20});
  const c10::IValue none;
  const at::Tensor out = mlp.run("aten::zeros", {std::vector<int64_t>{kRows, 3, 32}, none, none, none, none});
  const at::Tensor part = mlp.run("aten::select", "int", {out, 1, 0});
  const at::Tensor narrow = mlp.run("aten::slice", "Tensor", {part, 1, 0, 10, 1});
  mlp.run("aten::copy_", {narrow, mlp(x), false});
  const at::Tensor loss = mlp.run.sum(mlp.run.tanh(narrow));
  const auto plan = plan_for(tape, loss);
  ASSERT_TRUE(plan);
  EXPECT_TRUE(is_created(*plan, value_of(tape, out)));
  EXPECT_EQ(plan->placements[value_of(tape, out)], Placement::shard(0));
}

TEST(Seeds, WhatSomebodyMayWriteToThroughNumpyIsTakenAsItIs) {
  Tape tape;
  Recorder run(tape);
  const at::Tensor w = parameter({48, 20});
  const at::Tensor x = at::rand({kRows, 20});
  const at::Tensor scaled = run.tanh(x);
  tape.pin(scaled);
  const at::Tensor loss = run.sum(run.tanh(run.linear(scaled, w)));
  const Plan plan = infer_placements(tape, kRows, {{value_of(tape, x), Placement::shard(0)}});
  EXPECT_TRUE(plan.placements[value_of(tape, scaled)].is_replicate());
}

TEST(Seeds, NoiseIsNotDrawnAgain) {
  Tape tape;
  Recorder run(tape);
  const at::Tensor w = parameter({48, 20});
  const at::Tensor x = at::rand({kRows, 20});
  const c10::IValue none;
  const at::Tensor noise = run("aten::randn_like", {x, none, none, none, none, none});
  const at::Tensor loss = run.sum(run.tanh(run.linear(run.add(x, noise), w)));
  const Plan plan = infer_placements(tape, kRows, {{value_of(tape, x), Placement::shard(0)}});
  EXPECT_FALSE(plan.descends[value_of(tape, noise)]);
}

TEST(Seeds, RowsThatMixRunWhole) {
  Tape tape;
  Mlp mlp(tape);
  const at::Tensor x = at::rand({kRows, 20});
  const at::Tensor loss = mlp.run.sum(mlp.run("aten::cumprod", "", {mlp(x), 0, c10::IValue()}));
  const Plan plan = infer_placements(tape, kRows, {{value_of(tape, x), Placement::shard(0)}});
  EXPECT_EQ(plan.whole_ops, 1);
}

TEST(Seeds, NothingToSplit) {
  Tape tape;
  Recorder run(tape);
  const at::Tensor w = parameter({1});
  const at::Tensor loss = run.sum(run.tanh(w));
  EXPECT_FALSE(plan_for(tape, loss));
}

}  // namespace
}  // namespace koila
