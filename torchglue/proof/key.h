// Keys of what has been proven already: calls of operators, passes over a step, conversions.
#pragma once

#include <cstddef>

namespace koila {

// boost::hash_combine's mixing, for 64 bits.
inline size_t combined(size_t seed, size_t value) { return seed ^ (value + 0x9e3779b97f4a7c15ULL + (seed << 6) + (seed >> 2)); }

}  // namespace koila
