// How much memory this process may use: the machine's, or less where a container says so.
#ifndef KOILA_RUNTIME_MEMORY_LIMIT_H_
#define KOILA_RUNTIME_MEMORY_LIMIT_H_

#include <cstdint>
#include <optional>
#include <string>

#include "runtime/config.h"

namespace koila {

// The share of what is left to tensors that `auto` takes: the rest is for what nobody counts (the interpreter's own growth, buffers of
// libraries, fragmentation), since going over a container's limit means being killed and not an error.
constexpr double kAutoShare = 0.9;

struct MemoryFacts {
  std::int64_t total = 0;         // MemTotal
  std::int64_t cgroup_limit = 0;  // 0: none
  std::int64_t resident = 0;      // of this process, now

  // The smaller of what is there and what is allowed; 0 when nothing could be read.
  std::int64_t limit() const;
};

// Reads /proc and /sys/fs/cgroup below `root` ("" is the machine's own; tests pass a folder). Understands cgroup v1, v2 and the two
// together, and takes the lowest limit from the process's own group up to the root.
MemoryFacts read_memory_facts(const std::string& root = "");

// A budget in bytes. `auto`: kAutoShare of the limit less what the process holds already, in whole steps of a 128th of the limit: what a process holds is never twice the
// same to the page, and its micro-batches should be. A share: of the limit. Nothing when there is no budget, or no limit to take a share of.
std::optional<std::int64_t> resolve_budget(const MemoryBudget& budget, const MemoryFacts& facts);

}  // namespace koila

#endif  // KOILA_RUNTIME_MEMORY_LIMIT_H_
