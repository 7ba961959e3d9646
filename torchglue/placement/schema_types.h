// What the types of a schema's arguments and results are.
#pragma once

#include <ATen/core/jit_type.h>

namespace koila {

// Tensor, Tensor?, and lists of either.
inline bool is_tensor_type(const c10::Type& type) {
  switch (type.kind()) {
    case c10::TypeKind::TensorType:
      return true;
    case c10::TypeKind::ListType:
    case c10::TypeKind::OptionalType:
      return is_tensor_type(*type.containedType(0));
    default:
      return false;
  }
}

// T[], T[]?
inline bool is_list_type(const c10::Type& type) {
  if (type.kind() == c10::TypeKind::OptionalType) return is_list_type(*type.containedType(0));
  return type.kind() == c10::TypeKind::ListType;
}

// int, SymInt, and either with a ?.
inline bool is_integer_type(const c10::Type& type) {
  if (type.kind() == c10::TypeKind::OptionalType) return is_integer_type(*type.containedType(0));
  return type.kind() == c10::TypeKind::IntType || type.kind() == c10::TypeKind::SymIntType;
}

// int[], SymInt[], and either with a ?.
inline bool is_integer_list_type(const c10::Type& type) {
  if (type.kind() == c10::TypeKind::OptionalType) return is_integer_list_type(*type.containedType(0));
  return type.kind() == c10::TypeKind::ListType && is_integer_type(*type.containedType(0));
}

}  // namespace koila
