#include "torchglue/tape/node_kind.h"

#include <c10/util/flat_hash_map.h>
#include <torch/csrc/autograd/function.h>

#include <string_view>
#include <typeinfo>

#include "torchglue/base/hot.h"

namespace koila {

namespace {

NodeKind examine(std::string_view type) {
  const auto has = [&](std::string_view part) { return type.find(part) != std::string_view::npos; };
  if (has("8autograd10CopySlices")) return NodeKind::kCopySlices;
  if (has("8autograd9generated") || has("8autograd13CopyBackwards")) return NodeKind::kOperator;  // copy_ has a node that is written by hand
  if (has("8autograd14AccumulateGrad")) return NodeKind::kLeaf;
  return has("5koila10RegionNode") ? NodeKind::kRegion : NodeKind::kOther;
}

}  // namespace

NodeKind kind_of(const torch::autograd::Node& node) {
  struct Kinds {
    const std::type_info* latest = nullptr;  // layers of one kind follow one another
    NodeKind kind_of_latest = NodeKind::kOther;
    ska::flat_hash_map<const std::type_info*, NodeKind> all;
  };
  KOILA_HOT static thread_local Kinds* known = nullptr;  // never destroyed: graphs are freed while a thread ends
  if (known == nullptr) known = new Kinds;
  const std::type_info& type = typeid(node);
  if (known->latest == &type) return known->kind_of_latest;
  auto found = known->all.find(&type);
  if (found == known->all.end()) found = known->all.emplace(&type, examine(type.name())).first;
  known->latest = &type;
  return known->kind_of_latest = found->second;
}

}  // namespace koila
