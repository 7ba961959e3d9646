// What the proof does not have to look at again.
#pragma once

#include <c10/util/flat_hash_map.h>

#include <cstddef>

namespace koila {

// What KOILA_VERIFY has found good.
struct ProvenCalls {
  ska::flat_hash_set<size_t> calls;           // operators' rules, by call
  ska::flat_hash_map<size_t, int> shapes;     // the same but for the sizes: how many have been tested
  ska::flat_hash_set<size_t> steps;           // passes over a step, and conversions
  ska::flat_hash_map<size_t, int> lines;      // operators whose line has been looked for: how often
};

}  // namespace koila
