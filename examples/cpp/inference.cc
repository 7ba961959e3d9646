// Scores of all rows by a network, in chunks of the largest size that fits. docs/cpp.md compiles and runs it.
#include <torch/torch.h>

#include <koila/torch.h>

#include <iostream>

int main() {
  torch::manual_seed(0);
  torch::nn::Sequential model(torch::nn::Linear(64, 4096), torch::nn::ReLU(), torch::nn::Linear(4096, 10));
  const torch::Tensor images = torch::rand({4096, 64});
  const torch::Tensor scores = torch::empty({4096, 10});

  const torch::NoGradGuard no_grad;
  for (int epoch = 0; epoch < 2; ++epoch) {
    koila::chunked(scores, 4096, [&](at::Tensor chunk, int64_t begin, int64_t end) {
      std::cout << "rows " << begin << " to " << end << std::endl;
      chunk.copy_(model->forward(images.slice(0, begin, end)));
    });
  }
  for (const auto& entry : koila::default_size_cache().entries()) {
    std::cout << entry.where << ": " << entry.size << " rows, with " << (entry.available_bytes >> 20) << " MiB or more to be had" << std::endl;
  }
}
