#include "torchglue/operators/collective.h"

#include <c10/util/flat_hash_map.h>

namespace koila {

bool is_collective(const c10::FunctionSchema& schema) {
  static const ska::flat_hash_set<std::string_view> kNamespaces = {"c10d", "_c10d_functional", "_c10d_functional_autograd", "c10d_functional", "_dtensor", "symm_mem", "fsdp"};
  return kNamespaces.count(namespace_of(schema)) > 0;
}

}  // namespace koila
