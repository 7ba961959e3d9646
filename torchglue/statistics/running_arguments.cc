#include "torchglue/statistics/running_arguments.h"

namespace koila {

bool is_running_statistic(const std::string& argument) { return argument == "running_mean" || argument == "running_var"; }

bool uses_batch_statistics(const c10::FunctionSchema& schema, at::ArrayRef<c10::IValue> arguments) {
  for (size_t a = 0; a < schema.arguments().size(); ++a) {
    const std::string& name = schema.arguments()[a].name();
    if (name == "training" || name == "use_input_stats") return arguments[a].isBool() && arguments[a].toBool();
  }
  return true;  // it does nothing else, and is not asked (batch_norm_update_stats)
}

std::vector<at::Tensor> running_statistics(const c10::FunctionSchema& schema, at::ArrayRef<c10::IValue> arguments) {
  std::vector<at::Tensor> found;
  for (size_t a = 0; a < schema.arguments().size(); ++a) {
    if (is_running_statistic(schema.arguments()[a].name()) && arguments[a].isTensor() && arguments[a].toTensor().defined()) found.push_back(arguments[a].toTensor());
  }
  return found;
}

void drop_running_statistics(const c10::FunctionSchema& schema, torch::jit::Stack& arguments) {
  for (size_t a = 0; a < arguments.size(); ++a) {
    if (is_running_statistic(schema.arguments()[a].name())) arguments[a] = c10::IValue();
  }
}

}  // namespace koila
