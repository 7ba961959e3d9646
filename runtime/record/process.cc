#include "runtime/record/process.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace koila::record {

std::uint64_t birth_of(std::int64_t pid) {
  std::FILE* file = std::fopen(("/proc/" + std::to_string(pid) + "/stat").c_str(), "re");
  if (file == nullptr) return 0;
  char text[1024];
  const std::size_t n = std::fread(text, 1, sizeof text - 1, file);
  std::fclose(file);
  text[n] = '\0';
  // "7 (a name (with) what it likes) S 1 ...": the state is the third field, the time the twenty-second.
  const char* at = std::strrchr(text, ')');
  if (at == nullptr || at[1] != ' ') return 0;
  at += 2;
  if (*at == 'Z' || *at == 'X') return 0;
  for (int field = 3; field < 22; ++field) {
    at = std::strchr(at, ' ');
    if (at == nullptr) return 0;
    ++at;
  }
  return std::strtoull(at, nullptr, 10);
}

}  // namespace koila::record
