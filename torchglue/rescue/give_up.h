// What the program's tensors give up before a conversion makes a step again.
#pragma once

#include <c10/core/Device.h>

#include <vector>

#include "torchglue/plan/plan.h"
#include "torchglue/rescue/staying.h"
#include "torchglue/tape/tape.h"

namespace koila {

// Every live activation that is split gives up its own memory in place: whatever else shares the storage object (a graph's saved tensor, a view) lets go of it too. `needed`: by operator, those that
// are made again.
void give_up_memory(const Tape& tape, const Plan& plan, const std::vector<char>& needed, const Staying& staying, at::Device device);

// Note [Graphs that go first]
// Most of what a graph has saved belongs to tensors that the program has dropped: it goes with the last tensor that hangs on the graph, which is the last operator's. Where an operator on the way has
// to run at once (an index by a mask that is read), a micro-batch would run beside all of it. So the live tensors let go of their graphs before the first operator is brought over; what else holds these
// graphs keeps them. Until a tensor gets its new graph, and for good where the conversion fails, it has a node that raises the out-of-memory error.
void give_up_graphs(const Tape& tape, const Plan& plan, const std::vector<char>& needed, const Staying& staying);

}  // namespace koila
