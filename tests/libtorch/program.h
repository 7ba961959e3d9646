// A training program as somebody would write it for LibTorch, small, and the record that a run of it leaves behind. Programs know nothing of koila:
// job.cc runs them under limits, and programs.py compares what they recorded with a plain run.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

// A tensor's bytes, row-major, outside PyTorch's allocators: they do not count against the budget under test.
struct Copied {
  std::string dtype = "none";  // as NumPy calls it; "none": there was no tensor
  std::vector<int64_t> sizes;
  std::string bytes;

  Copied() = default;
  Copied(const torch::Tensor& tensor);  // NOLINT: what is recorded is a tensor or a number
  Copied(double number);                // NOLINT
};

class Record {
 public:
  int step = 0;
  std::map<std::string, Copied> arrays;

  void value(const std::string& name, const Copied& value) { arrays["step" + std::to_string(step) + "/" + name] = value; }
  void gradients(const torch::nn::Module& model, const std::string& name = "gradient");
  // Parameters, gradients, buffers, and the optimizer's state.
  void state(const torch::nn::Module& model, const torch::optim::Optimizer& optimizer);
};

struct Settings {
  std::string optimizer = "sgd";  // or "adamw"
  int64_t rows = 11;
  torch::Dtype dtype = torch::kFloat64;
};

// A program is made once a run; its constructor makes the model. Data come from the default generator, whose seed is 0.
class Program {
 public:
  explicit Program(const Settings& settings) : settings(settings) {}
  virtual ~Program() = default;

  virtual torch::nn::Module& model() = 0;
  // One step of the training loop: draws a batch, and trains on it.
  virtual void step(Record& record);
  // What `step` is made of, in the plainest loop there is.
  virtual std::vector<torch::Tensor> batch() = 0;
  virtual torch::Tensor loss(const std::vector<torch::Tensor>& batch, Record& record) = 0;
  virtual void finish(Record&) {}

  torch::optim::Optimizer& optimizer();

  const Settings settings;

 protected:
  virtual std::unique_ptr<torch::optim::Optimizer> make_optimizer();
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
};

using MakeProgram = std::function<std::unique_ptr<Program>(const Settings&)>;
std::map<std::string, MakeProgram>& programs();

// static const Registered<Class> name("name");
template <class T>
struct Registered {
  explicit Registered(const char* name) {
    programs()[name] = [](const Settings& settings) { return std::make_unique<T>(settings); };
  }
};
