#include "tests/cuda/sim/call.h"

#include <chrono>
#include <limits>
#include <map>
#include <string>
#include <thread>

#include "tests/cuda/sim/environment.h"

namespace sim {
namespace {

struct Registry {
  std::mutex mutex;
  std::map<std::string, Hook, std::less<>> hooks;
};

Registry& registry() {
  static Registry& leaked = *new Registry;
  return leaked;
}

// Here and not beside the function: the static variant is an archive, of which a program takes only files that it needs, and it needs this one.
__attribute__((constructor(101))) void load() { apply_environment(); }

}  // namespace

void Hook::fail(int nth_from_now, int count, int code) {
  const std::lock_guard lock(mutex_);
  if (code == 0) {
    rules_.clear();
  } else {
    const std::uint64_t first = calls() + static_cast<std::uint64_t>(nth_from_now < 1 ? 1 : nth_from_now);
    const std::uint64_t last = count < 0 ? std::numeric_limits<std::uint64_t>::max() : first + static_cast<std::uint64_t>(count) - 1;
    if (count != 0) rules_.push_back({first, last, code});
  }
  armed_.store(!rules_.empty(), std::memory_order_relaxed);
}

int Hook::failure_of(std::uint64_t number) {
  const std::lock_guard lock(mutex_);
  for (const Rule& rule : rules_) {
    if (rule.first <= number && number <= rule.last) return rule.code;
  }
  return 0;
}

void Hook::sleep(int microseconds) { std::this_thread::sleep_for(std::chrono::microseconds(microseconds)); }

void Hook::reset() {
  fail(1, 0, 0);
  delay(0);
  calls_.store(0, std::memory_order_relaxed);
}

Hook& hook(std::string_view function) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  if (auto found = all.hooks.find(function); found != all.hooks.end()) return found->second;
  return all.hooks.try_emplace(std::string(function)).first->second;
}

void reset_hooks() {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  for (auto& [name, hook] : all.hooks) hook.reset();
}

}  // namespace sim
