#include "torchglue/tape/tape.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <vector>

#include "tests/tape/recorder.h"

namespace koila {
namespace {

TapeValueId value_of(const Tape& tape, const at::Tensor& t) { return tape.find(t.unsafeGetTensorImpl()); }

at::Tensor parameter(at::IntArrayRef sizes) { return at::rand(sizes).set_requires_grad(true); }

struct Doubled : torch::autograd::Function<Doubled> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) { return x.view_as(x); }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*, torch::autograd::variable_list gradients) {
    return {gradients[0] * 2};
  }
};

struct Tripled : torch::autograd::Function<Tripled> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) { return x * 3; }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*, torch::autograd::variable_list gradients) { return {gradients[0] * 3}; }
};

// A conversion takes tensors' storages away, and koila's own kernels get what had been their addresses.
TEST(Tape, AStorageThatATensorHasNoMoreIsNoneOfItsOwn) {
  Tape tape;
  Recorder run(tape);
  const at::Tensor x = at::rand({4, 3}), y = run.tanh(x);
  const at::Storage old = y.storage();
  y.unsafeGetTensorImpl()->set_storage_keep_dtype(at::rand({4, 3}).storage());
  tape.before_resize(old.unsafeGetStorageImpl());
  EXPECT_NE(value_of(tape, y), kNoTapeValue);
  tape.before_resize(y.storage().unsafeGetStorageImpl());
  EXPECT_NE(value_of(tape, x), kNoTapeValue);
}

TEST(Tape, HoldsProducedTensorsWeakly) {
  Tape tape;
  Recorder run(tape);
  const at::Tensor x = at::rand({4, 3});
  at::Tensor y = run.tanh(x);
  const TapeValueId id = value_of(tape, y);
  ASSERT_NE(id, kNoTapeValue);
  y.reset();
  EXPECT_FALSE(tape.values()[id].lock().defined());
}

TEST(Tape, HoldsAnInputAsLongAsTheGraph) {
  Tape tape;
  Recorder run(tape);
  const at::Tensor w = parameter({4, 3});
  at::Tensor noise = at::rand({4, 3});
  at::Tensor out = run.add(w, noise);  // autograd saves nothing of an addition
  const TapeValueId id = value_of(tape, noise);
  noise.reset();
  EXPECT_TRUE(tape.values()[id].lock().defined());
  EXPECT_FALSE(tape.values()[id].held_elsewhere());
  out.reset();
  EXPECT_FALSE(tape.values()[id].lock().defined());
}

TEST(Tape, LetsInputsGoWhenItIsCut) {
  Tape tape;
  Recorder run(tape);
  const at::Tensor w = parameter({4, 3});
  at::Tensor noise = at::rand({4, 3});
  const c10::weak_intrusive_ptr<c10::TensorImpl> weak(noise.getIntrusivePtr());
  const at::Tensor out = run.add(w, noise);
  noise.reset();
  EXPECT_FALSE(weak.expired());
  tape.cut();
  EXPECT_TRUE(weak.expired());
}

TEST(Tape, DoesNotHoldWhatCanBeMadeAgain) {
  Tape tape;
  Recorder run(tape);
  const at::Tensor w = parameter({4, 3});
  const at::Tensor x = at::rand({1, 3});
  at::Tensor repeated = run("aten::repeat", {x, std::vector<int64_t>{4, 1}});
  const at::Tensor out = run.add(w, repeated);
  const TapeValueId id = value_of(tape, repeated);
  repeated.reset();
  EXPECT_FALSE(tape.values()[id].lock().defined());
  EXPECT_TRUE(tape.values()[id].entered);
}

TEST(Tape, HoldsWhatIsNoLargerThanWhatItIsMadeFrom) {
  Tape tape;
  Recorder run(tape);
  const at::Tensor w = parameter({4, 3});
  at::Tensor x = at::rand({4, 3}), scaled = run.tanh(x);
  at::Tensor out = run.add(w, scaled);
  const TapeValueId id = value_of(tape, scaled);
  x.reset();
  scaled.reset();
  EXPECT_TRUE(tape.values()[id].lock().defined());
  out.reset();
  EXPECT_FALSE(tape.values()[id].lock().defined());
}

struct MuchInUse {
  MuchInUse() { set_bytes_in_use([](int) { return int64_t{1} << 22; }); }
  ~MuchInUse() { set_bytes_in_use(nullptr); }
};

TEST(Tape, HoldsSmallThingsThatAMaskIsMadeOf) {
  const MuchInUse memory;
  Tape tape;
  Recorder run(tape);
  at::Tensor positions = at::arange(16);
  const at::Tensor mask = run("aten::ge", "Scalar", {positions, 4});
  const TapeValueId id = value_of(tape, positions);
  positions.reset();
  EXPECT_TRUE(tape.values()[id].lock().defined());
  tape.collect();
  EXPECT_TRUE(tape.values()[value_of(tape, mask)].producer == 0 && tape.values()[0].strong.defined());
}

TEST(Tape, LetsSmallThingsGoWithWhatIsMadeOfThem) {
  const MuchInUse memory;
  Tape tape;
  Recorder run(tape);
  at::Tensor positions = at::arange(16);
  const c10::weak_intrusive_ptr<c10::TensorImpl> weak(positions.getIntrusivePtr());
  at::Tensor mask = run("aten::ge", "Scalar", {positions, 4});
  positions.reset();
  EXPECT_FALSE(weak.expired());
  mask.reset();
  tape.collect();
  EXPECT_TRUE(weak.expired());
}

TEST(Tape, HoldsNothingSmallThatOthersMayWriteTo) {
  const MuchInUse memory;
  Tape tape;
  Recorder run(tape);
  const at::Tensor counters = at::arange(32);
  at::Tensor part = counters.narrow(0, 0, 16);
  int64_t foreign[16] = {};
  at::Tensor of_an_array = at::from_blob(foreign, {16}, at::kLong);
  for (at::Tensor* t : {&part, &of_an_array}) {
    const at::Tensor mask = run("aten::ge", "Scalar", {*t, 4});
    const TapeValueId id = value_of(tape, *t);
    t->reset();
    EXPECT_FALSE(tape.values()[id].lock().defined());
  }
}

TEST(Tape, WhatIsReadAfterAWriteThroughAViewIsAnotherValue) {
  const MuchInUse memory;
  Tape tape;
  Recorder run(tape);
  const at::Tensor labels = at::arange(16);
  const at::Tensor part = run("aten::slice", "Tensor", {labels, 0, 0, 4, 1});
  const TapeValueId before = value_of(tape, labels);
  run("aten::fill_", "Scalar", {part, -1});
  const at::Tensor mask = run("aten::ge", "Scalar", {labels, 4});
  const TapeValueId after = value_of(tape, labels);
  EXPECT_NE(before, after);
  EXPECT_TRUE(tape.values()[after].is_capture() && tape.values()[after].lock().equal(labels));
  EXPECT_EQ(tape.values()[after].version, version_of(labels));
  EXPECT_EQ(tape.values()[before].lock()[0].item<int64_t>(), 0);
}

TEST(Tape, HoldsNoMoreSmallThingsThanAreAThirtySecondOfTheMemoryInUse) {
  const MuchInUse memory;  // 4 MiB: 128 KiB
  Tape tape;
  Recorder run(tape);
  std::vector<at::Tensor> masks;
  std::vector<c10::weak_intrusive_ptr<c10::TensorImpl>> weak;
  for (int i = 0; i < 40; ++i) {
    const at::Tensor positions = at::arange(512);
    weak.emplace_back(positions.getIntrusivePtr());
    masks.push_back(run("aten::ge", "Scalar", {positions, 4}));
  }
  EXPECT_EQ(std::count_if(weak.begin(), weak.end(), [](const auto& w) { return !w.expired(); }), 32);
}

TEST(Tape, AnOperatorThatMayDrawSaysWhetherItDid) {
  Tape tape;
  Recorder run(tape);
  const at::Tensor x = at::rand({5, 3});
  const std::vector<at::Tensor> state{at::zeros({1, 2, 2}), at::zeros({1, 2, 2})}, weights{at::rand({8, 3}), at::rand({8, 2}), at::rand({8}), at::rand({8})};
  const at::Tensor lengths = at::tensor({2, 2, 1}, at::kLong);
  for (const double dropout : {0.0, 0.5}) {
    for (const bool train : {false, true}) {
      const auto results = run.call("aten::lstm", "data", {x, lengths, state, weights, true, 1, dropout, train, false});
      EXPECT_EQ(drew(tape.ops().back()), train && dropout > 0);
    }
  }
}

TEST(Tape, ADroppedLossTakesItsGraphWithIt) {
  Tape tape;
  Recorder run(tape);
  const at::Tensor w = parameter({4, 3});
  at::Tensor loss = run.sum(run.tanh(w));
  tape.cut();
  const c10::weak_intrusive_ptr<c10::TensorImpl> weak(loss.getIntrusivePtr());
  (void)run("aten::detach", {loss});  // reading a loss after backward makes it a capture of 0 dimensions
  loss.reset();
  EXPECT_TRUE(weak.expired());
}

TEST(Tape, AnInPlaceWriteMakesANewVersion) {
  Tape tape;
  Recorder run(tape);
  const at::Tensor y = run.tanh(at::rand({4}));
  const TapeValueId before = value_of(tape, y);
  run("aten::mul_", "Tensor", {y, at::rand({4})});
  const TapeValueId after = value_of(tape, y);
  EXPECT_NE(before, after);
  EXPECT_FALSE(tape.is_current(before));
  EXPECT_TRUE(tape.is_current(after));
  EXPECT_EQ(tape.values()[before].group, tape.values()[after].group);
  EXPECT_TRUE(tape.ops().back().in_place);
}

TEST(Tape, AWriteToACaptureIsAnEffect) {
  Tape tape;
  Recorder run(tape);
  const at::Tensor buffer = at::zeros({4});
  const at::Tensor y = run.tanh(buffer);
  const TapeValueId before = value_of(tape, buffer);
  run("aten::add_", "Tensor", {buffer, y, 1});
  EXPECT_EQ(value_of(tape, buffer), kNoTapeValue);
  (void)run.tanh(buffer);
  const TapeValueId after = value_of(tape, buffer);
  EXPECT_NE(before, after);
  EXPECT_TRUE(tape.values()[after].is_capture());
}

TEST(Tape, IsCutWhereAnAliasThatItDoesNotKnowIsWrittenTo) {
  Tape tape;
  Recorder run(tape);
  const at::Tensor y = run.tanh(at::rand({4}));
  const at::Tensor alias = y.variable_data();
  (void)run.tanh(alias);
  (void)run("aten::detach_", {alias});  // as torch.tensor() does: nothing is written
  EXPECT_NE(value_of(tape, y), kNoTapeValue);
  (void)run("aten::mul_", "Tensor", {alias, at::rand({4})});
  EXPECT_EQ(value_of(tape, y), kNoTapeValue);
}

TEST(Tape, ViewsShareAGroup) {
  Tape tape;
  Recorder run(tape);
  const at::Tensor y = run.tanh(at::rand({4, 3}));
  const at::Tensor view = run("aten::view", {y, std::vector<int64_t>{12}});
  EXPECT_TRUE(tape.values()[value_of(tape, view)].is_view);
  EXPECT_EQ(tape.values()[value_of(tape, view)].group, tape.values()[value_of(tape, y)].group);
}

TEST(Tape, AProducedTensorThatBecomesALeafIsACapture) {
  Tape tape;
  Recorder run(tape);
  const at::Tensor weight = run.tanh(at::rand({4, 3}));
  EXPECT_FALSE(tape.values()[value_of(tape, weight)].is_capture());
  weight.set_requires_grad(true);
  (void)run.tanh(weight);
  EXPECT_TRUE(tape.values()[value_of(tape, weight)].is_capture());
}

TEST(Tape, GoesOnBehindAFunctionOfTheUsers) {
  Tape tape;
  Recorder run(tape);
  const at::Tensor w = parameter({4, 3});
  const at::Tensor h = run.tanh(w);
  // Inside the function: a view under no_grad, which says that it requires grad because its base does.
  at::Tensor seen;
  {
    const at::NoGradGuard no_grad;
    seen = run("aten::view_as", {h, h});
  }
  const auto function = Doubled::apply(h);
  torch::autograd::impl::set_gradient_edge(seen, torch::autograd::impl::gradient_edge(function));
  (void)run.tanh(seen);
  EXPECT_EQ(tape.ops().size(), 3u);
  EXPECT_TRUE(tape.values()[value_of(tape, seen)].is_capture());
  ASSERT_EQ(tape.bridges().size(), 1u);
  const Bridge* bridge = tape.bridge_of(*seen.grad_fn());
  ASSERT_NE(bridge, nullptr);
  ASSERT_EQ(bridge->ends.size(), 1u);
  EXPECT_EQ(bridge->ends[0].value, value_of(tape, h));
}

TEST(Tape, IsCutWhereWhatAFunctionWasGivenHasBeenWrittenTo) {
  Tape tape;
  Recorder run(tape);
  const at::Tensor h = run.tanh(parameter({4, 3}));
  const at::Tensor given = Tripled::apply(h);
  {
    const at::NoGradGuard no_grad;
    run("aten::mul_", "Tensor", {run("aten::view", {h, std::vector<int64_t>{12}}), at::rand({12})});
  }
  (void)run.tanh(given);
  EXPECT_EQ(tape.ops().size(), 1u);
  EXPECT_TRUE(tape.bridges().empty());
}

TEST(Tape, WhatHasReadAFunctionThatIsGoneIsAPartOfIt) {
  Tape tape;
  Recorder run(tape);
  const at::Tensor h = run.tanh(parameter({4, 3}));
  at::Tensor given = Doubled::apply(h);
  const at::Tensor sum = run("aten::add", "Tensor", {h, given, 1}), after = run.tanh(sum);
  const auto* node = given.grad_fn().get();
  given.reset();
  tape.widen_bridges();
  EXPECT_EQ(tape.ops().size(), 2u);  // without the sum
  EXPECT_TRUE(tape.values()[value_of(tape, sum)].is_capture());
  EXPECT_NE(tape.bridge_of(*node), nullptr);
  EXPECT_NE(tape.bridge_of(*sum.grad_fn()), nullptr);
}

TEST(Tape, IsCutWhereABufferWasWrittenIntoDifferentiably) {
  Tape tape;
  Recorder run(tape);
  const at::Tensor w = parameter({4, 3});
  const at::Tensor out = at::zeros({4, 3}), looks = out.view({12});
  run("aten::copy_", {out, run.tanh(w), false});
  (void)run.tanh(out);
  EXPECT_EQ(tape.ops().size(), 1u);
}

TEST(Tape, ASmallConstantThatIsWrittenIntoIsWhatTheOperatorMade) {
  Tape tape;
  Recorder run(tape);
  const at::Tensor w = parameter({4, 3});
  const at::Tensor total = at::zeros({1});
  for (int i = 0; i < 2; ++i) run("aten::add_", "Tensor", {total, run.sum(run.tanh(w)), 1});
  ASSERT_EQ(tape.ops().size(), 6u);
  EXPECT_EQ(tape.ops()[2].op.schema().name(), "aten::add");
  EXPECT_TRUE(tape.ops()[5].in_place);
  EXPECT_FALSE(tape.values()[value_of(tape, total)].is_capture());
  const TapeValue& before = tape.values()[tape.ops()[2].refs[0].value];
  EXPECT_EQ(before.lock().item<float>(), 0);
}

TEST(Tape, AGraphFromBeforeTheTapeDoesNotCutIt) {
  Tape tape;
  Recorder run(tape);
  const at::Tensor w = parameter({4, 3});
  const at::Tensor before = w.tanh();
  const at::Tensor h = run.tanh(w);
  (void)run.add(h, before);
  EXPECT_EQ(tape.ops().size(), 2u);
}

TEST(Tape, ForgetsWhatNothingAliveDescendsFrom) {
  Tape tape;
  Recorder run(tape);
  const at::Tensor x = at::rand({4});
  const at::Tensor kept = run.tanh(x);
  for (int i = 0; i < 1000; ++i) (void)run.tanh(x);
  tape.collect();
  EXPECT_EQ(tape.ops().size(), 1u);
  EXPECT_NE(value_of(tape, kept), kNoTapeValue);
}

TEST(Tape, ALoopWithoutGradientsIsBounded) {
  Tape tape;
  Recorder run(tape);
  const at::NoGradGuard no_grad;
  at::Tensor state = at::rand({4});
  size_t most = 0;
  for (int i = 0; i < 20000; ++i) {
    state = run.tanh(state);
    most = std::max(most, tape.ops().size());
  }
  EXPECT_LT(most, 8192u);
}

TEST(Tape, LeavesOptimizersAlone) {
  Tape tape;
  Recorder run(tape);
  const at::NoGradGuard no_grad;
  const at::Tensor w = at::rand({4});
  run("aten::add_", "Tensor", {w, at::rand({4}), -1});
  EXPECT_TRUE(tape.empty());
}

TEST(Tape, RecordsConstantsThatAreWorthIt) {
  Tape tape;
  Recorder run(tape);
  const c10::IValue none;
  const at::Tensor large = run("aten::zeros", {std::vector<int64_t>{64, 64}, none, none, none, none});
  const at::Tensor small = run("aten::zeros", {std::vector<int64_t>{4}, none, none, none, none});
  EXPECT_NE(value_of(tape, large), kNoTapeValue);
  EXPECT_EQ(value_of(tape, small), kNoTapeValue);
  EXPECT_EQ(tape.ops().size(), 1u);
}

}  // namespace
}  // namespace koila
