// Gradients that have a graph, see Note [Gradients that have a graph] in torchglue/operators/gradient.h.
#include "torchglue/placement/operands.h"

namespace koila {
namespace {

Verdict gradient(OpCall&);  // (outputs, gradients, inputs, used)

const RegisterRules kTable{
    {"koila::gradient", gradient},
};

// A row's outputs depend on its own rows of the inputs. So the gradient of a split input is split as it is, and that of a whole one is a sum over rows. An input that is a sum
// itself has been put together by whoever read it, and is whole by then.
Verdict gradient(OpCall& call) {
  const auto& outputs = call.list(0);
  for (size_t i = 0; i < outputs.size(); ++i) {
    const Placement& p = outputs[i].placement;
    if (p.is_replicate()) return Verdict::kNo;
    const OpCall::ArgRef gradient{1, static_cast<int>(i)};
    if (p.is_shard() ? !call.require(gradient, p) : !spec(call, gradient).placement.is_replicate()) return Verdict::kNo;
  }
  for (size_t i = 0; i < call.list(2).size(); ++i) {
    const Placement& p = call.list(2)[i].placement;
    call.output(static_cast<int>(i), p.is_shard() ? p : Placement::partial());
  }
  return Verdict::kLocal;
}

}  // namespace
}  // namespace koila
