// The operators that a region has begun with come once more.
#include <c10/core/AutogradState.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "torchglue/region/deferred.h"
#include "torchglue/region/region.h"

namespace koila {

// Note [Steps without a backward]
// The same call again may be another tower of this step (an anchor, a positive, a negative), or the next batch of an evaluation loop,
// whose last output the program still holds. Both join; what nothing descends from any more is let go at that moment, with its captures.
// An end to it all: what instructions leave behind is small, and not nothing. And a loop without gradients that collects its outputs would
// keep every input alive for them: after a few batches they are computed.
bool Region::begin_with(uint64_t key, int times) {
  constexpr int kTowersAtMost = 64, kBatchesAtMost = 4;
  int& begun = begun_with_[key];
  if (begun < times) {
    ++begun;
    return true;
  }
  if (!has_deferred()) return false;
  if (begun >= kTowersAtMost) return false;
  if (begun >= times + kBatchesAtMost && !c10::AutogradState::get_tls_state().get_grad_mode()) {
    materialise_held();
    return false;
  }
  prune();
  ++begun;
  return true;
}

void Region::prune() {
  bury_dead();
  const Schedule plan = schedule(in_use());
  std::vector<char> read(captures_.size(), 0);
  for (size_t i = 0; i < instructions_.size(); ++i) {
    Instruction& in = instructions_[i];
    if (!plan.needed[i]) {
      in.arguments.clear();
      in.outputs.clear();
      in.denominator = -1;
      continue;
    }
    if (in.denominator >= 0) read[uses_[in.denominator].capture] = 1;
    for (const Argument& argument : in.arguments) {
      for (const Operand& o : argument.operands) {
        if (o.kind == Operand::Kind::kUse) read[uses_[o.id].capture] = 1;
      }
    }
  }
  for (size_t u = 0; u < uses_.size(); ++u) {
    if (!read[uses_[u].capture] && u < first_.uses.size()) first_.uses[u].reset();
  }
  for (size_t c = 0; c < captures_.size(); ++c) {
    if (read[c] || !captures_[c].tensor.defined()) continue;
    const auto it = capture_index_.find(captures_[c].of._unsafe_get_target());
    if (it != capture_index_.end() && it->second == c) capture_index_.erase(it);
    captures_[c].tensor.reset();
    captures_[c].before.reset();
    captures_[c].there.reset();
  }
}

}  // namespace koila
