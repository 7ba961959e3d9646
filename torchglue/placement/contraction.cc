#include "torchglue/placement/contraction.h"

#include <algorithm>

namespace koila {

Labels labels(const char* text) {
  Labels result;
  for (; *text != '\0'; ++text) result.push_back(*text);
  return result;
}

namespace {

std::optional<Placement> contract_partial(const OpCall& call, c10::ArrayRef<Factor> factors) {
  int partial = 0;
  for (const Factor& f : factors) {
    const Placement& p = spec(call, f.ref).placement;
    if (p.is_shard()) return std::nullopt;
    if (p.is_partial()) ++partial;
  }
  if (partial != 1) return std::nullopt;
  return Placement::partial();
}

}  // namespace

std::optional<Placement> contract(OpCall& call, c10::ArrayRef<Factor> factors, const Labels& out) {
  const Factor* split = nullptr;
  for (const Factor& f : factors) {
    const TensorSpec& t = spec(call, f.ref);
    if (t.dim() != static_cast<int64_t>(f.labels.size())) return std::nullopt;
    if (t.placement.is_partial()) return contract_partial(call, factors);
    if (t.placement.is_shard() && split == nullptr) split = &f;
  }
  if (split == nullptr) return std::nullopt;
  const Placement batch = spec(call, split->ref).placement;
  const int label = split->labels[batch.dim];
  for (const Factor& f : factors) {
    const TensorSpec& t = spec(call, f.ref);
    const auto count = std::count(f.labels.begin(), f.labels.end(), label);
    if (count > 1) return std::nullopt;
    const int64_t dim = std::find(f.labels.begin(), f.labels.end(), label) - f.labels.begin();
    if (count == 0 || t.sizes[dim] == 1) {
      if (!t.placement.is_replicate()) return std::nullopt;
    } else if (!call.require(f.ref, batch.at(dim))) {
      return std::nullopt;
    }
  }
  const auto place = std::find(out.begin(), out.end(), label);
  if (place == out.end()) return Placement::partial();
  return batch.at(place - out.begin());
}

}  // namespace koila
