// Forward passes with gradients that no backward pass followed.
#pragma once

#include <cstdint>
#include <vector>

#include "torchglue/tape/tape.h"

namespace koila {

constexpr int64_t kUnusedAtLeast = 64 * 1024;  // bytes of a pass; logging of a norm is no pass

struct UnusedGraphs {
  int64_t passes = 0;
  int64_t bytes = 0;  // of the largest: the results that had a graph, which is the most that it can have kept
};

// Of what a tape is about to forget because nothing alive descends from it: operators that made a graph, and that hang together with each other and
// with nothing that stays. `needed_op`: by operator, whether it stays.
UnusedGraphs unused_graphs(const std::vector<TapeOp>& ops, const std::vector<TapeValue>& values, const std::vector<char>& needed_op);

}  // namespace koila
