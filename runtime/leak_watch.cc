#include "runtime/leak_watch.h"

#include <algorithm>

namespace koila {
namespace {

// The next look after a 32nd of the steps so far.
constexpr std::int64_t kRarer = 32;

bool is_same(const Leak& a, const Leak& b) { return a.device == b.device && a.category == b.category && a.op == b.op && a.where == b.where; }

}  // namespace

void LeakWatch::step_over(std::int64_t steps) {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock || steps < next_look_) return;
  next_look_ = steps + std::max<std::int64_t>(1, steps / kRarer);
  if (history_.size() == kLeakLooks) history_.erase(history_.begin());
  history_.push_back({steps, book_.survivors()});
  const std::vector<Leak> leaks = find_leaks(history_);
  const auto among = [](const std::vector<Leak>& all, const Leak& leak) { return std::any_of(all.begin(), all.end(), [&](const Leak& l) { return is_same(l, leak); }); };
  for (Leak over : told_) {
    if (among(leaks, over)) continue;
    over.bytes = 0;
    findings_.add_leak(over);
  }
  for (const Leak& leak : leaks) {
    findings_.add_leak(leak);
    if (!among(told_, leak)) to_name_.push_back(leak);
  }
  told_ = leaks;
}

std::optional<Leak> LeakWatch::to_name() {
  const std::lock_guard lock(mutex_);
  if (to_name_.empty()) return std::nullopt;
  Leak leak = to_name_.front();
  to_name_.pop_front();
  return leak;
}

}  // namespace koila
