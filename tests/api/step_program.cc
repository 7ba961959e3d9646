// A training step by koila::step, whose memory really runs out. tests/api/test_step.py runs it and reads what it prints.
//
//   step_program [--batch-norm] [--dropout] [--separable] [--plain] [--cuda] [--gather] [FAIL]
//
// --gather: the outputs are gathered and the loss is computed in host memory. FAIL: an allocation of the second step fails, by koila. A row's activations take one MiB in all. Prints the rows of a micro-batch, the loss, and the sum of each gradient's
// squares; or the error.
#include <ATen/ATen.h>
#include <dlfcn.h>
#include <koila/step.h>

#include <cstdio>
#include <cstdlib>
#include <set>
#include <string>
#include <vector>

int main(int argc, char** argv) {
  std::set<std::string> flags;
  std::int64_t fail = 0;
  for (int i = 1; i < argc; ++i) argv[i][0] == '-' ? void(flags.insert(argv[i])) : void(fail = std::atoll(argv[i]));
  const auto set_inject = reinterpret_cast<int (*)(const char*)>(dlsym(RTLD_DEFAULT, "koila_set_inject"));
  const bool normed = flags.count("--batch-norm") > 0, dropout = flags.count("--dropout") > 0;

  const c10::Device device(flags.count("--cuda") > 0 ? at::kCUDA : at::kCPU);
  const bool gather = flags.count("--gather") > 0;
  at::manual_seed(1);
  const auto options = at::TensorOptions(at::kDouble);
  constexpr std::int64_t kRows = 32, kWide = 32 << 10;  // a quarter of a MiB
  std::vector<at::Tensor> parameters{at::randn({16, kWide}, options) / 16, at::randn({kWide, 8}, options) / kWide};
  for (at::Tensor& parameter : parameters) parameter = parameter.to(device).requires_grad_();
  at::Tensor mean = at::zeros({16}, options).to(device), variance = at::ones({16}, options).to(device);
  const at::Tensor x = at::randn({kRows, 16}, options).to(device), y = at::arange(kRows).remainder(8).to(gather ? c10::Device(at::kCPU) : device);
  const auto forward = [&](const at::Tensor& rows) {
    at::Tensor h = normed ? at::batch_norm(rows, {}, {}, mean, variance, true, 0.1, 1e-5, false) : rows;
    h = at::tanh(h.mm(parameters[0])).exp().sin();
    return at::dropout(h, dropout ? 0.5 : 0, true).mm(parameters[1]);
  };
  const auto loss = [&](const at::Tensor& outputs, std::int64_t begin, std::int64_t end) {
    const at::Tensor mean_loss = at::cross_entropy_loss(outputs, y.slice(0, begin, end));
    return flags.count("--separable") > 0 ? mean_loss : mean_loss.square().sqrt();  // the same number, and nothing of its parts
  };
  auto with = koila::StepOptions().with_separable(flags.count("--separable") > 0 ? koila::Separable::kMean : koila::Separable::kNo);
  if (gather) with = with.with_gather_on(at::kCPU);
  for (int step = 0; step < 2; ++step) {
    for (at::Tensor& parameter : parameters) parameter.mutable_grad().reset();
    try {
      double value = 0;
      std::int64_t micro_batch = kRows;
      if (flags.count("--plain") > 0) {
        const at::Tensor plain = loss(forward(x).to(y.device()), 0, kRows);
        plain.backward();
        value = plain.item<double>();
      } else {
        if (step == 1 && fail > 0) set_inject(("nth:" + std::to_string(fail)).c_str());
        const auto result = koila::step(x, forward, loss, with);
        if (fail > 0) set_inject("");
        value = result.loss.item<double>();
        micro_batch = result.micro_batch;
      }
      std::printf("%lld %.15g", static_cast<long long>(micro_batch), value);
      for (const at::Tensor& parameter : parameters) std::printf(" %.15g", parameter.grad().square().sum().item<double>());
      std::printf(" %.15g %.15g\n", mean.square().sum().item<double>(), variance.square().sum().item<double>());
    } catch (const c10::OutOfMemoryError& error) {
      if (fail > 0) set_inject("");
      std::printf("out of memory: %s\n", error.what_without_backtrace());
      std::printf("untouched: %d %.15g\n", !parameters[0].grad().defined() && !parameters[1].grad().defined(), mean.square().sum().item<double>());
      return 0;
    }
  }
  return 0;
}
