#include "runtime/torch_release.h"

#include <cstdio>

namespace koila {
namespace {

std::string read_file(const std::string& path) {
  std::FILE* file = std::fopen(path.c_str(), "re");
  if (file == nullptr) return "";
  char buffer[4096];
  const std::size_t n = std::fread(buffer, 1, sizeof buffer, file);
  std::fclose(file);
  return std::string(buffer, n);
}

std::string first_line(const std::string& text) { return text.substr(0, text.find_first_of("\r\n")); }

}  // namespace

std::string parse_version_py(const std::string& text, const std::string& name) {
  for (std::size_t at = text.find(name); at != std::string::npos; at = text.find(name, at + 1)) {
    if (at != 0 && text[at - 1] != '\n') continue;
    const std::string line = text.substr(at, text.find('\n', at) - at);
    const std::size_t equals = line.find('=');
    if (equals == std::string::npos || line.find_first_of(" :=", 0) != name.size()) continue;
    const std::size_t open = line.find_first_of("'\"", equals);
    if (open == std::string::npos) continue;
    const std::size_t close = line.find(line[open], open + 1);
    if (close != std::string::npos) return line.substr(open + 1, close - open - 1);
  }
  return "";
}

std::string torch_of_package(const std::string& folder) {
  if (folder.empty()) return "";
  if (std::string v = parse_version_py(read_file(folder + "/version.py")); !v.empty()) return v;
  return first_line(read_file(folder + "/build-version"));
}

std::string built_for(const std::string& path) { return first_line(read_file(path)); }

bool same_torch(const std::string& a, const std::string& b) {
  const auto release = [](const std::string& v) { return v.substr(0, v.find('+')); };
  return !a.empty() && release(a) == release(b);
}

}  // namespace koila
