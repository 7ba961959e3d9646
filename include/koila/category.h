// What a tensor's memory is for, as koila's report tells it (docs/report.md).
//
// C++17; needs nothing but koila/koila.h.
#ifndef KOILA_CATEGORY_H_
#define KOILA_CATEGORY_H_

#include <cstdint>

#include "koila/koila.h"

namespace koila {

enum class Category {
  kOther = KOILA_OTHER,
  kParameters = KOILA_PARAMETERS,
  kGradients = KOILA_GRADIENTS,
  kOptimizerState = KOILA_OPTIMIZER_STATE,
  kInputs = KOILA_INPUTS,
  kActivations = KOILA_ACTIVATIONS,
  kWorkspace = KOILA_WORKSPACE,
};

// "parameters", "optimizer state".
inline const char* category_name(Category category) {
  switch (category) {
    case Category::kParameters: return "parameters";
    case Category::kGradients: return "gradients";
    case Category::kOptimizerState: return "optimizer state";
    case Category::kInputs: return "inputs";
    case Category::kActivations: return "activations";
    case Category::kWorkspace: return "workspace";
    case Category::kOther: break;
  }
  return "other";
}

// Bytes of each.
struct ByCategory {
  std::int64_t parameters = 0;
  std::int64_t gradients = 0;
  std::int64_t optimizer_state = 0;
  std::int64_t inputs = 0;
  std::int64_t activations = 0;
  std::int64_t workspace = 0;
  std::int64_t other = 0;

  std::int64_t total() const { return parameters + gradients + optimizer_state + inputs + activations + workspace + other; }
};

}  // namespace koila

#endif  // KOILA_CATEGORY_H_
