// Placements over a tape, from some seeds.
#pragma once

#include <cstdint>
#include <vector>

#include "torchglue/plan/plan.h"
#include "torchglue/tape/tape.h"

namespace koila {

// Sizes and rules only: nothing is read or run.
Plan infer_placements(const Tape& tape, int64_t batch, std::vector<Seed> seeds, Graphs graphs = Graphs::kWhole);

// Which operators of the tape must be brought over: those that a live split value, or the call in flight, descends from.
std::vector<char> needed_ops(const Tape& tape, const Plan& plan);

}  // namespace koila
