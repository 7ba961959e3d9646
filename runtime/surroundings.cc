#include "runtime/surroundings.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <optional>

#include "runtime/bytes.h"
#include "runtime/memory_limit.h"

namespace koila {
namespace {

bool is_writable_folder(const std::string& path) {
  struct stat status;
  return stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode) && access(path.c_str(), W_OK | X_OK) == 0;
}

}  // namespace

std::vector<std::string> read_arguments() {
  std::FILE* file = std::fopen("/proc/self/cmdline", "re");
  if (file == nullptr) return {};
  char buffer[4096];
  const std::size_t n = std::fread(buffer, 1, sizeof buffer, file);
  std::fclose(file);
  std::vector<std::string> words;
  for (std::size_t at = 0; at < n;) {
    const std::size_t end = std::min(static_cast<std::size_t>(std::find(buffer + at, buffer + n, '\0') - buffer), n);
    words.emplace_back(buffer + at, end - at);
    at = end + 1;
  }
  return words;
}

bool is_spawned_worker(const std::vector<std::string>& arguments) {
  return std::any_of(arguments.begin(), arguments.end(), [](const std::string& word) {
    return word.find("--multiprocessing-fork") != std::string::npos || word.find("from multiprocessing.forkserver import main") != std::string::npos;
  });
}

std::string absolute_path(const std::string& path) {
  if (path.empty() || path.front() == '/') return path;
  char* here = get_current_dir_name();
  const std::string absolute = here != nullptr ? std::string(here) + "/" + path : path;
  std::free(here);
  return absolute;
}

std::string find_spill_dir(ParsedConfig& parsed) {
  const char* temporary = std::getenv("TMPDIR");
  const std::string fallback = temporary != nullptr && is_writable_folder(temporary) ? temporary : "/tmp";
  const std::string& asked = parsed.config.spill_dir;
  if (asked.empty()) return fallback;
  if (is_writable_folder(asked)) return asked;
  parsed.problems.push_back({KOILA_LOG_WARN, "KOILA_SPILL_DIR=" + asked + " is not a folder that can be written; using " + fallback});
  return fallback;
}

std::int64_t find_cpu_budget(ParsedConfig& parsed) {
  const MemoryBudget& asked = parsed.config.cpu_memory;
  if (asked.kind == MemoryBudget::Kind::kNone) return 0;
  const std::optional<std::int64_t> budget = resolve_budget(asked, read_memory_facts());
  if (budget) parsed.problems.push_back({KOILA_LOG_INFO, "budget for CPU tensors: " + format_bytes(*budget)});
  else parsed.problems.push_back({KOILA_LOG_WARN, "KOILA_CPU_MEMORY: this machine's memory cannot be read; using no budget"});
  return budget.value_or(0);
}

ParsedRules find_rules(ParsedConfig& parsed) {
  if (parsed.config.rules.empty()) return {};
  ParsedRules rules = read_rules(parsed.config.rules);
  for (const std::string& error : rules.errors) parsed.problems.push_back({KOILA_LOG_WARN, error});
  return rules;
}

}  // namespace koila
