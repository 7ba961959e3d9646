// What adds up: tensors that outlive the step that made them, more of them from look to look.
//
// Pure, and read by the adapter as well as by the runtime.
#ifndef KOILA_RUNTIME_LEAKS_H_
#define KOILA_RUNTIME_LEAKS_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "runtime/report/data.h"

namespace koila {

// Blocks of one kind that are alive at a look: as in Holder, of one category, made by one operator, at one place.
struct SurvivorGroup {
  int device = KOILA_CPU;
  int category = KOILA_OTHER;
  std::string op;
  std::string where;
  std::vector<std::pair<std::int64_t, std::int64_t>> alive;  // step in which they were made (steps that had ended by then), and their bytes; in any order

  bool is_like(const SurvivorGroup& other) const {
    return device == other.device && category == other.category && op == other.op && where == other.where;
  }
};

// What is alive at the end of a step.
struct LeakLook {
  std::int64_t step = 0;  // that has ended
  std::vector<SurvivorGroup> groups;
};

constexpr std::size_t kLeakLooks = 8;              // in a row, that must show growth; who looks keeps so many
constexpr std::size_t kLeakBirths = 5;             // different steps that what is alive must come from
constexpr std::int64_t kLeakAge = 2;               // steps: what is younger may yet go
constexpr std::int64_t kLeakAtLeast = 64 * 1024;   // bytes

// Note [What is a leak]
// Of a group, only what is older than two steps counts: activations, a loss that the program has not let go of, a hidden state handed to the
// next step are none. It must come from five different steps: optimizer state that is made in the first update, a copy of the
// weights, a new layer's parameters are none. And over the last eight looks it must never have shrunk, and have grown in the later
// half of them as well: a replay buffer is one while it fills, and none when it is full; a queue of fixed length is none.

// `history`: looks by step, the oldest first; at least kLeakLooks, else there is nothing to say. The answer names the largest first; `holder` is left empty.
std::vector<Leak> find_leaks(const std::vector<LeakLook>& history);

// The same of one figure that is not known by birth, such as the process's memory outside of tensors: what it grew by per step over the last
// kLeakLooks, when it grew throughout and by at least kLeakAtLeast; else 0. `looks`: step and bytes, the oldest first.
std::int64_t growth_per_step(const std::vector<std::pair<std::int64_t, std::int64_t>>& looks);

}  // namespace koila

#endif  // KOILA_RUNTIME_LEAKS_H_
