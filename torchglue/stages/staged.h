// Calls that need something of every row before they can run per micro-batch: see Note [Stages] in placement/rule.h.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <memory>

#include "torchglue/placement/rule.h"
#include "torchglue/region/region.h"

namespace koila {

// Runs a call that its rule answered with kStaged, none of whose arguments is Partial: batch norm with the batch's statistics, instance norm with
// running ones, variances, norms and extremes over the batch, and softmax and logsumexp along it. `region` is the one that the call would join; its stage ends here. Results are on the stack
// in place of the arguments. False, and nothing done, for any other operator.
bool run_staged(const c10::OperatorHandle& op, torch::jit::Stack* stack, const OpCall& call, const std::shared_ptr<Region>& region);

}  // namespace koila
