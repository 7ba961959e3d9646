#include "shim/torch_version.h"

#include <cstdio>

#include "shim/resolve.h"

namespace koila::shim {
namespace {

std::string read_file(const std::string& path) {
  std::FILE* file = std::fopen(path.c_str(), "re");
  if (file == nullptr) return "";
  char buffer[4096];
  const std::size_t n = std::fread(buffer, 1, sizeof buffer, file);
  std::fclose(file);
  return std::string(buffer, n);
}

std::string first_line(const std::string& text) {
  const std::size_t end = text.find_first_of("\r\n");
  return end == std::string::npos ? text : text.substr(0, end);
}

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? "" : path.substr(0, slash);
}

}  // namespace

std::string parse_version_py(const std::string& text) {
  const std::string name = "__version__";
  for (std::size_t at = text.find(name); at != std::string::npos; at = text.find(name, at + 1)) {
    if (at != 0 && text[at - 1] != '\n') continue;
    const std::size_t equals = text.find('=', at);
    const std::size_t open = text.find_first_of("'\"", at);
    if (equals == std::string::npos || open == std::string::npos || open < equals) continue;
    const std::size_t close = text.find(text[open], open + 1);
    if (close != std::string::npos) return text.substr(open + 1, close - open - 1);
  }
  return "";
}

std::string torch_version() {
  // Wheels have torch/lib/libtorch*.so; system packages keep libtorch elsewhere, and only torch/_C stays in the package.
  for (const char* name : {"libtorch_cpu.so", "libtorch_python.so"}) {
    const std::string package = folder_of(folder_of(loaded_path(name)));
    if (package.empty()) continue;
    if (std::string v = parse_version_py(read_file(package + "/version.py")); !v.empty()) return v;
    if (std::string v = first_line(read_file(package + "/build-version")); !v.empty()) return v;
  }
  if (const std::string c = loaded_path("_C"); !c.empty()) return parse_version_py(read_file(folder_of(c) + "/version.py"));
  return "";
}

std::string built_for(const std::string& path) { return first_line(read_file(path)); }

bool same_torch(const std::string& a, const std::string& b) {
  const auto release = [](const std::string& v) { return v.substr(0, v.find('+')); };
  return !a.empty() && release(a) == release(b);
}

}  // namespace koila::shim
