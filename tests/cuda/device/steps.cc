// A LibTorch program that trains on a GPU as any does, and knows of no simulation.
//
//     steps [cpu|cuda] [scenario[:rows]...]      mlp, cnn, out_of_memory
//
// It prints a line for every step and a checksum of the parameters: a run under a preload has to print the same.

#include <torch/torch.h>

#include <cstdio>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace {

using torch::Tensor;

struct Batch {
  Tensor x, y;
};

Batch batch(torch::Device device, std::vector<int64_t> size, int64_t classes) {
  const Tensor x = torch::randn(size);
  const Tensor y = torch::randint(classes, {size[0]}, torch::kLong);
  return {x.to(device), y.to(device)};
}

void train(const char* scenario, torch::nn::Sequential model, torch::Device device, std::vector<int64_t> size, int64_t classes) {
  model->to(device);
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-3));
  for (int step = 1; step <= 5; step++) {
    const Batch data = batch(device, size, classes);
    optimizer.zero_grad();
    const Tensor loss = torch::nn::functional::cross_entropy(model->forward(data.x), data.y);
    loss.backward();
    optimizer.step();
    std::printf("%s step %d loss %.6f\n", scenario, step, loss.item<double>());
  }
  double sum = 0;
  for (const Tensor& parameter : model->parameters()) sum += parameter.detach().to(torch::kDouble).abs().sum().item<double>();
  std::printf("%s parameters %.6f\n", scenario, sum);
}

void mlp(torch::Device device, int64_t rows) {
  torch::nn::Sequential model(torch::nn::Linear(24, 64), torch::nn::ReLU(), torch::nn::Linear(64, 64), torch::nn::Tanh(),
                              torch::nn::Linear(64, 10));
  train("mlp", model, device, {rows > 0 ? rows : 64, 24}, 10);
}

void cnn(torch::Device device, int64_t rows) {
  torch::nn::Sequential model(torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 8, 3).padding(1)), torch::nn::GroupNorm(2, 8), torch::nn::ReLU(),
                              torch::nn::MaxPool2d(2), torch::nn::Conv2d(torch::nn::Conv2dOptions(8, 12, 3).padding(1)), torch::nn::GELU(),
                              torch::nn::AdaptiveAvgPool2d(2), torch::nn::Flatten(), torch::nn::Linear(48, 10));
  train("cnn", model, device, {rows > 0 ? rows : 32, 3, 12, 12}, 10);
}

// Asks for more than any device has, and goes on.
void out_of_memory(torch::Device device, int64_t) {
  if (device.is_cpu()) return;
  try {
    torch::empty({int64_t{1} << 46}, torch::TensorOptions(torch::kByte).device(device));
    std::printf("out_of_memory: it had memory\n");
  } catch (const c10::OutOfMemoryError& error) {
    const std::string text = error.what_without_backtrace();
    std::printf("out_of_memory %s\n", text.substr(0, text.find(". GPU")).c_str());
  }
  std::printf("out_of_memory and on: %.1f\n", torch::ones({8}, device).sum().item<double>());
}

}  // namespace

int main(int count, char** arguments) {
  const std::map<std::string, std::function<void(torch::Device, int64_t rows)>> scenarios{{"mlp", mlp}, {"cnn", cnn}, {"out_of_memory", out_of_memory}};
  const torch::Device device(count > 1 ? arguments[1] : "cuda");
  std::vector<std::string> chosen(arguments + std::min(count, 2), arguments + count);
  if (chosen.empty()) chosen = {"mlp", "cnn", "out_of_memory"};
  for (const std::string& name : chosen) {
    torch::manual_seed(0);
    const size_t colon = name.find(':');
    scenarios.at(name.substr(0, colon))(device, colon == std::string::npos ? 0 : std::stoll(name.substr(colon + 1)));
  }
}
