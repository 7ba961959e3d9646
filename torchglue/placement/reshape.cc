#include "torchglue/placement/reshape.h"

namespace koila {

namespace {

int64_t product(c10::IntArrayRef sizes) {
  int64_t n = 1;
  for (int64_t size : sizes) n *= size;
  return n;
}

}  // namespace

std::optional<Placement> reshape_placement(c10::IntArrayRef sizes, const Placement& shard, int64_t batch, c10::IntArrayRef out) {
  const size_t d = static_cast<size_t>(shard.dim);
  if (!shard.is_shard() || d >= sizes.size() || sizes[d] != shard.extent(batch)) return std::nullopt;
  const int64_t before = product(sizes.slice(0, d)) * shard.outer;
  const int64_t after = shard.inner * product(sizes.slice(d + 1));
  if (before == 0 || after == 0 || product(out) != before * batch * after) return std::nullopt;
  int64_t left = 1;  // prod(out[:k])
  for (size_t k = 0; k < out.size(); left *= out[k], ++k) {
    if (left * out[k] < before * batch) continue;  // the batch lies further right
    const int64_t right = product(out.slice(k + 1));
    if (before % left != 0 || after % right != 0) return std::nullopt;
    return Placement::shard(static_cast<int64_t>(k), before / left, after / right);
  }
  return std::nullopt;
}

std::optional<std::vector<int64_t>> resolve_size(c10::IntArrayRef size, int64_t numel) {
  std::vector<int64_t> resolved = size.vec();
  int64_t known = 1;
  int inferred = -1;
  for (size_t i = 0; i < resolved.size(); ++i) {
    if (resolved[i] == -1) {
      if (inferred >= 0) return std::nullopt;
      inferred = static_cast<int>(i);
    } else {
      known *= resolved[i];
    }
  }
  if (inferred >= 0) {
    if (known <= 0 || numel % known != 0) return std::nullopt;
    resolved[inferred] = numel / known;
  } else if (known != numel) {
    return std::nullopt;
  }
  return resolved;
}

}  // namespace koila
