// Largest and smallest entries, whether any is true, and lengths: of the whole batch, from each row's own. In the form of staged.cc's table.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <memory>

#include "torchglue/placement/rule.h"
#include "torchglue/region/region.h"

namespace koila {

// aten::amax, amin, max and min (of all entries), any, all. False, and nothing done, where the value is not finite and has a gradient.
bool run_extreme(const c10::OperatorHandle&, torch::jit::Stack* stack, const OpCall& call, const std::shared_ptr<Region>& region);

// aten::linalg_vector_norm and norm, of order 1 and 2. False, and nothing done, for others.
bool run_norm(const c10::OperatorHandle&, torch::jit::Stack* stack, const OpCall& call, const std::shared_ptr<Region>& region);

}  // namespace koila
