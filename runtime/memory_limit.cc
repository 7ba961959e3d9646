#include "runtime/memory_limit.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <limits>
#include <vector>

namespace koila {
namespace {

std::string read_file(const std::string& path) {
  std::FILE* file = std::fopen(path.c_str(), "re");
  if (file == nullptr) return "";
  std::string text;
  char buffer[4096];
  for (std::size_t n; (n = std::fread(buffer, 1, sizeof buffer, file)) > 0;) text.append(buffer, n);
  std::fclose(file);
  return text;
}

std::optional<std::int64_t> leading_number(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  (void)end;
  return error == std::errc() ? std::optional(number) : std::nullopt;
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find(separator, begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

// "Name:   123 kB" of a /proc file, in bytes; 0 when it is not there.
std::int64_t kilobytes_field(const std::string& text, const std::string& name) {
  for (const std::string& line : split(text, '\n'))
    if (line.starts_with(name + ":")) return leading_number(std::string_view(line).substr(name.size() + 1)).value_or(0) * 1024;
  return 0;
}

// The lowest limit in `file` from the group's folder up to the mount. A container may see its own group's path on the host, which
// does not exist below the mount it has: the walk up reaches the mount itself, which then is the container's group.
std::int64_t lowest_limit(const std::string& mount, std::string group, const char* file) {
  std::int64_t lowest = std::numeric_limits<std::int64_t>::max();
  while (true) {
    // "max" is no number; v1 writes a number near 2^63 for no limit.
    if (const auto limit = leading_number(read_file(mount + group + "/" + file)); limit && *limit > 0) lowest = std::min(lowest, *limit);
    if (group.empty()) return lowest;
    group.resize(std::min(group.rfind('/'), group.size() - 1));
  }
}

std::int64_t cgroup_limit(const std::string& root) {
  std::int64_t lowest = std::numeric_limits<std::int64_t>::max();
  const std::string mount = root + "/sys/fs/cgroup";
  // A line is "id:controllers:path"; v2 has id 0 and no controllers.
  for (const std::string& line : split(read_file(root + "/proc/self/cgroup"), '\n')) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    std::string group = line.substr(second + 1);
    if (group == "/") group.clear();
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (controllers.empty()) {
      lowest = std::min(lowest, lowest_limit(mount, group, "memory.max"));
      lowest = std::min(lowest, lowest_limit(mount + "/unified", group, "memory.max"));
      continue;
    }
    const std::vector<std::string> names = split(controllers, ',');
    if (std::find(names.begin(), names.end(), "memory") != names.end())
      lowest = std::min(lowest, lowest_limit(mount + "/memory", group, "memory.limit_in_bytes"));
  }
  // Beyond any machine: v1's way to say that there is none.
  return lowest > (std::int64_t{1} << 60) ? 0 : lowest;
}

}  // namespace

std::int64_t MemoryFacts::limit() const {
  if (total == 0 || cgroup_limit == 0) return std::max(total, cgroup_limit);
  return std::min(total, cgroup_limit);
}

MemoryFacts read_memory_facts(const std::string& root) {
  MemoryFacts facts;
  facts.total = kilobytes_field(read_file(root + "/proc/meminfo"), "MemTotal");
  facts.resident = kilobytes_field(read_file(root + "/proc/self/status"), "VmRSS");
  facts.cgroup_limit = cgroup_limit(root);
  return facts;
}

std::optional<std::int64_t> resolve_budget(const MemoryBudget& budget, const MemoryFacts& facts) {
  const auto share_of = [](double share, std::int64_t bytes) { return static_cast<std::int64_t>(share * static_cast<double>(bytes)); };
  switch (budget.kind) {
    case MemoryBudget::Kind::kNone: return std::nullopt;
    case MemoryBudget::Kind::kBytes: return budget.bytes;
    case MemoryBudget::Kind::kShare:
      if (facts.limit() == 0) return std::nullopt;
      return std::max<std::int64_t>(1, share_of(budget.share, facts.limit()));
    case MemoryBudget::Kind::kAuto: {
      if (facts.limit() == 0) return std::nullopt;
      const std::int64_t step = std::max<std::int64_t>(1, facts.limit() / 128);
      const std::int64_t bytes = share_of(kAutoShare, facts.limit() - facts.resident);
      return std::max<std::int64_t>(1, bytes < step ? bytes : bytes / step * step);
    }
  }
  return std::nullopt;
}

}  // namespace koila
