#include "runtime/bytes.h"

#include <charconv>
#include <cmath>
#include <cstdio>
#include <cctype>

namespace koila {
namespace {

struct Unit {
  std::string_view name;  // lower case
  double bytes;
};

constexpr double kKi = 1024.0;
constexpr double kK = 1000.0;
constexpr Unit kUnits[] = {
    {"b", 1},    {"kib", kKi}, {"mib", kKi * kKi}, {"gib", kKi * kKi * kKi}, {"tib", kKi * kKi * kKi * kKi},
    {"k", kKi},  {"m", kKi * kKi}, {"g", kKi * kKi * kKi}, {"t", kKi * kKi * kKi * kKi},  // as ulimit, docker and dd have them
    {"kb", kK},  {"mb", kK * kK}, {"gb", kK * kK * kK}, {"tb", kK * kK * kK * kK},
};

// The number at the front of `text`, which is moved past it and past blanks.
std::optional<double> take_number(std::string_view& text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  if (error != std::errc() || !std::isfinite(number)) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  return number;
}

}  // namespace

std::optional<std::int64_t> parse_bytes(std::string_view text) {
  const std::optional<double> number = take_number(text);
  if (!number) return std::nullopt;
  std::string unit(text);
  for (char& c : unit) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  for (const Unit& u : kUnits) {
    if (u.name != unit) continue;
    const double bytes = *number * u.bytes;
    if (bytes < 1 || bytes >= 9.2e18) return std::nullopt;
    return static_cast<std::int64_t>(bytes);
  }
  return std::nullopt;
}

std::optional<double> parse_percent(std::string_view text) {
  const std::optional<double> number = take_number(text);
  if (!number || text != "%" || *number <= 0 || *number > 100) return std::nullopt;
  return *number / 100;
}

std::string format_bytes(std::int64_t bytes) {
  const char* units[] = {"KiB", "MiB", "GiB", "TiB"};
  char text[32];
  double size = static_cast<double>(bytes);
  if (std::abs(size) < kKi) {
    std::snprintf(text, sizeof text, "%lld B", static_cast<long long>(bytes));
    return text;
  }
  int unit = -1;
  do {
    size /= kKi;
    ++unit;
  } while (unit < 3 && std::abs(size) >= 1023.95);  // 1023.95 would be shown as 1024.0
  std::snprintf(text, sizeof text, "%.1f %s", size, units[unit]);
  return text;
}

}  // namespace koila
