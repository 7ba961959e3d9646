// koila::step against the plain full-batch step: infinitybatch's and GradCache's promises (the same loss and gradients, whatever the loss), what is refused, and that a
// step that throws has done nothing. Memory that runs out is thrown here; it is real in step_program.cc.
#include "koila/step.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>

#include <atomic>
#include <exception>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

namespace koila {
namespace {

using Loss = std::function<at::Tensor(const at::Tensor&)>;

const c10::TensorOptions kDouble = at::TensorOptions(at::kDouble);

[[noreturn]] void out_of_memory() { throw c10::OutOfMemoryError({"function", "file.cpp", 1}, "CUDA out of memory. Tried to allocate 2.00 GiB."); }

StepOptions of(std::int64_t micro_batch) { return StepOptions().with_micro_batch(micro_batch); }

// Two layers, and everything that a step changes of them.
struct Net {
  explicit Net(std::int64_t in = 6, std::int64_t out = 4) : parameters{at::randn({in, 9}, kDouble), at::randn({9}, kDouble), at::randn({9, out}, kDouble)} {
    for (at::Tensor& parameter : parameters) parameter.requires_grad_();
  }
  at::Tensor operator()(const at::Tensor& rows) const { return at::tanh(at::addmm(parameters[1], rows, parameters[0])).mm(parameters[2]); }

  std::vector<at::Tensor> gradients() const {
    std::vector<at::Tensor> copies;
    for (const at::Tensor& parameter : parameters) copies.push_back(parameter.grad().defined() ? parameter.grad().clone() : at::Tensor());
    return copies;
  }
  void forget() {
    for (at::Tensor& parameter : parameters) parameter.mutable_grad().reset();
  }

  std::vector<at::Tensor> parameters;
};

void expect_close(const at::Tensor& a, const at::Tensor& b, double tolerance = 1e-12) {
  ASSERT_EQ(a.defined(), b.defined());
  if (a.defined()) {
    EXPECT_TRUE(at::allclose(a, b, tolerance, tolerance)) << a << "\n" << b;
  }
}
void expect_close(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b, double tolerance = 1e-12) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) expect_close(a[i], b[i], tolerance);
}

// The message of what `f` throws.
template <class Error, class F>
std::string error_of(F&& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what_without_backtrace();
  }
  return "nothing was thrown";
}

class Step : public testing::Test {
 protected:
  void SetUp() override {
    call_site_size_cache().clear();
    at::manual_seed(7);
  }
  static bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

  const at::Tensor x_ = [] {
    at::manual_seed(3);
    return at::randn({10, 6}, kDouble);
  }();
  const at::Tensor y_ = at::tensor({0, 1, 2, 3, 0, 1, 2, 3, 0, 1}, at::kLong);
  Net net_;
};

// ---- Exact.

const std::map<std::string, Loss> kLosses = {
    {"cross entropy", [](const at::Tensor& o) { return at::cross_entropy_loss(o, at::tensor({0, 1, 2, 3, 0, 1, 2, 3, 0, 1}, at::kLong)); }},
    {"a few labels only", [](const at::Tensor& o) { return at::cross_entropy_loss(o, at::tensor({0, -100, -100, -100, -100, 1, -100, 3, -100, -100}, at::kLong)); }},
    {"root of a mean", [](const at::Tensor& o) { return o.square().mean().sqrt(); }},
    {"log of a sum", [](const at::Tensor& o) { return o.logsumexp(at::IntArrayRef{0, 1}); }},
    {"contrastive", [](const at::Tensor& o) { return at::cross_entropy_loss(o.mm(o.t()).fill_diagonal_(-1e9), at::tensor({1, 0, 3, 2, 5, 4, 7, 6, 9, 8}, at::kLong)); }},
    {"ranking", [](const at::Tensor& o) { return (o.select(1, 0).unsqueeze(0) - o.select(1, 0).unsqueeze(1)).relu().mean(); }},
    {"correlation", [](const at::Tensor& o) { return (o - o.mean(0)).div(o.std(0, true)).select(1, 0).mul((o - o.mean(0)).select(1, 1)).sum(); }},
    {"hardest rows", [](const at::Tensor& o) { return std::get<0>(o.square().sum(1).topk(3)).mean(); }},
};

TEST_F(Step, AnyLossIsThatOfTheFullBatch) {
  for (const auto& [name, loss] : kLosses) {
    SCOPED_TRACE(name);
    net_.forget();
    const at::Tensor plain = loss(net_(x_));
    plain.backward();
    const std::vector<at::Tensor> gradients = net_.gradients();
    for (const std::int64_t micro_batch : {1, 3, 5, 9, 10, 50}) {
      SCOPED_TRACE(micro_batch);
      net_.forget();
      const auto result = step(x_, net_, loss, of(micro_batch));
      expect_close(result.loss, plain.detach());
      expect_close(result.outputs, net_(x_).detach());
      expect_close(net_.gradients(), gradients);
      EXPECT_FALSE(result.loss.requires_grad() || result.outputs.requires_grad());
    }
  }
}

TEST_F(Step, MicroBatchesAreEvenAndInOrder) {
  std::vector<std::int64_t> sizes;
  const auto result = step(x_, [&](const at::Tensor& rows) { sizes.push_back(rows.size(0)); return net_(rows); }, [](const at::Tensor& o) { return o.sum(); },
                           of(4).with_verify(false));
  EXPECT_EQ(sizes, (std::vector<std::int64_t>{4, 4, 2, 4, 4, 2}));
  EXPECT_EQ(result.micro_batch, 4);
}

// GradCache: queries and documents, each the others' negatives.
TEST_F(Step, TwoTowers) {
  const at::Tensor queries = at::randn({12, 6}, kDouble), documents = at::randn({12, 5}, kDouble);
  Net other(5, 4);
  at::Tensor temperature = at::full({}, 0.5, kDouble).requires_grad_();  // in the loss alone
  const auto forward = [&](const at::Tensor& q, const at::Tensor& d) { return std::make_pair(net_(q), other(d)); };
  const auto loss = [&](const at::Tensor& q, const at::Tensor& d) { return at::cross_entropy_loss(q.mm(d.t()) / temperature, at::arange(12)); };
  const auto all = [&] {
    std::vector<at::Tensor> gradients = net_.gradients();
    for (const at::Tensor& gradient : other.gradients()) gradients.push_back(gradient);
    gradients.push_back(temperature.grad().clone());
    net_.forget();
    other.forget();
    temperature.mutable_grad().reset();
    return gradients;
  };
  std::apply(loss, forward(queries, documents)).backward();
  const std::vector<at::Tensor> plain = all();
  for (const std::int64_t micro_batch : {1, 5, 12}) {
    step(std::make_pair(queries, documents), forward, loss, of(micro_batch));
    expect_close(all(), plain);
  }
  // Micro-batches by hand have their own rows as negatives alone.
  for (std::int64_t begin = 0; begin < 12; begin += 4) {
    const auto [q, d] = forward(queries.slice(0, begin, begin + 4), documents.slice(0, begin, begin + 4));
    (at::cross_entropy_loss(q.mm(d.t()) / temperature, at::arange(4)) / 3).backward();
  }
  EXPECT_FALSE(at::allclose(all()[0], plain[0], 1e-3));
}

TEST_F(Step, Structures) {
  net_(x_).square().sum().backward();
  const std::vector<at::Tensor> plain = net_.gradients();
  const auto same = [&](const auto& result) {
    expect_close(net_.gradients(), plain);
    net_.forget();
    return result.outputs;
  };
  net_.forget();
  using Map = std::map<std::string, at::Tensor>;
  using Hash = std::unordered_map<std::string, at::Tensor>;
  const Map map = same(step(Map{{"x", x_}}, [&](const Map& in) { return Map{{"b", net_(in.at("x"))}, {"a", in.at("x").argmax(1)}}; },
                            [](const Map& out) { return out.at("b").square().sum(); }, of(3)));
  EXPECT_TRUE(at::equal(map.at("a"), x_.argmax(1)));
  const Hash hash = same(step(Hash{{"x", x_}, {"unused", x_}}, [&](const Hash& in) {
    Hash out;
    for (int i = 0; i < 40; ++i) out["n" + std::to_string(i)] = in.at("x") * i;
    out["y"] = net_(in.at("x"));
    return out;
  }, [](const Hash& out) { return out.at("y").square().sum(); }, of(3)));
  for (int i = 0; i < 40; ++i) EXPECT_TRUE(at::equal(hash.at("n" + std::to_string(i)), x_ * i));
  const auto tuple = same(step(std::make_tuple(x_, std::vector<at::Tensor>{y_}), [&](const at::Tensor& x, const std::vector<at::Tensor>& y) {
    return std::make_tuple(net_(x), std::optional<at::Tensor>(y[0]), at::Tensor(), std::array<at::Tensor, 1>{x});
  }, [](const auto& out) { return std::get<0>(out).square().sum(); }, of(3)));
  EXPECT_TRUE(at::equal(*std::get<1>(tuple), y_));
  EXPECT_FALSE(std::get<2>(tuple).defined());
  EXPECT_TRUE(at::equal(std::get<3>(tuple)[0], x_));
}

TEST_F(Step, OtherDimensions) {
  const at::Tensor sequence = at::randn({5, 10, 6}, kDouble);  // time first
  const auto forward = [&](const at::Tensor& rows) { return net_(rows.reshape({-1, 6})).reshape({5, -1, 4}).permute({2, 0, 1}); };
  const auto loss = [](const at::Tensor& o) { return o.square().mean().sqrt(); };
  loss(forward(sequence)).backward();
  const std::vector<at::Tensor> plain = net_.gradients();
  net_.forget();
  const auto result = step(sequence, forward, loss, of(3).with_dim(1).with_output_dim(-1));
  expect_close(net_.gradients(), plain);
  EXPECT_EQ(result.outputs.sizes(), (at::IntArrayRef{4, 5, 10}));
}

TEST_F(Step, GradientsThatAreThereAreAddedTo) {
  net_(x_).sum().backward();
  const at::Tensor before = net_.parameters[0].grad();
  net_(x_).square().mean().sqrt().backward();
  const std::vector<at::Tensor> plain = net_.gradients();
  for (const std::int64_t micro_batch : {3, 10}) {
    net_.forget();
    net_(x_).sum().backward();
    const at::Tensor there = net_.parameters[0].grad();
    step(x_, net_, [](const at::Tensor& o) { return o.square().mean().sqrt(); }, of(micro_batch));
    expect_close(net_.gradients(), plain);
    EXPECT_TRUE(net_.parameters[0].grad().is_same(there));  // whoever holds it sees the sum
  }
}

TEST_F(Step, SparseGradientsAreAddedTo) {
  const at::Tensor ids = at::tensor({0, 1, 2, 3, 4, 5, 1, 1, 2, 0}, at::kLong);
  at::Tensor table = at::randn({6, 3}, kDouble).requires_grad_();
  const auto forward = [&](const at::Tensor& rows) { return at::embedding(table, rows, -1, false, /*sparse=*/true); };
  const auto loss = [](const at::Tensor& o) { return o.square().mean().sqrt(); };
  loss(forward(ids)).backward();
  loss(forward(ids)).backward();
  const at::Tensor plain = table.grad().to_dense();
  table.mutable_grad().reset();
  for (int i = 0; i < 2; ++i) step(ids, forward, loss, of(3));
  expect_close(table.grad().to_dense(), plain);
}

TEST_F(Step, TheSecondPassDrawsWhatTheFirstDid) {
  const auto forward = [&](const at::Tensor& rows) { return net_(at::dropout(rows, 0.5, true)); };
  const auto loss = [](const at::Tensor& o) { return (o * at::rand_like(o)).square().mean().sqrt(); };
  // By hand, with all graphs at once.
  std::vector<at::Tensor> parts;
  for (std::int64_t begin = 0; begin < 10; begin += 3) parts.push_back(forward(x_.slice(0, begin, begin + 3)));
  loss(at::cat(parts)).backward();
  const std::vector<at::Tensor> plain = net_.gradients();
  const at::Tensor next = at::rand({4});
  for (const bool verify : {true, false}) {
    at::manual_seed(7);
    net_.forget();
    step(x_, forward, loss, of(3).with_verify(verify));
    expect_close(net_.gradients(), plain);
    EXPECT_TRUE(at::equal(at::rand({4}), next));
  }
}

TEST_F(Step, InputsThatNeedAGradient) {
  at::Tensor leaf = x_.clone().requires_grad_(), weight = at::randn({6, 6}, kDouble).requires_grad_();
  const auto loss = [](const at::Tensor& o) { return o.square().mean().sqrt(); };
  const auto all = [&] {
    std::vector<at::Tensor> gradients = net_.gradients();
    gradients.push_back(leaf.grad().clone());
    gradients.push_back(weight.grad().clone());
    net_.forget();
    leaf.mutable_grad().reset();
    weight.mutable_grad().reset();
    return gradients;
  };
  const auto forward = [&](const at::Tensor& a, const at::Tensor& b) { return net_(a + b); };
  const auto behind = [&] { return leaf.mm(weight).exp(); };  // its graph can be gone through once
  loss(forward(leaf, behind())).backward();
  const std::vector<at::Tensor> plain = all();
  for (const std::int64_t micro_batch : {1, 3, 10}) {
    step(std::make_tuple(leaf, behind()), forward, loss, of(micro_batch));
    expect_close(all(), plain);
  }
}

// Autocast keeps the casts of weights: one that the first pass makes without a graph must not serve the second. The second weight is met behind the first micro-batch.
TEST_F(Step, Autocast) {
  std::vector<at::Tensor> weights{at::randn({6, 4}).requires_grad_(), at::randn({6, 4}).requires_grad_()};
  const at::Tensor rows = x_.to(at::kFloat), later = at::arange(10).ge(5).unsqueeze(1);
  const auto gradients = [&](std::int64_t micro_batch) {
    for (at::Tensor& weight : weights) weight.mutable_grad().reset();
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::increment_nesting();
    const auto result = step(std::make_tuple(rows, later), [&](const at::Tensor& part, const at::Tensor& is_later) {
      const at::Tensor first = at::matmul(part, weights[0]);
      return is_later.any().item<bool>() ? at::where(is_later, at::matmul(part, weights[1]), first) : first;
    }, [](const at::Tensor& o) { return o.to(at::kFloat).square().mean().sqrt(); }, of(micro_batch));
    EXPECT_EQ(result.outputs.scalar_type(), at::kBFloat16);
    at::autocast::decrement_nesting();
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
    return std::vector<at::Tensor>{weights[0].grad(), weights[1].grad()};
  };
  expect_close(gradients(5), gradients(10), 0.02);
}

TEST_F(Step, GatheredElsewhere) {
  // A device is a device: what counts is that outputs, loss and gradients cross over.
  net_(x_).square().sum().backward();
  const std::vector<at::Tensor> plain = net_.gradients();
  for (const std::int64_t micro_batch : {3, 10}) {
    net_.forget();
    const auto result = step(x_, net_, [](const at::Tensor& o) { return o.square().sum(); }, of(micro_batch).with_gather_on(at::kCPU));
    EXPECT_TRUE(result.outputs.is_cpu());
    expect_close(net_.gradients(), plain);
  }
}

// ---- One pass.

TEST_F(Step, SeparableLossesTakeOnePass) {
  int calls = 0;
  const auto forward = [&](const at::Tensor& rows, const at::Tensor&) { ++calls; return net_(rows); };
  const auto with_inputs = [](const at::Tensor& o, const std::pair<at::Tensor, at::Tensor>& in) { return at::cross_entropy_loss(o, in.second); };
  const auto with_rows = [&](const at::Tensor& o, std::int64_t begin, std::int64_t end) { return at::cross_entropy_loss(o, y_.slice(0, begin, end), {}, at::Reduction::Sum); };
  const std::pair<at::Tensor, at::Tensor> inputs(x_, y_);
  const at::Tensor mean = at::cross_entropy_loss(net_(x_), y_);
  mean.backward();
  const std::vector<at::Tensor> plain = net_.gradients();
  const StepOptions once = of(3).with_verify(false);

  net_.forget();
  const auto by_mean = step(inputs, forward, with_inputs, once.with_separable(Separable::kMean));
  expect_close(by_mean.loss, mean.detach());
  expect_close(net_.gradients(), plain);
  EXPECT_EQ(calls, 4);
  EXPECT_FALSE(by_mean.outputs.defined());

  net_.forget();
  const auto by_sum = step(inputs, forward, with_rows, once.with_separable(Separable::kSum));
  expect_close(by_sum.loss, mean.detach() * 10);
  for (at::Tensor& parameter : net_.parameters) parameter.mutable_grad() /= 10;
  expect_close(net_.gradients(), plain);

  net_.forget();
  step(inputs, forward, with_inputs, once);  // with the whole inputs, in two passes
  expect_close(net_.gradients(), plain);
}

TEST_F(Step, MeansOverCountedItems) {
  const at::Tensor labels = at::tensor({0, -100, -100, -100, -100, -100, 2, 3, 0, 1}, at::kLong);  // the second micro-batch has none: its mean is no number
  const auto loss = [](const at::Tensor& o, const std::tuple<at::Tensor, at::Tensor>& in) { return at::cross_entropy_loss(o, std::get<1>(in)); };
  const auto forward = [&](const at::Tensor& rows, const at::Tensor&) { return net_(rows); };
  const at::Tensor plain = at::cross_entropy_loss(net_(x_), labels);
  plain.backward();
  const std::vector<at::Tensor> gradients = net_.gradients();
  net_.forget();
  const auto result = step(std::make_tuple(x_, labels), forward, loss, of(3).with_separable(Separable::kMean).with_counts(labels.ne(-100)));
  expect_close(result.loss, plain.detach());
  expect_close(net_.gradients(), gradients);
  EXPECT_TRUE(contains(error_of<c10::ValueError>([&] {
    step(std::make_tuple(x_, labels), forward, loss, of(3).with_separable(Separable::kMean).with_counts(at::zeros({10})));
  }), "there is no mean of nothing"));
}

// ---- Memory runs out.

TEST_F(Step, HalvesAndRemembers) {
  const auto loss = [](const at::Tensor& o) { return o.square().mean().sqrt(); };
  loss(net_(x_)).backward();
  const std::vector<at::Tensor> plain = net_.gradients();
  std::vector<std::int64_t> sizes;
  const auto once = [&] {
    sizes.clear();
    net_.forget();
    return step(x_, [&](const at::Tensor& rows) {
      sizes.push_back(rows.size(0));
      if (rows.size(0) > 3) out_of_memory();
      return net_(rows);
    }, loss, StepOptions().with_verify(false)).micro_batch;
  };
  EXPECT_EQ(once(), 2);
  EXPECT_EQ(sizes, (std::vector<std::int64_t>{10, 5, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2}));
  expect_close(net_.gradients(), plain);
  EXPECT_EQ(once(), 2);
  EXPECT_EQ(sizes, std::vector<std::int64_t>(10, 2));
  expect_close(net_.gradients(), plain);
}

// Wherever memory runs out, in whatever call of forward or of the loss, or in backward: the result is the same, and numbers are drawn as if it had not.
TEST_F(Step, NothingIsLeftOfWhatRanOut) {
  struct Failing : torch::autograd::Function<Failing> {
    static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, int64_t address) {
      context->saved_data["address"] = address;
      return x.clone();
    }
    static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context, torch::autograd::variable_list gradients) {
      auto& left = *reinterpret_cast<int*>(context->saved_data["address"].toInt());
      if (--left == 0) out_of_memory();
      return {gradients[0], at::Tensor()};
    }
  };
  at::Tensor bank = at::zeros({4}, kDouble);  // the loss adds to it
  const auto run = [&](int fail_at, const StepOptions& options) {
    int left = fail_at;
    const auto count = [&] {
      if (--left == 0) out_of_memory();
    };
    at::manual_seed(11);
    bank.zero_();
    net_.forget();
    net_(x_).sum().backward();
    const auto result = step(x_, [&](const at::Tensor& rows) {
      count();
      const at::Tensor outputs = Failing::apply(net_(rows), reinterpret_cast<int64_t>(&left));
      count();
      return outputs;
    }, [&](const at::Tensor& o) {
      bank.add_(o.detach().sum(0));
      count();
      return Failing::apply(o.square().mean().sqrt(), reinterpret_cast<int64_t>(&left));
    }, options);
    return std::make_tuple(result.micro_batch, left, at::rand({3}));
  };
  const auto [_, untouched, next] = run(1000, StepOptions());
  const std::vector<at::Tensor> plain = net_.gradients();
  const at::Tensor banked = bank.clone();
  bool failed = true;
  int failures = 0;
  for (int i = 1; failed; ++i) {
    SCOPED_TRACE(i);
    call_site_size_cache().clear();
    const auto [size, left, drawn] = run(i, i < 6 ? StepOptions() : of(3));
    failed = left <= 0;
    failures += failed;
    expect_close(net_.gradients(), plain);
    expect_close(bank, banked);
    EXPECT_TRUE(at::equal(drawn, next));
  }
  EXPECT_GT(failures, 15);
  EXPECT_GT(untouched, 900);
}

TEST_F(Step, TheSmallestThatDoesNotFitIsTheProgramsOwnError) {
  net_(x_).sum().backward();
  const std::vector<at::Tensor> before = net_.gradients();
  const at::Tensor next = at::rand({4});
  at::manual_seed(7);
  int calls = 0;
  const std::string error = error_of<c10::OutOfMemoryError>([&] {
    step(x_, [&](const at::Tensor& rows) {
      at::rand({3});
      ++calls;
      if (calls > 0) out_of_memory();
      return net_(rows);
    }, [](const at::Tensor& o) { return o.sum(); });
  });
  EXPECT_TRUE(at::equal(at::rand({4}), next));
  EXPECT_EQ(error, "CUDA out of memory. Tried to allocate 2.00 GiB.");
  EXPECT_EQ(calls, 4);  // 10, 5, 2, 1
  expect_close(net_.gradients(), before);
}

TEST_F(Step, OtherErrorsAreTheProgramsAtOnce) {
  int calls = 0;
  const auto wrong = [&](const at::Tensor&) -> at::Tensor {
    ++calls;
    throw std::runtime_error("mine");
  };
  EXPECT_THROW(step(x_, wrong, [](const at::Tensor& o) { return o.sum(); }), std::runtime_error);
  EXPECT_EQ(calls, 1);
  EXPECT_THROW(step(x_, net_, wrong, of(3)), std::runtime_error);
  EXPECT_EQ(calls, 2);
  EXPECT_FALSE(net_.parameters[0].grad().defined());
}

TEST_F(Step, ALastBatchMayHaveFewerRowsThanTheMinimum) {
  EXPECT_EQ(step(x_.slice(0, 0, 2), net_, [](const at::Tensor& o) { return o.sum(); }, of(8).with_sizes(BatchOptions().with_minimum(4))).micro_batch, 2);
}

// ---- Refused.

// Batch norm of the fixture's rows, with everything that it moves.
struct Normed {
  at::Tensor operator()(const at::Tensor& rows) {
    const at::Tensor normed = at::batch_norm(rows, {}, {}, mean, variance, training, 0.1, 1e-5, false);
    if (training) tracked.add_(1);
    return net(normed);
  }
  Net& net;
  bool training = true;
  at::Tensor mean = at::zeros({6}, kDouble), variance = at::ones({6}, kDouble), tracked = at::zeros({}, at::kLong);
};

TEST_F(Step, BatchNormInTrainingIsRunWholeOrRefused) {
  Normed normed{net_};
  const auto loss = [](const at::Tensor& o) { return o.square().mean(); };
  Normed plain{net_};
  loss(plain(x_)).backward();
  const std::vector<at::Tensor> gradients = net_.gradients();
  net_.forget();
  step(x_, normed, loss);
  expect_close(net_.gradients(), gradients);
  expect_close(normed.mean, plain.mean);
  EXPECT_EQ(normed.tracked.item<int>(), 1);

  net_.forget();
  const at::Tensor mean = normed.mean.clone(), variance = normed.variance.clone();
  std::string error = error_of<c10::ValueError>([&] { step(x_, normed, loss, of(5)); });
  EXPECT_TRUE(contains(error, "in micro-batches of 5: aten::batch_norm takes statistics of all rows")) << error;
  // Memory that runs out behind it: the error says both.
  error = error_of<c10::OutOfMemoryError>([&] {
    step(x_, [&](const at::Tensor& rows) {
      const at::Tensor outputs = normed(rows);
      if (rows.size(0) > 5) out_of_memory();
      return outputs;
    }, loss);
  });
  EXPECT_TRUE(contains(error, "CUDA out of memory. Tried to allocate 2.00 GiB.\nkoila::step cannot run this step in micro-batches: aten::batch_norm")) << error;
  EXPECT_TRUE(at::equal(normed.mean, mean) && at::equal(normed.variance, variance));
  EXPECT_EQ(normed.tracked.item<int>(), 1);
  EXPECT_FALSE(net_.parameters[0].grad().defined());

  normed.training = plain.training = false;
  loss(plain(x_)).backward();
  const std::vector<at::Tensor> evaluated = net_.gradients();
  net_.forget();
  plain.mean = normed.mean;
  step(x_, plain, loss, of(5));
}

TEST_F(Step, InstanceNormIsOfSingleRowsUnlessItHasRunningStatistics) {
  const at::Tensor images = at::randn({10, 3, 4, 4}, kDouble);
  at::Tensor scale = at::ones({3}, kDouble).requires_grad_(), mean = at::zeros({3}, kDouble), variance = at::ones({3}, kDouble);
  const auto loss = [](const at::Tensor& o) { return o.pow(3).mean(); };
  const auto forward = [&](bool running) {
    return [&, running](const at::Tensor& rows) {
      return at::instance_norm(rows, scale, {}, running ? mean : at::Tensor(), running ? variance : at::Tensor(), true, 0.1, 1e-5, false);
    };
  };
  step(images, forward(false), loss, of(3));
  const at::Tensor gradient = scale.grad().clone();
  scale.mutable_grad().reset();
  loss(forward(false)(images)).backward();
  expect_close(scale.grad(), gradient);
  EXPECT_TRUE(contains(error_of<c10::ValueError>([&] { step(images, forward(true), loss, of(3)); }), "aten::instance_norm takes statistics"));
  EXPECT_EQ(mean.abs().sum().item<double>(), 0);
}

TEST_F(Step, WritesInForwardAreRefusedAndUndone) {
  at::Tensor counter = at::zeros({}, at::kLong), bank = at::zeros({4, 4}, kDouble);
  const auto loss = [](const at::Tensor& o) { return o.sum(); };
  const auto counts = [&](const at::Tensor& rows) { counter += 1; return net_(rows); };
  const auto keeps = [&](const at::Tensor& rows) {
    const at::Tensor outputs = net_(rows);
    bank.slice(0, 0, 1).copy_(outputs.detach().slice(0, 0, 1));
    return outputs;
  };
  EXPECT_TRUE(contains(error_of<c10::ValueError>([&] { step(x_, counts, loss, of(5)); }), "aten::add_ writes to a tensor that was there before"));
  EXPECT_TRUE(contains(error_of<c10::ValueError>([&] { step(x_, keeps, loss, of(5)); }), "aten::copy_ writes to a tensor that was there before"));
  EXPECT_TRUE(contains(error_of<c10::ValueError>([&] { step(x_.clone(), [&](at::Tensor rows) { return net_(rows.mul_(2)); }, loss, of(5)); }), "aten::mul_ writes"));
  EXPECT_EQ(counter.item<int>(), 0);
  EXPECT_EQ(bank.abs().sum().item<double>(), 0);
  step(x_, counts, loss);  // all at once it may
  EXPECT_EQ(counter.item<int>(), 1);
  // What forward made itself it may write to.
  step(x_, [&](const at::Tensor& rows) { return net_(at::zeros_like(rows).copy_(rows).mul_(2)).relu_(); }, loss, of(5));
}

TEST_F(Step, RowsThatDependOnOthersAreRefused) {
  const auto loss = [](const at::Tensor& o) { return o.square().sum(); };
  const std::map<std::string, std::function<at::Tensor(const at::Tensor&)>> dependent = {
      {"mean", [&](const at::Tensor& rows) { return net_(rows - rows.mean(0)); }},
      {"softmax", [&](const at::Tensor& rows) { return net_(rows).softmax(0); }},
      {"cumsum", [&](const at::Tensor& rows) { return net_(rows).cumsum(0); }},
      {"largest", [&](const at::Tensor& rows) { return net_(rows / rows.abs().max()); }},
  };
  for (const auto& [name, forward] : dependent) {
    SCOPED_TRACE(name);
    const StepOptions options = of(5).with_sizes(BatchOptions().with_context(name));
    const std::string error = error_of<c10::ValueError>([&, &forward = forward] { step(x_, forward, loss, options); });
    EXPECT_TRUE(contains(error, "the first two rows have other outputs")) << error;
    EXPECT_FALSE(net_.parameters[0].grad().defined());
    step(x_, forward, loss);
    net_.forget();
    step(x_, forward, loss, options.with_verify(false));  // as one says
    net_.forget();
  }
}

TEST_F(Step, OutputsThatAreNotOfRowsAreRefused) {
  const auto loss = [](const at::Tensor& o) { return o.sum(); };
  EXPECT_TRUE(contains(error_of<c10::ValueError>([&] { step(x_, [&](const at::Tensor& rows) { return net_(rows).sum(); }, loss, of(5)); }), "belongs into the loss"));
  EXPECT_TRUE(contains(error_of<c10::ValueError>([&] { step(x_, [&](const at::Tensor& rows) { return net_(rows).t(); }, loss, of(5)); }), "which does not have as many in dimension 0"));
  step(x_, [&](const at::Tensor& rows) { return net_(rows).t(); }, loss, of(5).with_output_dim(1));
  EXPECT_TRUE(contains(error_of<c10::ValueError>([&] {
    step(x_, [&](const at::Tensor& rows) { return net_(rows).slice(1, 0, rows.data_ptr() == x_.data_ptr() ? 3 : 2); }, loss, of(5).with_verify(false));
  }), "as the first ones have it"));
}

TEST_F(Step, ForwardThatIsNotTheSameTwiceIsRefused) {
  int calls = 0;
  at::Generator own = at::detail::createCPUGenerator(1);
  const auto loss = [](const at::Tensor& o) { return o.square().sum(); };
  const auto counts = [&](const at::Tensor& rows) { return net_(rows) * ++calls; };
  const auto draws = [&](const at::Tensor& rows) { return net_(rows * at::bernoulli(at::full_like(rows, 0.5), own)); };
  EXPECT_TRUE(contains(error_of<c10::ValueError>([&] { step(x_, counts, loss, of(5)); }), ""));
  EXPECT_FALSE(net_.parameters[0].grad().defined());
  EXPECT_TRUE(contains(error_of<c10::ValueError>([&] { step(x_, draws, loss, of(5)); }), ""));
  EXPECT_FALSE(net_.parameters[0].grad().defined());
  calls = 0;
  EXPECT_TRUE(contains(error_of<c10::ValueError>([&] {
    step(x_, [&](const at::Tensor& rows) { at::rand({1}); return net_(rows) * ++calls; }, loss, of(5));
  }), "forward computed something else the second time"));
  EXPECT_FALSE(net_.parameters[0].grad().defined());
}

TEST_F(Step, GraphsFromBeforeAreRefused) {
  const at::Tensor doubled = net_.parameters[0].exp();
  const auto forward = [&](const at::Tensor& rows) { return rows.mm(doubled); };
  const auto loss = [](const at::Tensor& o) { return o.square().sum(); };
  const std::string error = error_of<c10::ValueError>([&] { step(x_, forward, loss, of(5)); });
  EXPECT_TRUE(contains(error, "a result of ExpBackward0 that was computed before the step")) << error;
  step(x_, forward, loss);
  EXPECT_TRUE(net_.parameters[0].grad().defined());
}

TEST_F(Step, HooksSeeTheWholeGradientOrNone) {
  at::Tensor seen;
  net_.parameters[0].register_hook([&](const at::Tensor& gradient) { seen = gradient.clone(); });
  const auto loss = [](const at::Tensor& o) { return o.square().sum(); };
  step(x_, net_, loss);
  EXPECT_TRUE(at::equal(seen, net_.parameters[0].grad()));
  const std::vector<at::Tensor> before = net_.gradients();
  EXPECT_TRUE(contains(error_of<c10::ValueError>([&] { step(x_, net_, loss, of(5)); }), "a hook on the gradient of torch::autograd::AccumulateGrad"));
  expect_close(net_.gradients(), before);
}

// ---- Misuse.

TEST_F(Step, MisuseSaysWhatIsExpected) {
  const auto loss = [](const at::Tensor& o) { return o.sum(); };
  const auto pair = [&](const at::Tensor& a, const at::Tensor&) { return net_(a); };
  EXPECT_EQ(error_of<c10::ValueError>([&] { step(std::make_pair(x_, x_.slice(0, 0, 4)), pair, loss); }),
            "koila::step: the inputs have 10 and 4 rows in dimension 0; each has as many. What has no rows is not an input: let forward capture it");
  EXPECT_EQ(error_of<c10::IndexError>([&] { step(std::make_pair(x_, at::ones({})), pair, loss); }),
            "koila::step: dimension 0 (StepOptions::dim) of an input of shape []; what has no rows is not an input: let forward capture it");
  EXPECT_EQ(error_of<c10::ValueError>([&] { step(at::Tensor(), net_, loss); }), "koila::step: there is no defined tensor among the inputs");
  EXPECT_EQ(error_of<c10::ValueError>([&] { step(x_, net_, [](const at::Tensor& o) { return o; }); }),
            "koila::step: the loss has the shape [10, 4]; it has one element, such as a sum or mean");
  EXPECT_EQ(error_of<c10::ValueError>([&] { step(x_, net_, loss, of(-1)); }), "koila::step: StepOptions::micro_batch is -1; it is a number of rows, or 0 for all");
  EXPECT_EQ(error_of<c10::ValueError>([&] { step(x_, net_, loss, of(3).with_counts(at::ones({10}))); }), "koila::step: StepOptions::counts is for Separable::kMean");
  const at::NoGradGuard no_grad;
  EXPECT_TRUE(contains(error_of<c10::ValueError>([&] { step(x_, net_, loss); }), "gradients are switched off here"));
}

TEST_F(Step, NoRows) { EXPECT_EQ(step(x_.slice(0, 0, 0), net_, [](const at::Tensor& o) { return o.sum(); }).outputs.size(0), 0); }

// ---- Threads.

// loss = w * s and dloss/dw = s, for the s that the masks make: another mask in the second pass would show.
TEST_F(Step, StepsOfSeveralThreadsAtOnce) {
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      at::Tensor w = at::full({1}, 3.0 + i, kDouble).requires_grad_();
      for (int n = 0; n < 20; ++n) try {
        w.mutable_grad().reset();
        const auto forward = [&](const at::Tensor& rows) {
          std::this_thread::yield();
          return at::dropout(rows, 0.5, true) * w;
        };
        const auto result = step(x_, forward, [](const at::Tensor& o) { return o.sum(); }, of(1 + i));
        wrong += !at::allclose(result.loss, w.detach() * w.grad());
      } catch (const std::exception&) {
        ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong.load(), 0);
}

TEST_F(Step, WithinAStep) {
  Net inner;
  const auto square = [](const at::Tensor& o) { return o.square().sum(); };
  step(x_, net_, [&](const at::Tensor& o) {
    step(o.detach(), [&](const at::Tensor& rows) { return inner(at::cat({rows, rows.slice(1, 0, 2)}, 1)); }, square, of(3));
    return square(o);
  }, of(5));
  EXPECT_TRUE(inner.parameters[0].grad().defined());
}

}  // namespace
}  // namespace koila
