#include "torchglue/stages/staged.h"

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "torchglue/base/source_line.h"
#include "torchglue/base/tls.h"
#include "torchglue/oom/events.h"
#include "torchglue/oom/oom.h"
#include "torchglue/op_traits.h"
#include "torchglue/placement/operands.h"
#include "torchglue/proof/proof.h"
#include "torchglue/proof/statistics.h"
#include "torchglue/region/deferred.h"
#include "torchglue/stages/extremes.h"
#include "torchglue/stages/running_statistics.h"
#include "torchglue/statistics/moments.h"
#include "torchglue/statistics/operators.h"
#include "torchglue/step/session.h"

namespace koila {

namespace {

struct Statistics {
  at::Tensor mean, var;  // biased; without `dims`
  int64_t count = 0;     // entries that each is of
};

// The step has statistics that are not those of the batch. Throws its refusal.
void find_wrong(Region& region, const c10::OperatorHandle& op, std::string what) {
  if (what.empty()) return;
  Finding finding{"statistics", SIZE_MAX, std::move(what), {}};
  finding.op = op.schema().name();
  finding.line = python_line_now();
  region.broken(finding);
  region.check_sound();
}

// Shows the rows of `x`, a value of the region or a real tensor, to the observer.
void observe(Region& region, const at::Tensor& x, const Placement& placement, RowObserver& observer) {
  const auto entry = deferred_registry().find(x.unsafeGetTensorImpl());
  if (entry.region == &region) {
    region.observe(entry.value, observer);
  } else {
    region.observe(x, placement, observer);
  }
}

// Mean and variance of all rows. They are functions of x to autograd.
Statistics statistics_of(const std::shared_ptr<Region>& region, const at::Tensor& x, const Placement& placement, Moments& moments, const std::vector<int64_t>& dims, RowObserver& observer) {
  observe(*region, x, placement, observer);
  Statistics found;
  found.count = moments.count();
  {
    const NoInterceptGuard no_intercept;
    const at::NoGradGuard no_grad;
    found.mean = moments.mean();
    found.var = moments.biased_variance();
  }
  if (!c10::AutogradState::get_tls_state().get_grad_mode() || !x.requires_grad()) return found;

  const c10::OperatorHandle op = statistics_operator();
  const std::vector<c10::IValue> arguments{x, dims, found.mean, found.var, found.count};
  OpCall call(op.schema(), region->batch());
  for (const c10::IValue& argument : arguments) {
    OpCall::Arg& arg = call.args().emplace_back();
    arg.is_tensor = argument.isTensor();
    if (arg.is_tensor) {
      TensorSpec& spec = arg.tensors.emplace_back();
      spec.defined = true;
      spec.placement = call.args().size() == 1 ? placement : Placement::replicate();
      spec.sizes.assign(argument.toTensor().sizes().begin(), argument.toTensor().sizes().end());
    } else {
      arg.value = argument;
    }
  }
  local(call, Placement::replicate());
  std::vector<Region::KnownOutput> outputs;
  for (const at::Tensor& given : {found.mean, found.var}) {
    Region::KnownOutput& output = outputs.emplace_back();
    const NoInterceptGuard no_intercept;
    output.tensor = given.alias();  // the operator's own argument stays what it is
    output.requires_grad = true;
    output.keep_data = true;
  }
  const auto tensors = region->add_known({op, call, arguments, /*random=*/false}, std::move(outputs));
  region->catch_up();
  for (const at::Tensor& t : tensors) region->hand_over(deferred_registry().find(t.unsafeGetTensorImpl()).value, t);
  found.mean = tensors[0];
  found.var = tensors[1];
  return found;
}

// What the region has of x from here on is an ordinary tensor, known to be split.
void end_stage(Region& region, const at::Tensor& x) {
  region.end_stage();
  const auto entry = deferred_registry().find(x.unsafeGetTensorImpl());
  if (entry.region == &region) region.hand_over(entry.value, x);
}

at::Tensor optional_tensor(const c10::IValue& v) { return v.isTensor() ? v.toTensor() : at::Tensor(); }

double unbiased(int64_t count) { return static_cast<double>(count) / static_cast<double>(count - 1); }

torch::jit::Stack call_boxed(const c10::OperatorHandle& op, torch::jit::Stack stack) {
  op.callBoxed(stack);
  return stack;
}

// Running statistics are moved; where they should have come to something else they are as they were, and the step is refused.
void move_running_statistics(Region& region, const c10::OperatorHandle& op, at::ArrayRef<c10::IValue> arguments, StatisticsWitness& witness, const RunningUpdate& mean, const RunningUpdate& var,
                             double momentum, bool counted = false) {
  if (!witness.looks()) return update_running_statistics({mean, var}, momentum, counted);
  const SavedStatistics saved(op.schema(), arguments);
  witness.before(mean.running, var.running);
  update_running_statistics({mean, var}, momentum, counted);
  std::string wrong = witness.after(mean.running, var.running, momentum);
  if (!wrong.empty()) saved.restore();
  find_wrong(region, op, std::move(wrong));
}

bool batch_norm(const c10::OperatorHandle& op, torch::jit::Stack* stack, const OpCall& call, const std::shared_ptr<Region>& region) {
  const std::vector<c10::IValue> arguments(stack->end() - static_cast<ptrdiff_t>(call.args().size()), stack->end());
  const at::Tensor x = arguments[0].toTensor();
  std::vector<int64_t> dims(static_cast<size_t>(x.dim() - 1));
  std::iota(dims.begin(), dims.end(), 1);
  dims[0] = 0;
  Moments moments(dims);
  StatisticsWitness witness(moments, dims, /*by_row=*/false, statistics_to_prove(op, x, call.tensor(0).placement, region->batch()));
  const Statistics found = statistics_of(region, x, call.tensor(0).placement, moments, dims, witness);
  end_stage(*region, x);
  find_wrong(*region, op, witness.against(found.mean, found.var));
  torch::jit::Stack y = call_boxed(normalise_operator(), {x, found.mean, found.var, arguments[1], arguments[2], call.number(call.find("eps"))});
  const double momentum = call.number(call.find("momentum"));
  const at::Tensor running_mean = optional_tensor(arguments[static_cast<size_t>(call.find("running_mean"))]);
  const at::Tensor running_var = optional_tensor(arguments[static_cast<size_t>(call.find("running_var"))]);
  const at::NoGradGuard no_grad;
  const NoInterceptGuard no_intercept;
  move_running_statistics(*region, op, arguments, witness, {running_mean, found.mean}, {running_var, found.var * unbiased(found.count)}, momentum);
  torch::jit::drop(*stack, call.args().size());
  stack->push_back(std::move(y[0]));
  return true;
}

// The sum over rows of each row's own mean and variance by channel.
class OwnStatistics : public RowObserver {
 public:
  void add(const at::Tensor& part) override {
    const at::Tensor x = part.flatten(2).to(at::toOpMathType(part.scalar_type()));
    auto [var, mean] = at::var_mean(x, /*dim=*/2, /*unbiased=*/true);
    at::Tensor next_mean = mean_.defined() ? mean_ + mean.sum(0) : mean.sum(0);
    at::Tensor next_var = var_.defined() ? var_ + var.sum(0) : var.sum(0);
    mean_ = std::move(next_mean);  // both or, when memory runs out, neither
    var_ = std::move(next_var);
  }
  void start_over() override {
    mean_.reset();
    var_.reset();
  }
  at::Tensor mean_, var_;
};

bool instance_norm(const c10::OperatorHandle& op, torch::jit::Stack* stack, const OpCall& call, const std::shared_ptr<Region>& region) {
  const std::vector<c10::IValue> given(stack->end() - static_cast<ptrdiff_t>(call.args().size()), stack->end());
  torch::jit::Stack arguments(given);
  const at::Tensor x = arguments[0].toTensor();
  const auto running = running_statistics(op.schema(), arguments);
  OwnStatistics own;
  StatisticsWitness witness(own, {}, /*by_row=*/true, statistics_to_prove(op, x, call.tensor(0).placement, region->batch()));
  observe(*region, x, call.tensor(0).placement, witness);
  drop_running_statistics(op.schema(), arguments);
  torch::jit::Stack y = call_boxed(op, std::move(arguments));
  const double momentum = call.number(call.find("momentum")), rows = static_cast<double>(x.size(0));  // of a batch that was merged with others: more than the batch has
  const at::NoGradGuard no_grad;
  const NoInterceptGuard no_intercept;
  if (running.size() == 2) {
    move_running_statistics(*region, op, given, witness, {running[0], own.mean_ / rows}, {running[1], own.var_ / rows}, momentum, /*counted=*/true);
  }
  torch::jit::drop(*stack, call.args().size());
  stack->push_back(std::move(y[0]));
  return true;
}

// aten::var, std, var_mean, std_mean.
bool spread(const c10::OperatorHandle& op, torch::jit::Stack* stack, const OpCall& call, const std::shared_ptr<Region>& region) {
  const NoAutocastGuard no_autocast;
  const at::Tensor x = torch::jit::peek(*stack, 0, call.args().size()).toTensor();
  std::vector<int64_t> dims = *reduced_dims(call, x.dim());
  std::sort(dims.begin(), dims.end());
  Moments moments(dims);
  StatisticsWitness witness(moments, dims, /*by_row=*/false, statistics_to_prove(op, x, call.tensor(0).placement, region->batch()));
  const Statistics found = statistics_of(region, x, call.tensor(0).placement, moments, dims, witness);
  end_stage(*region, x);
  find_wrong(*region, op, witness.against(found.mean, found.var));
  double correction = 1;
  if (const int arg = call.find("unbiased"); arg >= 0) correction = call.boolean(arg, true) ? 1 : 0;
  if (const int arg = call.find("correction"); arg >= 0) correction = call.number(arg, 1);
  // As plain does: of one entry, not a number.
  const double count = static_cast<double>(found.count);
  at::Tensor var = found.var * (count / std::max(0.0, count - correction));
  const std::string& name = call.schema().name();
  if (name.find("std") != std::string::npos) var = var.sqrt();
  const bool keep = call.boolean(call.find("keepdim"));
  const auto finish = [&](at::Tensor t) {
    if (keep) {
      for (int64_t dim : dims) t = t.unsqueeze(dim);
    }
    return t.to(x.scalar_type());
  };
  torch::jit::drop(*stack, call.args().size());
  stack->emplace_back(finish(std::move(var)));
  // The graph of the variance has saved the mean, and the program may write to its own.
  if (name.find("_mean") != std::string::npos) stack->emplace_back(finish(found.mean.clone()));
  return true;
}

// The largest entry along some dimensions, which it keeps.
class Largest : public RowObserver {
 public:
  explicit Largest(std::vector<int64_t> dims) : dims_(std::move(dims)) {}
  void add(const at::Tensor& part) override {
    const at::Tensor most = part.amax(dims_, /*keepdim=*/true);
    largest_ = largest_.defined() ? at::maximum(largest_, most) : most;
  }
  void start_over() override { largest_.reset(); }
  // 0 in the place of infinities, which may not be subtracted from themselves.
  at::Tensor finite() const { return at::where(at::isinf(largest_), at::zeros({}, largest_.options()), largest_); }

 private:
  std::vector<int64_t> dims_;
  at::Tensor largest_;
};

// The type that plain's result has, which autocast has a say in. Each device has a list of its own of what it takes to be better in single precision: the call itself tells, of one entry.
at::ScalarType type_of_result(const c10::OperatorHandle& op, const torch::jit::Stack& stack, const OpCall& call) {
  const at::Tensor given = torch::jit::peek(stack, 0, call.args().size()).toTensor();
  if (!at::autocast::is_autocast_enabled(given.device().type())) {
    return call.boolean(call.find("half_to_float")) ? at::kFloat : dtype_argument(call).value_or(given.scalar_type());
  }
  torch::jit::Stack one(stack.end() - static_cast<ptrdiff_t>(call.args().size()), stack.end());
  const at::NoGradGuard no_grad;
  const NoInterceptGuard no_intercept;
  one[0] = at::zeros(std::vector<int64_t>(static_cast<size_t>(given.dim()), 1), given.options());
  op.callBoxed(one);
  return one[0].toTensor().scalar_type();
}

// With the largest entry taken off, sum(exp(x)) over the batch is a Partial like any other; the rest is pointwise.
bool exponentials(const c10::OperatorHandle& op, torch::jit::Stack* stack, const OpCall& call, const std::shared_ptr<Region>& region) {
  const at::Tensor given = torch::jit::peek(*stack, 0, call.args().size()).toTensor();
  const std::vector<int64_t> dims = *reduced_dims(call, given.dim());
  const at::ScalarType result = type_of_result(op, *stack, call);
  const NoAutocastGuard no_autocast;
  Largest largest(dims);
  observe(*region, given, call.tensor(0).placement, largest);
  end_stage(*region, given);
  const std::string& name = call.schema().name();
  // What a softmax gives lies in memory in the order of its dimensions, whatever its argument does: views of it and noise of its shape depend on that.
  at::Tensor x = given.to(at::toOpMathType(result)).contiguous();
  at::Tensor most;
  {
    const NoInterceptGuard no_intercept;
    most = largest.finite().to(x.scalar_type());
  }
  const at::Tensor shifted = x - most;
  const at::Tensor exponential = shifted.exp();
  const at::Tensor sum = exponential.sum(dims, /*keepdim=*/true);
  at::Tensor y;
  if (name == "aten::logsumexp") {
    y = sum.log() + most;
    if (!call.boolean(call.find("keepdim"))) {
      std::vector<int64_t> kept;
      for (int64_t d = 0; d < y.dim(); ++d) {
        if (std::find(dims.begin(), dims.end(), d) == dims.end()) kept.push_back(y.size(d));
      }
      y = y.view(kept);
    }
  } else {
    y = name.find("log_softmax") != std::string::npos ? shifted - sum.log() : exponential / sum;
  }
  torch::jit::drop(*stack, call.args().size());
  stack->emplace_back(y.to(result));
  return true;
}

// How an operator's stage ends.
struct Stage {
  const char* name;
  bool (*run)(const c10::OperatorHandle&, torch::jit::Stack*, const OpCall&, const std::shared_ptr<Region>&);
  bool saves_result;  // PyTorch's own node does, of the first result; see Note [Results that plain saves]
};

constexpr Stage kStages[] = {
    {"aten::_log_softmax", exponentials, true},
    {"aten::_softmax", exponentials, true},
    {"aten::all", run_extreme, false},
    {"aten::amax", run_extreme, true},
    {"aten::amin", run_extreme, true},
    {"aten::any", run_extreme, false},
    {"aten::batch_norm", batch_norm, false},
    {"aten::instance_norm", instance_norm, false},
    {"aten::linalg_vector_norm", run_norm, true},
    {"aten::log_softmax", exponentials, true},
    {"aten::logsumexp", exponentials, true},
    {"aten::max", run_extreme, true},
    {"aten::min", run_extreme, true},
    {"aten::norm", run_norm, true},
    {"aten::softmax", exponentials, true},
    {"aten::std", spread, true},
    {"aten::std_mean", spread, true},
    {"aten::var", spread, false},
    {"aten::var_mean", spread, false},
};

}  // namespace

bool run_staged(const c10::OperatorHandle& op, torch::jit::Stack* stack, const OpCall& call, const std::shared_ptr<Region>& region) {
  const std::string& name = op.schema().name();
  const auto arguments = torch::jit::last(*stack, call.args().size());
  if (arguments[0].toTensor().numel() == 0) return false;  // micro-batches would show no entry to whoever looks on
  const auto* stage = std::find_if(std::begin(kStages), std::end(kStages), [&](const Stage& s) { return s.name == name; });
  const size_t results = op.schema().returns().size();
  if (stage == std::end(kStages) || !stage->run(op, stack, call, region)) return false;
  const at::Tensor result = torch::jit::peek(*stack, 0, results).toTensor();
  if (stage->saves_result && result.requires_grad()) session().saved_results.note(result);
  return true;
}

}  // namespace koila
