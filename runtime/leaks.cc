#include "runtime/leaks.h"

#include <algorithm>
#include <set>

namespace koila {
namespace {

struct Old {
  std::int64_t bytes = 0;
  std::set<std::int64_t> births;
};

Old old_ones(const LeakLook& look, const SurvivorGroup& like) {
  Old old;
  for (const SurvivorGroup& group : look.groups) {
    if (!group.is_like(like)) continue;
    for (const auto& [birth, bytes] : group.alive) {
      if (birth > look.step - kLeakAge || bytes <= 0) continue;
      old.bytes += bytes;
      old.births.insert(birth);
    }
  }
  return old;
}

bool grew_throughout(const std::vector<std::int64_t>& bytes) {
  return std::is_sorted(bytes.begin(), bytes.end()) && bytes[bytes.size() / 2] > bytes.front() && bytes.back() > bytes[bytes.size() / 2];
}

std::int64_t per_step(std::int64_t bytes, std::int64_t steps) { return bytes / std::max<std::int64_t>(steps, 1); }

}  // namespace

std::vector<Leak> find_leaks(const std::vector<LeakLook>& history) {
  std::vector<Leak> leaks;
  if (history.size() < kLeakLooks) return leaks;
  const auto first = history.end() - kLeakLooks;
  const LeakLook& now = history.back();
  for (const SurvivorGroup& group : now.groups) {
    const Old old = old_ones(now, group);
    if (old.bytes < kLeakAtLeast || old.births.size() < kLeakBirths) continue;
    std::vector<std::int64_t> bytes;
    for (auto look = first; look != history.end(); ++look) bytes.push_back(old_ones(*look, group).bytes);
    if (!grew_throughout(bytes)) continue;
    Leak leak;
    leak.device = group.device;
    leak.category = group.category;
    leak.op = group.op;
    leak.where = group.where;
    leak.bytes = old.bytes;
    leak.bytes_per_step = per_step(bytes.back() - bytes.front(), now.step - first->step);
    leak.first_step = *old.births.begin();
    leaks.push_back(std::move(leak));
  }
  std::stable_sort(leaks.begin(), leaks.end(), [](const Leak& a, const Leak& b) { return a.bytes > b.bytes; });
  return leaks;
}

std::int64_t growth_per_step(const std::vector<std::pair<std::int64_t, std::int64_t>>& looks) {
  if (looks.size() < kLeakLooks) return 0;
  std::vector<std::int64_t> bytes;
  for (auto look = looks.end() - kLeakLooks; look != looks.end(); ++look) bytes.push_back(look->second);
  const auto first = (looks.end() - kLeakLooks)->first;
  if (!grew_throughout(bytes) || bytes.back() - bytes.front() < kLeakAtLeast) return 0;
  return per_step(bytes.back() - bytes.front(), looks.back().first - first);
}

}  // namespace koila
