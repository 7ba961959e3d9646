#include "runtime/findings.h"

#include <algorithm>
#include <string>

namespace koila {

void Findings::add_fact(int fact, std::int64_t value) {
  const std::lock_guard lock(mutex_);
  const auto most = [value](std::int64_t& bytes) { bytes = std::max(bytes, value); };
  switch (fact) {
    case KOILA_FACT_AUTOCAST: facts_.autocast += value; break;
    case KOILA_FACT_HALF_PARAMETERS_BYTES: most(facts_.half_parameters_bytes); break;
    case KOILA_FACT_CHECKPOINTS: facts_.checkpoints += value; break;
    case KOILA_FACT_KEPT_GRADIENTS: facts_.kept_gradients += value; break;
    case KOILA_FACT_KEPT_GRADIENTS_BYTES: most(facts_.kept_gradients_bytes); break;
    case KOILA_FACT_GRAPH_IN_EVALUATION: facts_.graph_in_evaluation += value; break;
    case KOILA_FACT_GRAPH_IN_EVALUATION_BYTES: most(facts_.graph_in_evaluation_bytes); break;
    case KOILA_FACT_FOREACH_BYTES: most(facts_.foreach_bytes); break;
    case KOILA_FACT_FUSED_OPTIMIZER: facts_.fused_optimizer += value; break;
    case KOILA_FACT_EXPANDABLE_SEGMENTS: most(facts_.expandable_segments); break;
    case KOILA_FACT_FRAGMENTED_BYTES: most(facts_.fragmented_bytes); break;
  }
}

void Findings::add_leak(const Leak& leak) {
  const std::lock_guard lock(mutex_);
  const auto same = std::find_if(leaks_.begin(), leaks_.end(), [&](const Leak& other) {
    return other.device == leak.device && other.category == leak.category && other.op == leak.op && other.where == leak.where;
  });
  if (same != leaks_.end()) {
    std::string holder = leak.holder.empty() ? same->holder : leak.holder;
    *same = leak;
    same->holder = std::move(holder);
  } else {
    leaks_.push_back(leak);
  }
  leaks_.erase(std::remove_if(leaks_.begin(), leaks_.end(), [](const Leak& l) { return l.bytes == 0 && l.graph_nodes == 0; }), leaks_.end());
  std::stable_sort(leaks_.begin(), leaks_.end(), [](const Leak& a, const Leak& b) { return a.bytes > b.bytes; });
  if (leaks_.size() > kMaxLeaks) leaks_.resize(kMaxLeaks);
}

ProgramFacts Findings::facts() const {
  const std::lock_guard lock(mutex_);
  return facts_;
}

std::vector<Leak> Findings::leaks() const {
  const std::lock_guard lock(mutex_);
  return leaks_;
}

}  // namespace koila
