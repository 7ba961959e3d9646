#include "torchglue/facts/unused_graphs.h"

#include <algorithm>
#include <numeric>

namespace koila {

UnusedGraphs unused_graphs(const std::vector<TapeOp>& ops, const std::vector<TapeValue>& values, const std::vector<char>& needed_op) {
  const auto made_graph = [&](const TapeOp& op) {
    return std::any_of(op.outputs.begin(), op.outputs.end(), [&](TapeValueId out) { return out != kNoTapeValue && values[out].differentiable(); });
  };
  bool any = false;
  for (size_t i = 0; i < ops.size() && !any; ++i) any = !needed_op[i] && made_graph(ops[i]);
  if (!any) return {};
  std::vector<size_t> parent(ops.size());
  std::iota(parent.begin(), parent.end(), size_t{0});
  const auto find = [&](size_t i) {
    while (parent[i] != i) i = parent[i] = parent[parent[i]];
    return i;
  };
  std::vector<char> hangs_on_what_stays(ops.size(), 0);
  for (size_t i = 0; i < ops.size(); ++i) {
    if (needed_op[i]) continue;
    for (const TapeRef& ref : ops[i].refs) {
      const TapeValue& value = values[ref.value];
      if (value.is_capture() || !value.differentiable()) continue;  // gradients do not pass there
      if (needed_op[value.producer]) hangs_on_what_stays[i] = 1;
      else parent[find(i)] = find(static_cast<size_t>(value.producer));
    }
  }
  std::vector<int64_t> bytes(ops.size(), 0);
  std::vector<char> branch(ops.size(), 0);
  ska::flat_hash_set<uint32_t> counted;  // storage groups
  for (size_t i = 0; i < ops.size(); ++i) {
    if (needed_op[i]) continue;
    branch[find(i)] |= hangs_on_what_stays[i];
    for (const TapeValueId out : ops[i].outputs) {
      if (out == kNoTapeValue || !values[out].differentiable() || !counted.insert(values[out].group).second) continue;
      bytes[find(i)] += values[out].bytes();
    }
  }
  UnusedGraphs unused;
  for (size_t i = 0; i < ops.size(); ++i) {
    if (bytes[i] < kUnusedAtLeast || branch[i]) continue;
    ++unused.passes;
    unused.bytes = std::max(unused.bytes, bytes[i]);
  }
  return unused;
}

}  // namespace koila
