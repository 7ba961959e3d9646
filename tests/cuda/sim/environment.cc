#include "tests/cuda/sim/environment.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "tests/cuda/sim/call.h"
#include "tests/cuda/sim/devices.h"
#include "tests/cuda/sim/heap.h"

namespace sim {
namespace {

constexpr std::size_t default_capacity = std::size_t{8} << 30;

std::vector<std::string_view> split(std::string_view text, char at) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(at), text.size());
    parts.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return parts;
}

long long number(std::string_view text) {
  long long value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

std::size_t bytes(std::string_view text) {
  std::size_t unit = 1;
  for (const char* name : {"KiB", "MiB", "GiB", "TiB"}) {
    unit *= 1024;
    if (text.ends_with(name)) return static_cast<std::size_t>(number(text)) * unit;
  }
  return static_cast<std::size_t>(number(text));
}

void set_capacity(int device, std::size_t bytes) {
  if (device >= 0 && device < max_devices) heap().set_capacity(device, bytes);
}

// As it was when the library was loaded: a program may change its environment later.
struct Settings {
  std::string devices, capacity, fail, delay, reuse;

  Settings()
      : devices(read("SIM_DEVICES")), capacity(read("SIM_CAPACITY")), fail(read("SIM_FAIL")), delay(read("SIM_DELAY")), reuse(read("SIM_REUSE")) {}

  static std::string read(const char* name) {
    const char* value = std::getenv(name);
    return value == nullptr ? "" : value;
  }

  void apply() const {
    set_device_count(devices.empty() ? 1 : static_cast<int>(number(devices)));
    for (int device = 0; device < max_devices; ++device) set_capacity(device, default_capacity);
    for (const std::string_view entry : split(capacity, ',')) {
      const std::vector<std::string_view> parts = split(entry, ':');
      if (parts.size() == 2) {
        set_capacity(static_cast<int>(number(parts[0])), bytes(parts[1]));
      } else {
        for (int device = 0; device < max_devices; ++device) set_capacity(device, bytes(entry));
      }
    }
    for (const std::string_view entry : split(fail, ',')) {
      const std::vector<std::string_view> parts = split(entry, ':');
      if (parts.size() != 4) continue;
      hook(parts[0]).fail(static_cast<int>(number(parts[1])), static_cast<int>(number(parts[2])), static_cast<int>(number(parts[3])));
    }
    for (const std::string_view entry : split(delay, ',')) {
      const std::vector<std::string_view> parts = split(entry, ':');
      if (parts.size() == 2) hook(parts[0]).delay(static_cast<int>(number(parts[1])));
    }
    heap().reuse_addresses(reuse != "0");
  }
};

const Settings& settings() {
  static const Settings& leaked = *new Settings;
  return leaked;
}

}  // namespace

void apply_environment() { settings().apply(); }

}  // namespace sim
