// What only C++ programs do in a training step, or do in another way than Python: raw pointers, guards, threads, saving, functions of their own. Most are a
// function between two layers, `Between`; the rest are steps of their own, `Steps`. All in double precision.

#include <ATen/Parallel.h>
#include <torch/csrc/jit/api/compilation_unit.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/library.h>

#include <cstring>
#include <exception>
#include <numeric>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "program.h"

namespace {

namespace nn = torch::nn;
namespace F = torch::nn::functional;
using torch::Tensor;
using torch::indexing::Slice;

constexpr int64_t kHidden = 12;

struct Net : nn::Cloneable<Net> {
  Net() { reset(); }
  void reset() override {
    first = register_module("first", nn::Linear(8, kHidden));
    second = register_module("second", nn::Linear(kHidden, kHidden));
    third = register_module("third", nn::Linear(kHidden, 5));
  }
  Tensor hidden(const Tensor& x) { return torch::tanh(first(x)); }
  Tensor outputs(const Tensor& h) { return third(torch::tanh(second(h))); }
  Tensor forward(const Tensor& x) { return outputs(hidden(x)); }
  nn::Linear first{nullptr}, second{nullptr}, third{nullptr};
};

using Mix = std::function<Tensor(const Tensor&, Record&)>;
class Trap;
using Train = std::function<void(Trap&, Record&)>;

class Trap : public Program {
 public:
  Trap(const Settings& settings, Mix mix, Train train) : Program(settings), mix_(std::move(mix)), train_(std::move(train)) {}
  nn::Module& model() override { return *net; }
  std::vector<Tensor> batch() override { return {torch::randn({settings.rows, 8}), torch::randint(5, {settings.rows})}; }
  Tensor loss(const std::vector<Tensor>& batch, Record& record) override {
    return F::cross_entropy(net->outputs(mix_ ? mix_(net->hidden(batch[0]), record) : net->hidden(batch[0])), batch[1]);
  }
  void step(Record& record) override { train_ ? train_(*this, record) : Program::step(record); }
  // Backward, the gradients, and the optimizer.
  void learn(const Tensor& loss, Record& record) {
    optimizer().zero_grad();
    loss.backward();
    finish_step(loss, record);
  }
  void finish_step(const Tensor& loss, Record& record) {
    record.gradients(model());
    optimizer().step();
    record.value("loss", loss);
  }
  void replace_optimizer(std::unique_ptr<torch::optim::Optimizer> other) { optimizer_ = std::move(other); }
  std::unique_ptr<torch::optim::Optimizer> another_optimizer() { return make_optimizer(); }
  void finish(Record& record) override {
    for (size_t i = 0; i < kept.size(); ++i) record.value("kept" + std::to_string(i), kept[i]);
  }

  std::shared_ptr<Net> net = std::make_shared<Net>();
  std::vector<Tensor> kept;  // lives across steps, and is recorded at the end
  std::shared_ptr<void> own;  // whatever else a program keeps

 private:
  Mix mix_;
  Train train_;
};

struct Between {
  Between(const char* name, Mix mix) {
    programs()[name] = [mix](const Settings& s) { return std::make_unique<Trap>(s, mix, nullptr); };
  }
};
struct Steps {
  Steps(const char* name, Train train) {
    programs()[name] = [train](const Settings& s) { return std::make_unique<Trap>(s, nullptr, train); };
  }
};

double sum_of(const double* begin, int64_t count) { return std::accumulate(begin, begin + count, 0.0); }

// ---- memory that is read directly, in the middle of a step --------------------------------------------------------------------

const Between read_data_ptr("read_data_ptr", [](const Tensor& h, Record& record) {
  record.value("sum", sum_of(h.data_ptr<double>(), h.numel()));
  return h;
});

const Between read_const_pointer("read_const_pointer", [](const Tensor& h, Record& record) {
  record.value("sum", sum_of(h.const_data_ptr<double>(), h.numel()));
  return h;
});

const Between read_accessor("read_accessor", [](const Tensor& h, Record& record) {
  const auto rows = h.accessor<double, 2>();
  double diagonal = 0;
  for (int64_t i = 0; i < std::min(rows.size(0), rows.size(1)); ++i) diagonal += rows[i][i];
  record.value("diagonal", diagonal);
  return h;
});

const Between read_packed_accessor("read_packed_accessor", [](const Tensor& h, Record& record) {
  const auto rows = h.packed_accessor64<double, 2>();
  record.value("corner", rows[0][0] + rows[rows.size(0) - 1][rows.size(1) - 1]);
  return h;
});

const Between read_labels_of_outputs("read_labels_of_outputs", [](const Tensor& h, Record& record) {
  const Tensor best = h.argmax(1);
  const int64_t* first = best.data_ptr<int64_t>();
  const Tensor positive = (h > 0).all(1);
  record.value("best", static_cast<double>(std::accumulate(first, first + best.numel(), int64_t{0})));
  record.value("positive", static_cast<double>(std::count(positive.data_ptr<bool>(), positive.data_ptr<bool>() + positive.numel(), true)));
  return h;
});

const Between read_into_vector("read_into_vector", [](const Tensor& h, Record& record) {
  const Tensor there = h.detach().cpu().contiguous();
  const std::vector<double> values(there.data_ptr<double>(), there.data_ptr<double>() + there.numel());
  record.value("largest", *std::max_element(values.begin(), values.end()));
  return h;
});

const Between read_untyped_pointer("read_untyped_pointer", [](const Tensor& h, Record& record) {
  std::vector<double> values(static_cast<size_t>(h.numel()));
  std::memcpy(values.data(), h.data_ptr(), h.nbytes());
  record.value("sum", sum_of(values.data(), h.numel()));
  return h;
});

const Between read_storage("read_storage", [](const Tensor& h, Record& record) {
  record.value("sum", sum_of(static_cast<const double*>(h.storage().data()), h.numel()));
  return h;
});

const Between read_view("read_view", [](const Tensor& h, Record& record) {
  record.value("column", h.t()[1].contiguous().data_ptr<double>()[0] + h.slice(0, 1).data_ptr<double>()[3]);
  return h;
});

const Between blob_of_hidden("blob_of_hidden", [](const Tensor& h, Record&) {
  const Tensor alias = torch::from_blob(h.data_ptr<double>(), h.sizes(), h.scalar_type());
  return h * alias.abs().mean();
});

const Between read_with_operators("read_with_operators", [](const Tensor& h, Record& record) {
  record.value("item", h.sum().item<double>());
  record.value("nonzero", h.abs().sum().is_nonzero() ? 1.0 : 0.0);
  record.value("equal", torch::equal(h, h.clone()) && torch::allclose(h, h + 1e-12) ? 1.0 : 0.0);
  std::ostringstream text;
  text << h[0];
  TORCH_CHECK(text.str().find("nan") == std::string::npos);
  for (int64_t i = 0; i < 3; ++i) record.value("row" + std::to_string(i), h[i].sum().item<double>());
  return h;
});

const Between saved_in_the_step("saved_in_the_step", [](const Tensor& h, Record& record) {
  std::stringstream file;
  torch::save(h, file);
  Tensor back;
  torch::load(back, file);
  record.value("back", back.sum());
  const std::vector<char> bytes = torch::pickle_save(h.detach());
  record.value("pickled", torch::pickle_load(bytes).toTensor().sum());
  return h;
});

const Between metadata("metadata", [](const Tensor& h, Record& record) {
  TORCH_CHECK(h.dim() == 2 && h.size(1) == kHidden && h.stride(0) == kHidden && h.is_contiguous() && h.requires_grad() && !h.is_leaf() && h.grad_fn());
  TORCH_CHECK(h.storage().nbytes() == h.nbytes() && h.storage_offset() == 0 && h.device().is_cpu() && h.layout() == torch::kStrided && h.has_storage());
  record.value("version", static_cast<double>(h._version()));
  return h;
});

const Steps item_of_every_loss("item_of_every_loss", [](Trap& t, Record& record) {
  const Tensor loss = t.loss(t.batch(), record);
  TORCH_CHECK(std::isfinite(loss.item<double>()));
  record.value("item", loss.item<double>());
  t.learn(loss, record);
  record.value("pointer", *loss.data_ptr<double>());
});

const Steps accuracy_by_accessor("accuracy_by_accessor", [](Trap& t, Record& record) {
  const auto rows = t.batch();
  const Tensor outputs = t.net->forward(rows[0]);
  const auto scores = outputs.accessor<double, 2>();
  const auto labels = rows[1].accessor<int64_t, 1>();
  int64_t right = 0;
  for (int64_t i = 0; i < scores.size(0); ++i) {
    int64_t best = 0;
    for (int64_t j = 1; j < scores.size(1); ++j) best = scores[i][j] > scores[i][best] ? j : best;
    right += best == labels[i];
  }
  record.value("right", static_cast<double>(right));
  t.learn(F::cross_entropy(outputs, rows[1]), record);
});

const Between parallel_for_reads("parallel_for_reads", [](const Tensor& h, Record& record) {
  const auto rows = h.accessor<double, 2>();
  std::vector<double> sums(static_cast<size_t>(rows.size(0)));
  at::parallel_for(0, rows.size(0), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) sums[static_cast<size_t>(i)] = sum_of(rows[i].data(), kHidden);
  });
  record.value("sum", std::accumulate(sums.begin(), sums.end(), 0.0));
  return h;
});

// ---- memory that is written directly ------------------------------------------------------------------------------------------

const Between write_data_in_place("write_data_in_place", [](const Tensor& h, Record&) {
  h.data().mul_(0.5);
  return h;
});

const Between write_row_of_data("write_row_of_data", [](const Tensor& h, Record&) {
  h.data().slice(0, 0, 3).zero_();
  h.variable_data().select(0, 4).add_(1);
  return h;
});

const Steps write_data_before_tanh("write_data_before_tanh", [](Trap& t, Record& record) {
  const auto rows = t.batch();
  const Tensor z = t.net->first(rows[0]);
  z.data().mul_(0.5);
  z.detach().add_(0.1);
  t.learn(F::cross_entropy(t.net->outputs(torch::tanh(z)), rows[1]), record);
});

const Between write_through_pointer("write_through_pointer", [](const Tensor& h, Record&) {
  double* values = h.data_ptr<double>();
  for (int64_t i = 0; i < h.numel(); i += 7) values[i] = 0.25;
  return h;
});

const Between write_through_accessor("write_through_accessor", [](const Tensor& h, Record&) {
  auto rows = h.accessor<double, 2>();
  rows[0][0] = 0.5;
  rows[rows.size(0) - 1][3] *= 2;
  return h;
});

const Steps pointer_kept_from_before("pointer_kept_from_before", [](Trap& t, Record& record) {
  const auto rows = t.batch();
  double* values = rows[0].data_ptr<double>();
  values[0] = 3;  // before anything read it
  const Tensor loss = t.loss(rows, record);
  t.learn(loss, record);
  values[1] = 4;  // when all is done
  record.value("input", rows[0]);
});

const Steps input_written_through_pointer("input_written_through_pointer", [](Trap& t, Record& record) {
  const auto rows = t.batch();
  const Tensor loss = t.loss(rows, record);
  rows[0].data_ptr<double>()[0] += 1;
  t.learn(loss, record);
});

// The program's own memory, filled anew for each batch.
const Steps blob_as_input("blob_as_input", [](Trap& t, Record& record) {
  struct Buffers {
    std::vector<double> x;
    std::vector<int64_t> y;
  };
  if (!t.own) t.own = std::make_shared<Buffers>();
  auto& buffers = *static_cast<Buffers*>(t.own.get());
  const int64_t n = t.settings.rows;
  buffers.x.resize(static_cast<size_t>(n * 8));
  buffers.y.resize(static_cast<size_t>(n));
  for (size_t i = 0; i < buffers.x.size(); ++i) buffers.x[i] = std::sin(static_cast<double>(i * 7 % 13) + record.step);
  for (size_t i = 0; i < buffers.y.size(); ++i) buffers.y[i] = static_cast<int64_t>(i * 3 + static_cast<size_t>(record.step)) % 5;
  const Tensor x = torch::from_blob(buffers.x.data(), {n, 8}, torch::kFloat64), y = torch::from_blob(buffers.y.data(), {n}, torch::kInt64);
  const Tensor loss = t.loss({x, y}, record);
  t.learn(loss, record);
  std::fill(buffers.x.begin(), buffers.x.end(), std::nan(""));
});

const Steps weights_clipped_through_pointers("weights_clipped_through_pointers", [](Trap& t, Record& record) {
  t.learn(t.loss(t.batch(), record), record);
  for (const Tensor& p : t.net->parameters()) {
    double* values = p.data_ptr<double>();
    for (int64_t i = 0; i < p.numel(); ++i) values[i] = std::min(std::max(values[i], -0.2), 0.2);
  }
});

const Steps gradients_scaled_through_pointers("gradients_scaled_through_pointers", [](Trap& t, Record& record) {
  const Tensor loss = t.loss(t.batch(), record);
  t.optimizer().zero_grad();
  loss.backward();
  for (const Tensor& p : t.net->parameters()) {
    double* values = p.mutable_grad().data_ptr<double>();
    for (int64_t i = 0; i < p.numel(); ++i) values[i] *= 0.5;
  }
  t.finish_step(loss, record);
});

const Between set_data("set_data", [](const Tensor& h, Record&) {
  Tensor g = h * 1.5;
  g.set_data(h.detach() * 0.5);
  return g;
});

const Between mean_into_a_buffer("mean_into_a_buffer", [](const Tensor& h, Record& record) {
  const torch::NoGradGuard no_grad;
  Tensor buffer = torch::zeros({kHidden});
  torch::mean_out(buffer, h, 0);
  record.value("mean", sum_of(buffer.data_ptr<double>(), kHidden));
  const torch::AutoGradMode with_grad(true);
  return h + buffer;
});

const Between indexed("indexed", [](const Tensor& h, Record&) {
  Tensor g = h.clone();
  g.index_put_({Slice(0, 3), 1}, 0.5);
  g.index_put_({g.index({Slice(), 0}) > 0.5, Slice(2, 4)}, 0.0);
  return g + h.index({torch::arange(h.size(0)).flip(0)});
});

// ---- guards ---------------------------------------------------------------------------------------------------------------------

const Between below_autograd("below_autograd", [](const Tensor& h, Record&) {
  Tensor scale;
  {
    const at::AutoDispatchBelowAutograd guard;
    scale = h.abs().mean(1, true) + 0.5;
  }
  TORCH_CHECK(!scale.requires_grad());
  return h / scale;
});

const Between guards_within_guards("guards_within_guards", [](const Tensor& h, Record&) {
  const torch::NoGradGuard no_grad;
  const Tensor centre = h.mean(1, true);
  const torch::AutoGradMode with_grad(true);
  return h - centre;
});

const Steps evaluated_in_inference_mode("evaluated_in_inference_mode", [](Trap& t, Record& record) {
  const auto rows = t.batch();
  const Tensor outputs = t.net->forward(rows[0]);
  const Tensor loss = F::cross_entropy(outputs, rows[1]);
  {
    const c10::InferenceMode inference;
    record.value("right", outputs.argmax(1).eq(rows[1]).sum().item<int64_t>());
    record.value("again", (t.net->forward(rows[0]) - outputs).abs().max().item<double>() < 1e-12 ? 1.0 : 0.0);
  }
  t.learn(loss, record);
});

const Steps targets_from_inference_mode("targets_from_inference_mode", [](Trap& t, Record& record) {
  const auto rows = t.batch();
  Tensor target;
  {
    const c10::InferenceMode inference;
    target = torch::softmax(t.net->forward(rows[0] + 0.1), 1);
  }
  t.learn(F::mse_loss(torch::softmax(t.net->forward(rows[0]), 1), target.clone()), record);
});

// ---- functions, operators and modules of the program's own ----------------------------------------------------------------------

struct Square : torch::autograd::Function<Square> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x) {
    context->save_for_backward({x});
    return x * x;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context, const torch::autograd::variable_list& slopes) {
    return {2 * context->get_saved_variables()[0] * slopes[0]};
  }
};
const Between custom_function("custom_function", [](const Tensor& h, Record&) { return h + 0.3 * Square::apply(h); });

struct CentreByHand : torch::autograd::Function<CentreByHand> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x) {
    const Tensor out = torch::empty_like(x);
    context->saved_data["rows"] = x.size(0);
    const int64_t rows = x.size(0), columns = x.size(1);
    const double *from = x.data_ptr<double>();
    double* to = out.data_ptr<double>();
    for (int64_t j = 0; j < columns; ++j) {
      double mean = 0;
      for (int64_t i = 0; i < rows; ++i) mean += from[i * columns + j] / static_cast<double>(rows);
      for (int64_t i = 0; i < rows; ++i) to[i * columns + j] = from[i * columns + j] - mean;
    }
    return out;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context, const torch::autograd::variable_list& slopes) {
    const Tensor slope = slopes[0].contiguous(), out = slope.clone();
    const int64_t rows = context->saved_data["rows"].toInt(), columns = slope.size(1);
    const auto from = slope.accessor<double, 2>();
    auto to = out.accessor<double, 2>();
    for (int64_t j = 0; j < columns; ++j) {
      double mean = 0;
      for (int64_t i = 0; i < rows; ++i) mean += from[i][j] / static_cast<double>(rows);
      for (int64_t i = 0; i < rows; ++i) to[i][j] -= mean;
    }
    return {out};
  }
};
const Between function_over_pointers("function_over_pointers", [](const Tensor& h, Record&) { return CentreByHand::apply(h); });

// A kernel that reads and writes memory, and knows nothing of autograd.
Tensor running_sum_kernel(const Tensor& x) {
  const Tensor from = x.contiguous(), out = torch::empty_like(from);
  double total = 0;
  for (int64_t i = 0; i < from.numel(); ++i) out.data_ptr<double>()[i] = total += from.const_data_ptr<double>()[i] / static_cast<double>(from.numel());
  return out;
}
TORCH_LIBRARY(koila_traps, m) { m.def("running_sum(Tensor x) -> Tensor", running_sum_kernel); }
const Between operator_over_pointers("operator_over_pointers", [](const Tensor& h, Record&) {
  static const auto running_sum = c10::Dispatcher::singleton().findSchemaOrThrow("koila_traps::running_sum", "").typed<Tensor(const Tensor&)>();
  const torch::NoGradGuard no_grad;
  const Tensor carried = running_sum.call(h);
  const torch::AutoGradMode with_grad(true);
  return h + carried;
});

const Steps script_module("script_module", [](Trap& t, Record& record) {
  if (!t.own) {
    auto script = std::make_shared<torch::jit::Module>("script");
    script->register_parameter("weight", t.net->second->weight, false);
    script->register_parameter("bias", t.net->second->bias, false);
    script->define("def forward(self, x):\n    y = torch.tanh(torch.linear(x, self.weight, self.bias))\n    if y.sum().item() > 1e9:\n        y = y * 0\n    return y + x\n");
    t.own = script;
  }
  auto& script = *static_cast<torch::jit::Module*>(t.own.get());
  const auto rows = t.batch();
  const Tensor h = script.forward({t.net->hidden(rows[0])}).toTensor();
  t.learn(F::cross_entropy(t.net->third(h), rows[1]), record);
});

const Steps compiled_script("compiled_script", [](Trap& t, Record& record) {
  static const auto unit = torch::jit::compile("def mix(x, w):\n    return torch.sigmoid(x * 2 + 1) * torch.tanh(torch.matmul(x, w)) + x.relu()\n");
  const auto rows = t.batch();
  const Tensor h = unit->run_method("mix", t.net->hidden(rows[0]), t.net->second->weight).toTensor();
  t.learn(F::cross_entropy(t.net->third(h), rows[1]), record);
});

const Steps moved_to_double("moved_to_double", [](Trap& t, Record& record) {
  if (record.step == 1) {
    t.net->to(torch::kFloat32);
    t.net->to(torch::kFloat64);
  }
  t.learn(t.loss(t.batch(), record), record);
});

const Steps moved_between_forward_and_backward("moved_between_forward_and_backward", [](Trap& t, Record& record) {
  const Tensor loss = t.loss(t.batch(), record);
  t.net->to(torch::kFloat64);  // is there already
  const auto copy = std::dynamic_pointer_cast<Net>(t.net->clone());
  record.value("copy", copy->first->weight.sum().item<double>());
  t.learn(loss, record);
});

// ---- optimizers and gradients ---------------------------------------------------------------------------------------------------

const Steps lbfgs("lbfgs", [](Trap& t, Record& record) {
  if (record.step == 1) t.replace_optimizer(std::make_unique<torch::optim::LBFGS>(t.net->parameters(), torch::optim::LBFGSOptions(0.1).max_iter(4)));
  const auto rows = t.batch();
  const Tensor loss = t.optimizer().step([&] {
    t.optimizer().zero_grad();
    const Tensor value = t.loss(rows, record);
    value.backward();
    return value;
  });
  record.gradients(*t.net);
  record.value("loss", loss);
});

const Steps clipped_by_norm("clipped_by_norm", [](Trap& t, Record& record) {
  const Tensor loss = t.loss(t.batch(), record);
  t.optimizer().zero_grad();
  loss.backward();
  record.value("norm", nn::utils::clip_grad_norm_(t.net->parameters(), 0.1));
  nn::utils::clip_grad_value_(t.net->parameters(), 0.05);
  t.finish_step(loss, record);
});

const Steps gradient_of_gradient("gradient_of_gradient", [](Trap& t, Record& record) {
  const auto rows = t.batch();
  const Tensor x = rows[0].clone().requires_grad_();
  const Tensor outputs = t.net->forward(x);
  const Tensor slope = torch::autograd::grad({outputs.sum()}, {x}, {}, /*retain_graph=*/true, /*create_graph=*/true)[0];
  t.learn(F::cross_entropy(outputs, rows[1]) + slope.square().sum(1).mean(), record);
});

const Steps gradients_by_hand("gradients_by_hand", [](Trap& t, Record& record) {
  const Tensor loss = t.loss(t.batch(), record);
  const auto slopes = torch::autograd::grad({loss}, t.net->parameters());
  const torch::NoGradGuard no_grad;
  const auto parameters = t.net->parameters();
  for (size_t i = 0; i < slopes.size(); ++i) parameters[i].sub_(slopes[i], 0.1);
  record.value("loss", loss);
});

const Steps two_roots("two_roots", [](Trap& t, Record& record) {
  const auto rows = t.batch();
  const Tensor outputs = t.net->forward(rows[0]), losses = F::cross_entropy(outputs, rows[1], F::CrossEntropyFuncOptions().reduction(torch::kNone));
  t.optimizer().zero_grad();
  torch::autograd::backward({losses, outputs.square().mean()}, {torch::full_like(losses, 1.0 / static_cast<double>(t.settings.rows)), Tensor()});
  t.finish_step(losses, record);
});

const Steps accumulated("accumulated", [](Trap& t, Record& record) {
  t.optimizer().zero_grad();
  for (int part = 0; part < 2; ++part) {
    const Tensor loss = t.loss(t.batch(), record) / 2;
    loss.backward();
    record.value("loss" + std::to_string(part), loss);
  }
  record.gradients(*t.net);
  t.optimizer().step();
});

const Steps hook_on_a_parameter("hook_on_a_parameter", [](Trap& t, Record& record) {
  if (record.step == 1) t.net->second->weight.register_hook([](const Tensor& slope) { return slope.clamp(-0.01, 0.01); });
  t.learn(t.loss(t.batch(), record), record);
});

const Between hook_on_hidden("hook_on_hidden", [](const Tensor& h, Record&) {
  h.register_hook([](const Tensor& slope) { return slope * 2; });
  return h;
});

const Steps retained_gradient("retained_gradient", [](Trap& t, Record& record) {
  const auto rows = t.batch();
  const Tensor h = t.net->hidden(rows[0]);
  h.retain_grad();
  t.learn(F::cross_entropy(t.net->outputs(h), rows[1]), record);
  record.value("retained", h.grad());
});

const Steps optimizer_saved_and_loaded("optimizer_saved_and_loaded", [](Trap& t, Record& record) {
  const Tensor loss = t.loss(t.batch(), record);
  if (record.step == 3) {
    std::stringstream file;
    torch::save(t.optimizer(), file);
    auto other = t.another_optimizer();
    torch::load(*other, file);
    t.replace_optimizer(std::move(other));
  }
  t.learn(loss, record);
});

const Steps model_saved_in_the_step("model_saved_in_the_step", [](Trap& t, Record& record) {
  const Tensor loss = t.loss(t.batch(), record);
  std::stringstream file;
  torch::save(t.net, file);
  t.learn(loss, record);
  if (record.step == 3) torch::load(t.net, file);
});

const Steps scheduled("scheduled", [](Trap& t, Record& record) {
  if (!t.own) t.own = std::make_shared<torch::optim::StepLR>(t.optimizer(), 1, 0.5);
  t.learn(t.loss(t.batch(), record), record);
  static_cast<torch::optim::StepLR*>(t.own.get())->step();
});

// ---- what lives, and where it ends ----------------------------------------------------------------------------------------------

const Steps kept_across_steps("kept_across_steps", [](Trap& t, Record& record) {
  const auto rows = t.batch();
  const Tensor h = t.net->hidden(rows[0]), loss = F::cross_entropy(t.net->outputs(h), rows[1]);
  t.kept.push_back(h.detach());
  t.kept.push_back(loss);
  t.learn(loss, record);
});

std::vector<Tensor>& outlives_main() {
  static std::vector<Tensor> all;
  return all;
}
std::vector<Tensor> outlives_functions_statics;

const Steps statics("statics", [](Trap& t, Record& record) {
  const auto rows = t.batch();
  const Tensor h = t.net->hidden(rows[0]), outputs = t.net->outputs(h), loss = F::cross_entropy(outputs, rows[1]);
  outlives_main().push_back(h);
  outlives_functions_statics.push_back(outputs);
  t.learn(loss, record);
  outlives_main().push_back(t.net->forward(rows[0]));  // with a graph that nobody goes back through
});

const Steps exits_in_the_step("exits_in_the_step", [](Trap& t, Record& record) {
  const Tensor loss = t.loss(t.batch(), record);
  outlives_main().push_back(loss);
  if (record.step == 2) std::exit(7);
  t.learn(loss, record);
});

const Steps own_exception("own_exception", [](Trap& t, Record& record) {
  try {
    const Tensor loss = t.loss(t.batch(), record);
    if (record.step == 2) throw std::runtime_error("a bad batch");
    t.learn(loss, record);
  } catch (const std::runtime_error& error) {
    if (std::string(error.what()) != "a bad batch") throw;
    record.value("skipped", 1.0);
  }
});

const Steps exception_in_backward("exception_in_backward", [](Trap& t, Record& record) {
  const bool bad = record.step == 2;
  const auto handle = t.net->second->weight.register_hook([bad](const Tensor&) {
    if (bad) throw std::runtime_error("a bad gradient");
  });
  try {
    t.learn(t.loss(t.batch(), record), record);
  } catch (const std::runtime_error& error) {
    if (std::string(error.what()).find("a bad gradient") == std::string::npos) throw;
    record.value("skipped", 1.0);
  }
  t.net->second->weight.remove_hook(handle);
});

const Steps batch_that_ran_out_is_skipped("batch_that_ran_out_is_skipped", [](Trap& t, Record& record) {
  try {
    t.learn(t.loss(t.batch(), record), record);
  } catch (const c10::OutOfMemoryError&) {
    t.optimizer().zero_grad();
    record.value("skipped", 1.0);
  }
});

const Between errors_are_what_they_are("errors_are_what_they_are", [](const Tensor& h, Record& record) {
  try {
    torch::matmul(h, torch::ones({kHidden + 1, 2}));
    TORCH_CHECK(false, "no error");
  } catch (const c10::Error& error) {
    record.value("said", std::string(error.what_without_backtrace()).find("cannot be multiplied") != std::string::npos ? 1.0 : 0.0);
  }
  return h;
});

// ---- threads --------------------------------------------------------------------------------------------------------------------

// What `f` throws on its thread is thrown here.
template <class F>
void on_another_thread(F&& f) {
  std::exception_ptr thrown;
  std::thread([&] {
    try {
      f();
    } catch (...) {
      thrown = std::current_exception();
    }
  }).join();
  if (thrown) std::rethrow_exception(thrown);
}

const Steps whole_step_on_another_thread("whole_step_on_another_thread", [](Trap& t, Record& record) {
  on_another_thread([&] { t.learn(t.loss(t.batch(), record), record); });
});

const Steps backward_on_another_thread("backward_on_another_thread", [](Trap& t, Record& record) {
  const Tensor loss = t.loss(t.batch(), record);
  t.optimizer().zero_grad();
  on_another_thread([&] { loss.backward(); });
  t.finish_step(loss, record);
});

const Steps half_of_forward_on_another_thread("half_of_forward_on_another_thread", [](Trap& t, Record& record) {
  const auto rows = t.batch();
  const auto halves = rows[0].chunk(2);
  Tensor first;
  on_another_thread([&] { first = t.net->forward(halves[0]); });
  t.learn(F::cross_entropy(torch::cat({first, t.net->forward(halves[1])}), rows[1]), record);
});

const Steps read_on_another_thread("read_on_another_thread", [](Trap& t, Record& record) {
  const auto rows = t.batch();
  const Tensor h = t.net->hidden(rows[0]), outputs = t.net->outputs(h);
  double sum = 0;
  on_another_thread([&] { sum = h.sum().item<double>() + outputs.data_ptr<double>()[1]; });
  record.value("sum", sum);
  t.learn(F::cross_entropy(outputs, rows[1]), record);
});

const Steps read_on_another_thread_after_the_step("read_on_another_thread_after_the_step", [](Trap& t, Record& record) {
  const auto rows = t.batch();
  const Tensor outputs = t.net->forward(rows[0]), loss = F::cross_entropy(outputs, rows[1]);
  t.learn(loss, record);
  double sum = 0;
  on_another_thread([&] { sum = outputs.sum().item<double>() + *loss.data_ptr<double>(); });
  record.value("sum", sum);
});

const Steps freed_on_another_thread("freed_on_another_thread", [](Trap& t, Record& record) {
  const auto rows = t.batch();
  Tensor h = t.net->hidden(rows[0]);
  Tensor outputs = t.net->outputs(h);
  const Tensor loss = F::cross_entropy(outputs, rows[1]);
  on_another_thread([gone = std::move(h)]() mutable { gone.reset(); });
  t.learn(loss, record);
  on_another_thread([gone = std::move(outputs)]() mutable { gone.reset(); });
});

// As torch::nn::parallel::parallel_apply does, whose header needs CUDA's.
const Steps forward_within_parallel_for("forward_within_parallel_for", [](Trap& t, Record& record) {
  const auto rows = t.batch();
  std::vector<Tensor> outputs(2);
  const auto halves = rows[0].chunk(2);
  at::parallel_for(0, 2, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) outputs[static_cast<size_t>(i)] = t.net->forward(halves[static_cast<size_t>(i)]);
  });
  t.learn(F::cross_entropy(torch::cat(outputs), rows[1]), record);
});

struct Rows : torch::data::datasets::Dataset<Rows> {
  Rows(Tensor x, Tensor y) : x(std::move(x)), y(std::move(y)) {}
  torch::data::Example<> get(size_t i) override { return {x[static_cast<int64_t>(i)].clone(), y[static_cast<int64_t>(i)].clone()}; }
  std::optional<size_t> size() const override { return x.size(0); }
  Tensor x, y;
};
const Steps loader_with_workers("loader_with_workers", [](Trap& t, Record& record) {
  const auto rows = t.batch();
  auto loader = torch::data::make_data_loader(Rows(rows[0], rows[1]).map(torch::data::transforms::Stack<>()), torch::data::samplers::SequentialSampler(static_cast<size_t>(t.settings.rows)),
                                              torch::data::DataLoaderOptions().batch_size(static_cast<size_t>(t.settings.rows + 1) / 2).workers(2).enforce_ordering(true));
  int part = 0;
  for (const auto& batch : *loader) {
    const Tensor loss = t.loss({batch.data, batch.target}, record);
    t.optimizer().zero_grad();
    loss.backward();
    t.optimizer().step();
    record.value("loss" + std::to_string(part++), loss);
  }
});

// Threads that train models of their own, all at once with this one. What becomes of each is its own affair.
const Steps threads_beside("threads_beside", [](Trap& t, Record& record) {
  constexpr int kThreads = 3;
  struct Beside {
    std::shared_ptr<Net> net;
    std::shared_ptr<torch::optim::SGD> optimizer;
    Tensor x, y;
    std::vector<double> losses;
    bool ran_out = false;
  };
  using All = std::vector<Beside>;
  if (!t.own) {
    auto all = std::make_shared<All>();
    for (int i = 0; i < kThreads; ++i) {
      auto net = std::make_shared<Net>();
      const auto rows = t.batch();
      all->push_back({net, std::make_shared<torch::optim::SGD>(net->parameters(), 0.1), rows[0], rows[1], {}});
    }
    t.own = all;
  }
  std::vector<std::thread> threads;
  auto& all = *static_cast<All*>(t.own.get());
  for (Beside& own : all) {
    threads.emplace_back([&own] {
      for (int i = 0; i < 3 && !own.ran_out; ++i) {
        try {
          own.optimizer->zero_grad();
          const Tensor loss = F::cross_entropy(own.net->forward(own.x), own.y);
          loss.backward();
          own.losses.push_back(loss.item<double>());
          own.optimizer->step();
        } catch (const c10::OutOfMemoryError&) {
          own.ran_out = true;
        }
      }
    });
  }
  std::exception_ptr thrown;
  try {
    t.learn(t.loss(t.batch(), record), record);
  } catch (...) {
    thrown = std::current_exception();
  }
  for (std::thread& thread : threads) thread.join();
  for (size_t i = 0; i < all.size(); ++i) {
    for (size_t j = 0; j < all[i].losses.size(); ++j) record.arrays["beside" + std::to_string(i) + "/" + std::to_string(j)] = all[i].losses[j];
  }
  if (thrown) std::rethrow_exception(thrown);
});

}  // namespace
