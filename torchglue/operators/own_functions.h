// autograd.Functions of the program's that are operators to koila, see Note [Functions as operators] (own_functions.py) and Note [Functions with a rule] (declared_functions.py).
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

namespace koila {

inline bool is_function_operator(const c10::OperatorHandle& op) {
  const std::string& name = op.schema().name();
  return name == "koila::function" || name == "koila::function_view" || name.starts_with("koila_function::");
}

inline bool functions_wait = false;  // for the moment at which the program has imported torch

// From then on autograd.Function.apply() asks whether the Function is one of these. Nothing in programs without Python. Any thread of the program's; it may hold Python's lock.
void take_over_functions();

inline void meet_functions() {
  if (C10_UNLIKELY(functions_wait)) take_over_functions();
}

}  // namespace koila
