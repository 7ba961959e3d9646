// The trainer of digits.cc with koila::step: the batch is run in as many rows at a time as fit, and the loss and the gradients are the full batch's. docs/cpp.md runs it.

#include <koila/torch.h>

#include <cstdio>

#include "digits.h"

namespace {

int train(const Options& options) {
  torch::manual_seed(0);
  Digits trained(options.path, 0, kTrained), tested(options.path, kTrained, 1 << 20);
  if (tested.size() == 0) return explain_missing(options.path);
  Net net;
  torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(2e-3));
  auto loader = torch::data::make_data_loader<torch::data::samplers::RandomSampler>(trained.map(torch::data::transforms::Stack<>()), options.batch_size);

  int64_t step = 0;
  for (int64_t epoch = 1; epoch <= options.epochs; ++epoch) {
    for (const auto& batch : *loader) {
      optimizer.zero_grad();
      const auto result = koila::step(
          batch.data, [&](torch::Tensor rows) { return net(rows); },
          [&](torch::Tensor scores) { return torch::nn::functional::cross_entropy(scores, batch.target); });
      optimizer.step();
      std::printf("step %3lld  loss %.6f  %lld rows at a time\n", static_cast<long long>(++step), result.loss.item<double>(), static_cast<long long>(result.micro_batch));
    }
    std::printf("epoch %lld  test accuracy %.1f%%\n", static_cast<long long>(epoch), 100 * accuracy(net, tested));
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const auto options = parse(argc, argv);
  return options ? train(*options) : 2;
}
