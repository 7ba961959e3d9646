#include "runtime/printable.h"

#include <cstddef>
#include <cstdint>
#include <cstdio>

namespace koila {
namespace {

struct Character {
  std::size_t bytes = 1;
  std::uint32_t code = 0;
  bool is_whole = false;  // of valid UTF-8: no longer than it has to be, no surrogate, none beyond the last
};

Character first_of(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {1, lead, true};
  const std::size_t bytes = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < bytes) return {};
  std::uint32_t code = lead & (0xffU >> (bytes + 1));
  for (std::size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return {};
    code = code << 6 | (byte(i) & 0x3fU);
  }
  constexpr std::uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  if (code < kLeast[bytes] || code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff)) return {};
  return {bytes, code, true};
}

bool is_shown(std::uint32_t code) {
  const auto within = [&](std::uint32_t first, std::uint32_t last) { return code >= first && code <= last; };
  const bool is_control = code < 0x20 || within(0x7f, 0x9f);
  const bool turns = code == 0x61c || within(0x200e, 0x200f) || within(0x202a, 0x202e) || within(0x2066, 0x2069);
  return !is_control && !turns && !within(0x2028, 0x2029) && code != 0xfeff;
}

std::string shown(std::string_view text, bool keeps_lines) {
  std::string line;
  line.reserve(text.size());
  while (!text.empty()) {
    const Character next = first_of(text);
    const char c = text.front();
    if (next.is_whole && is_shown(next.code)) line.append(text.substr(0, next.bytes));
    else if (c == '\n' && keeps_lines) line += '\n';
    else line += c == '\t' || c == '\n' || c == '\r' ? ' ' : '?';
    text.remove_prefix(next.bytes);
  }
  return line;
}

}  // namespace

std::string printable(std::string_view text) { return shown(text, false); }

std::string printable_lines(std::string_view text) { return shown(text, true); }

std::string without_controls(std::string json) {
  const auto is_control = [&](std::size_t i) {
    const auto c = static_cast<unsigned char>(json[i]);
    return c == 0x7f || (c == 0xc2 && i + 1 < json.size() && static_cast<unsigned char>(json[i + 1]) < 0xa0);
  };
  std::string text;
  for (std::size_t i = 0, done = 0; i <= json.size(); ++i) {
    if (i == json.size() && done == 0) return json;
    if (i < json.size() && !is_control(i)) continue;
    text.append(json, done, i - done);
    if (i == json.size()) break;
    const bool is_short = static_cast<unsigned char>(json[i]) == 0x7f;
    char escaped[8];
    std::snprintf(escaped, sizeof escaped, "\\u%04x", is_short ? 0x7fU : static_cast<unsigned>(static_cast<unsigned char>(json[i + 1])));
    text += escaped;
    i += is_short ? 0 : 1;
    done = i + 1;
  }
  return text;
}

}  // namespace koila
