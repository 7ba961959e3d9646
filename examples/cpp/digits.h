// What digits.cc and digits_step.cc have in common: the digits, the network, and the command line. Nothing of koila's.
#pragma once

#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

constexpr int64_t kSide = 8, kTrained = 1437;

// The rows [begin, end) of a file that write_digits.py has made: images [1, 8, 8] from 0 to 1, and labels.
class Digits : public torch::data::datasets::Dataset<Digits> {
 public:
  Digits(const std::string& path, int64_t begin, int64_t end) {
    std::ifstream file(path);
    std::vector<float> pixels;
    std::vector<int64_t> labels;
    std::vector<float> row(kSide * kSide);
    for (int64_t number = 0, label = 0; number < end; ++number) {
      for (float& pixel : row) file >> pixel;
      if (!(file >> label)) break;
      if (number < begin) continue;
      pixels.insert(pixels.end(), row.begin(), row.end());
      labels.push_back(label);
    }
    const auto count = static_cast<int64_t>(labels.size());
    images_ = torch::tensor(pixels).view({count, 1, kSide, kSide}) / 16;
    labels_ = torch::tensor(labels, torch::kInt64);
  }
  torch::data::Example<> get(size_t index) override {
    const auto i = static_cast<int64_t>(index);
    return {images_[i], labels_[i]};
  }
  std::optional<size_t> size() const override { return labels_.size(0); }

  const torch::Tensor& images() const { return images_; }
  const torch::Tensor& labels() const { return labels_; }

 private:
  torch::Tensor images_, labels_;
};

struct NetImpl : torch::nn::Module {
  NetImpl()
      : first(register_module("first", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 32, 3).padding(1)))),
        second(register_module("second", torch::nn::Conv2d(torch::nn::Conv2dOptions(32, 64, 3).padding(1)))),
        third(register_module("third", torch::nn::Conv2d(torch::nn::Conv2dOptions(64, 64, 3).padding(1)))),
        hidden(register_module("hidden", torch::nn::Linear(64 * 2 * 2, 64))),
        output(register_module("output", torch::nn::Linear(64, 10))) {}

  torch::Tensor forward(torch::Tensor x) {
    x = torch::relu(first(x));
    x = torch::max_pool2d(torch::relu(second(x)), 2);
    x = torch::max_pool2d(torch::relu(third(x)), 2);
    x = torch::relu(hidden(x.flatten(1)));
    return output(x);
  }

  torch::nn::Conv2d first, second, third;
  torch::nn::Linear hidden, output;
};
TORCH_MODULE(Net);

inline double accuracy(Net& net, const Digits& digits) {
  const torch::NoGradGuard no_grad;
  net->eval();
  int64_t right = 0;
  const auto images = digits.images().split(60), labels = digits.labels().split(60);
  for (size_t i = 0; i < images.size(); ++i) right += net(images[i]).argmax(1).eq(labels[i]).sum().item<int64_t>();
  net->train();
  return static_cast<double>(right) / static_cast<double>(digits.labels().size(0));
}

struct Options {
  std::string path;
  int64_t epochs = 5;
  size_t batch_size = 720;
};

inline std::optional<Options> parse(int argc, char** argv) {
  Options options;
  if (argc > 1) options.path = argv[1];
  if (argc > 2) options.epochs = std::atoll(argv[2]);
  const int64_t batch_size = argc > 3 ? std::atoll(argv[3]) : 720;
  if (argc < 2 || argc > 4 || options.epochs < 1 || batch_size < 1) {
    std::cerr << "usage: " << argv[0] << " FILE [EPOCHS [ROWS_OF_A_BATCH]]\n"
              << "FILE is written once by: python examples/cpp/write_digits.py FILE\n";
    return std::nullopt;
  }
  options.batch_size = static_cast<size_t>(batch_size);
  return options;
}

inline int explain_missing(const std::string& path) {
  std::cerr << path << " is not there, or has fewer digits than it should: write it with examples/cpp/write_digits.py" << std::endl;
  return 1;
}
