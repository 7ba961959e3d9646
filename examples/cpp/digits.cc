// Handwritten digits with a convolutional network and Adam, in C++. It knows nothing of koila: docs/cpp.md runs it with less memory than it needs.

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
      const torch::Tensor loss = torch::nn::functional::cross_entropy(net(batch.data), batch.target);
      optimizer.zero_grad();
      loss.backward();
      optimizer.step();
      std::printf("step %3lld  loss %.6f\n", static_cast<long long>(++step), loss.item<double>());
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
