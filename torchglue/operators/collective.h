// Which operators talk to other processes.
#pragma once

#include <ATen/core/function_schema.h>

#include <string_view>

namespace koila {

// The part of an operator's name before "::".
inline std::string_view namespace_of(const c10::FunctionSchema& schema) {
  const std::string_view name = schema.name();
  return name.substr(0, name.find("::"));
}

// Whether the operator is one, going by its namespace. See Note [Collectives].
bool is_collective(const c10::FunctionSchema& schema);

}  // namespace koila
