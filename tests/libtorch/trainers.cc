// Models that people train, small: the sweep of allocation failures goes through them.

#include "program.h"

namespace {

namespace nn = torch::nn;
namespace F = torch::nn::functional;

struct CnnNet : nn::Module {
  CnnNet() {
    first = register_module("first", nn::Conv2d(nn::Conv2dOptions(1, 8, 3).padding(1)));
    second = register_module("second", nn::Conv2d(nn::Conv2dOptions(8, 8, 3).padding(1)));
    hidden = register_module("hidden", nn::Linear(8 * 2 * 2, 16));
    output = register_module("output", nn::Linear(16, 10));
  }
  torch::Tensor forward(torch::Tensor x) {
    x = torch::max_pool2d(first(x).relu_(), 2);
    x = torch::max_pool2d(second(x).relu_(), 2);
    x = torch::dropout(x.view({x.size(0), -1}), 0.5, /*train=*/false);
    return output(torch::relu(hidden(x)));
  }
  nn::Conv2d first{nullptr}, second{nullptr};
  nn::Linear hidden{nullptr}, output{nullptr};
};

class Images : public Program {
 public:
  using Program::Program;
  std::vector<torch::Tensor> batch() override {
    return {torch::randn({settings.rows, 1, 8, 8}), torch::randint(10, {settings.rows})};
  }
};

class Cnn : public Images {
 public:
  using Images::Images;
  nn::Module& model() override { return net; }
  torch::Tensor loss(const std::vector<torch::Tensor>& batch, Record&) override { return F::cross_entropy(net.forward(batch[0]), batch[1]); }

 private:
  CnnNet net;
};
const Registered<Cnn> cnn("cnn");

// Batch norm: rows meet, and buffers move.
class BatchNorm : public Images {
 public:
  using Images::Images;
  nn::Module& model() override { return *net; }
  torch::Tensor loss(const std::vector<torch::Tensor>& batch, Record&) override { return F::cross_entropy(net->forward(batch[0]), batch[1]); }

 private:
  nn::Sequential net{nn::Conv2d(nn::Conv2dOptions(1, 6, 3).padding(1).bias(false)), nn::BatchNorm2d(6), nn::ReLU(nn::ReLUOptions(true)),
                     nn::Conv2d(nn::Conv2dOptions(6, 6, 3).stride(2).bias(false)), nn::BatchNorm2d(6), nn::ReLU(), nn::AdaptiveAvgPool2d(1), nn::Flatten(), nn::Linear(6, 10)};
};
const Registered<BatchNorm> batch_norm("batch_norm");

struct TransformerNet : nn::Module {
  TransformerNet() {
    embedding = register_module("embedding", nn::Embedding(20, 16));
    positions = register_parameter("positions", torch::randn({1, 6, 16}) * 0.1);
    layer = register_module("layer", nn::TransformerEncoderLayer(nn::TransformerEncoderLayerOptions(16, 2).dim_feedforward(32).dropout(0)));
    output = register_module("output", nn::Linear(16, 20));
  }
  torch::Tensor forward(const torch::Tensor& tokens) {
    const torch::Tensor x = (embedding(tokens) + positions).transpose(0, 1);  // the layer takes [length, rows, features]
    return output(layer(x)).transpose(0, 1);
  }
  nn::Embedding embedding{nullptr};
  torch::Tensor positions;
  nn::TransformerEncoderLayer layer{nullptr};
  nn::Linear output{nullptr};
};

class Transformer : public Program {
 public:
  using Program::Program;
  nn::Module& model() override { return net; }
  std::vector<torch::Tensor> batch() override { return {torch::randint(20, {settings.rows, 7})}; }
  torch::Tensor loss(const std::vector<torch::Tensor>& batch, Record&) override {
    const torch::Tensor x = batch[0].slice(1, 0, 6), y = batch[0].slice(1, 1, 7);
    return F::cross_entropy(net.forward(x).reshape({-1, 20}), y.reshape(-1));
  }

 private:
  TransformerNet net;
};
const Registered<Transformer> transformer("transformer");

struct LstmNet : nn::Module {
  LstmNet() {
    embedding = register_module("embedding", nn::Embedding(20, 12));
    lstm = register_module("lstm", nn::LSTM(nn::LSTMOptions(12, 16).num_layers(2).batch_first(true)));
    output = register_module("output", nn::Linear(16, 5));
  }
  torch::Tensor forward(const torch::Tensor& tokens) { return output(std::get<0>(lstm(embedding(tokens))).select(1, -1)); }
  nn::Embedding embedding{nullptr};
  nn::LSTM lstm{nullptr};
  nn::Linear output{nullptr};
};

class Lstm : public Program {
 public:
  using Program::Program;
  nn::Module& model() override { return net; }
  std::vector<torch::Tensor> batch() override { return {torch::randint(20, {settings.rows, 6}), torch::randint(5, {settings.rows})}; }
  torch::Tensor loss(const std::vector<torch::Tensor>& batch, Record&) override { return F::cross_entropy(net.forward(batch[0]), batch[1]); }

 private:
  LstmNet net;
};
const Registered<Lstm> lstm("lstm");

}  // namespace
