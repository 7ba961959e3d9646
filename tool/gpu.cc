#include "tool/gpu.h"

#include <glob.h>

#include <algorithm>

#include "tool/files.h"

namespace koila::tool {
namespace {

std::vector<std::string> matches(const std::string& pattern) {
  glob_t found = {};
  std::vector<std::string> paths;
  if (glob(pattern.c_str(), 0, nullptr, &found) == 0) paths.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  globfree(&found);
  return paths;
}

// "Model:  \t NVIDIA H100".
std::string model_of(const std::string& text) {
  for (const std::string& line : split(text, "\n")) {
    if (!line.starts_with("Model:")) continue;
    const std::size_t begin = line.find_first_not_of(" \t", 6);
    return begin == std::string::npos ? "" : line.substr(begin);
  }
  return "";
}

// "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug ...": the first word that begins with a number and has a dot.
std::string driver_of(const std::string& text) {
  for (const std::string& word : split(text.substr(0, text.find('\n')), " \t"))
    if (word[0] >= '0' && word[0] <= '9' && word.find('.') != std::string::npos) return word;
  return "";
}

}  // namespace

GpuFacts find_gpus(const std::string& root) {
  GpuFacts facts;
  for (const std::string& path : matches(root + "/proc/driver/nvidia/gpus/*/information")) {
    const std::string model = model_of(read_file(path).value_or(""));
    facts.models.push_back(model.empty() ? "GPU" : model);
  }
  facts.driver = driver_of(read_file(root + "/proc/driver/nvidia/version").value_or(""));
  // A container may see the device files only; under WSL there is one for all.
  const std::size_t files = std::max(matches(root + "/dev/nvidia[0-9]*").size(), matches(root + "/dev/dxg").size());
  while (facts.models.size() < files) facts.models.push_back("GPU");

  std::vector<std::string> folders = {"/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/lib/wsl/lib"};
  const std::vector<std::string> asked = split(variable("LD_LIBRARY_PATH"), ":;");
  folders.insert(folders.end(), asked.begin(), asked.end());
  facts.has_libcuda = read_file(root + "/etc/ld.so.cache").value_or("").find("libcuda.so.1") != std::string::npos ||
                      std::any_of(folders.begin(), folders.end(), [&](const std::string& f) { return is_file(root + f + "/libcuda.so.1"); });
  return facts;
}

}  // namespace koila::tool
