#include "shim/torch_version.h"

#include "runtime/torch_release.h"
#include "shim/resolve.h"

namespace koila::shim {
namespace {

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? "" : path.substr(0, slash);
}

}  // namespace

std::string torch_version() {
  // Wheels have torch/lib/libtorch*.so; system packages keep libtorch elsewhere, and only torch/_C stays in the package.
  for (const char* name : {"libtorch_cpu.so", "libtorch_python.so"}) {
    if (std::string v = torch_of_package(folder_of(folder_of(loaded_path(name)))); !v.empty()) return v;
  }
  return torch_of_package(folder_of(loaded_path("_C")));
}

}  // namespace koila::shim
