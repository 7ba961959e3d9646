#include "program.h"

#include <cstring>

namespace {

std::string numpy_name(torch::Dtype dtype) {
  switch (dtype) {
    case torch::kFloat64: return "float64";
    case torch::kFloat32: return "float32";
    case torch::kInt64: return "int64";
    case torch::kInt32: return "int32";
    case torch::kUInt8: return "uint8";
    case torch::kBool: return "bool";
    default: TORCH_CHECK(false, "no name for ", dtype);
  }
}

void copy(const char* from, size_t item, at::IntArrayRef sizes, at::IntArrayRef strides, std::string& to) {
  if (sizes.empty()) {
    to.append(from, item);
    return;
  }
  for (int64_t i = 0; i < sizes[0]; ++i) copy(from + i * strides[0] * static_cast<int64_t>(item), item, sizes.slice(1), strides.slice(1), to);
}

}  // namespace

Copied::Copied(const torch::Tensor& tensor) {
  if (!tensor.defined()) return;
  // An operator that takes no memory: where the value does not exist yet, it does now.
  const torch::Tensor real = tensor.detach().resolve_conj();
  dtype = numpy_name(real.scalar_type());
  sizes = real.sizes().vec();
  if (real.numel() > 0) copy(static_cast<const char*>(real.const_data_ptr()), real.itemsize(), real.sizes(), real.strides(), bytes);
}

Copied::Copied(double number) : dtype("float64"), bytes(reinterpret_cast<const char*>(&number), sizeof number) {}

void Record::gradients(const torch::nn::Module& model, const std::string& name) {
  for (const auto& p : model.named_parameters()) value(name + "/" + p.key(), p.value().grad());
}

void Record::state(const torch::nn::Module& model, const torch::optim::Optimizer& optimizer) {
  for (const auto& p : model.named_parameters()) {
    arrays["final/parameter/" + p.key()] = p.value();
    arrays["final/gradient/" + p.key()] = p.value().grad();
    const auto found = optimizer.state().find(p.value().unsafeGetTensorImpl());
    if (found == optimizer.state().end()) continue;
    const auto keep = [&](const char* slot, const Copied& value) { arrays[std::string("final/optimizer/") + slot + "/" + p.key()] = value; };
    if (const auto* adam = dynamic_cast<const torch::optim::AdamWParamState*>(found->second.get())) {
      keep("step", static_cast<double>(adam->step()));
      keep("exp_avg", adam->exp_avg());
      keep("exp_avg_sq", adam->exp_avg_sq());
    } else if (const auto* sgd = dynamic_cast<const torch::optim::SGDParamState*>(found->second.get())) {
      keep("momentum_buffer", sgd->momentum_buffer());
    }
  }
  for (const auto& b : model.named_buffers()) arrays["final/buffer/" + b.key()] = b.value();
}

void Program::step(Record& record) {
  const auto rows = batch();
  const torch::Tensor value = loss(rows, record);
  optimizer().zero_grad();
  value.backward();
  record.gradients(model());
  optimizer().step();
  record.value("loss", value);
}

torch::optim::Optimizer& Program::optimizer() {
  if (!optimizer_) optimizer_ = make_optimizer();
  return *optimizer_;
}

std::unique_ptr<torch::optim::Optimizer> Program::make_optimizer() {
  // AdamW's own eps of 1e-8 turns the rounding noise of a gradient that is zero by nature (a key's bias) into a full update.
  if (settings.optimizer == "adamw") return std::make_unique<torch::optim::AdamW>(model().parameters(), torch::optim::AdamWOptions(1e-3).eps(1e-4));
  return std::make_unique<torch::optim::SGD>(model().parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
}

std::map<std::string, MakeProgram>& programs() {
  static std::map<std::string, MakeProgram> all;
  return all;
}
