#include "runtime/cabi.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

koila_settings settings;
std::atomic<int64_t> live{0}, peak{0};

int reserve(int, size_t bytes) {
  const int64_t now = live.fetch_add(static_cast<int64_t>(bytes)) + static_cast<int64_t>(bytes);
  if (settings.cpu_budget_bytes != 0 && now > settings.cpu_budget_bytes) {
    live.fetch_sub(static_cast<int64_t>(bytes));
    return 1;
  }
  int64_t p = peak.load();
  while (now > p && !peak.compare_exchange_weak(p, now)) {
  }
  return 0;
}

koila_runtime table = {
    KOILA_ABI_VERSION,
    &settings,
    [](int level, const char* message) {
      if (level >= settings.log_level) std::fprintf(stderr, "koila: %s\n", message);
    },
    reserve,
    [](int, size_t bytes) { live.fetch_sub(static_cast<int64_t>(bytes)); },
    [](int) { return live.load(); },
    [](int) { return peak.load(); },
    [](int) { return settings.cpu_budget_bytes; },
    [](const koila_oom_event*) {},
    [](const koila_region_event*) {},
    [] {},
    [](const char*, int64_t) {},
    [](const char*) {},
};

}  // namespace

bool koila_runtime_start() {
  const char* mode = std::getenv("KOILA_MODE");
  settings.mode = KOILA_MODE_RESCUE;
  if (mode != nullptr && std::strcmp(mode, "off") == 0) return false;
  if (mode != nullptr && std::strcmp(mode, "track") == 0) settings.mode = KOILA_MODE_TRACK;
  if (mode != nullptr && std::strcmp(mode, "lazy") == 0) settings.mode = KOILA_MODE_LAZY;
  if (const char* rows = std::getenv("KOILA_MICROBATCH")) settings.microbatch = std::atoll(rows);
  if (const char* budget = std::getenv("KOILA_CPU_MEMORY")) settings.cpu_budget_bytes = static_cast<int64_t>(std::atof(budget) * (1 << 20));
  settings.log_level = KOILA_LOG_WARN;
  if (const char* level = std::getenv("KOILA_LOG"); level != nullptr && std::strcmp(level, "debug") == 0) settings.log_level = KOILA_LOG_DEBUG;
  settings.spill_dir = "/tmp";
  settings.rules_path = "";
  return true;
}

const koila_runtime* koila_runtime_table() { return &table; }

void koila_runtime_attached() {}
