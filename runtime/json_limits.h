// What a JSON text may be like before it is parsed: a file of somebody else's may nest as deep as it is long, and take a hundred bytes of memory for each of its own.
#ifndef KOILA_RUNTIME_JSON_LIMITS_H_
#define KOILA_RUNTIME_JSON_LIMITS_H_

#include <cstddef>
#include <string_view>

namespace koila {

struct JsonLimits {
  int depth = 0;             // of lists and objects within each other
  std::size_t parts = 0;     // lists and objects, and members of objects, in all
};

// Whether it keeps within them; of a text that is no JSON it may say either. Takes no memory.
inline bool is_within(const JsonLimits& limits, std::string_view text) {
  int depth = 0;
  std::size_t parts = 0;
  bool quoted = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted && c == '\\') ++i;
    else if (c == '"') quoted = !quoted;
    if (quoted) continue;
    if ((c == '[' || c == '{') && ++depth > limits.depth) return false;
    if ((c == '[' || c == '{' || c == ':') && ++parts > limits.parts) return false;
    if (c == ']' || c == '}') --depth;
  }
  return true;
}

}  // namespace koila

#endif  // KOILA_RUNTIME_JSON_LIMITS_H_
