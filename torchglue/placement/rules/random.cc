// Random draws inside a region: each micro-batch draws its own, from the same distribution. A generator of the program's own is left alone.
#include "torchglue/placement/alignment.h"
#include "torchglue/placement/operands.h"

namespace koila {
namespace {

Verdict draw(OpCall&);          // a draw for every entry
Verdict draw_channels(OpCall&); // a draw for every [n, c]: dropout2d
Verdict draw_rows(OpCall&);     // draws from each row's distribution: multinomial

const RegisterRules kTable{
    {"aten::alpha_dropout", draw, kRandom},
    {"aten::bernoulli", draw, kRandom},
    {"aten::binomial", draw, kRandom},
    {"aten::cauchy", draw, kRandom},
    {"aten::dropout", draw, kRandom},
    {"aten::exponential", draw, kRandom},
    {"aten::feature_alpha_dropout", draw_channels, kRandom},
    {"aten::feature_dropout", draw_channels, kRandom},
    {"aten::geometric", draw, kRandom},
    {"aten::log_normal", draw, kRandom},
    {"aten::multinomial", draw_rows, kRandom},
    {"aten::native_dropout", draw, kRandom},
    {"aten::normal", draw, kRandom},
    {"aten::poisson", draw, kRandom},
    {"aten::rand_like", draw, kRandom},
    {"aten::randint_like", draw, kRandom},
    {"aten::randn_like", draw, kRandom},
    {"aten::random", draw, kRandom},
    {"aten::rrelu", draw, kRandom},
    {"aten::uniform", draw, kRandom},
};

Verdict draw(OpCall& call) {
  if (!call.none(call.find("generator"))) return Verdict::kNo;
  auto out = align(call, defined_operands(call));
  return out ? local(call, *out) : Verdict::kNo;
}

Verdict draw_channels(OpCall& call) {
  const Placement p = call.tensor(0).placement;
  return p.is_shard() && p.dim <= 1 ? local(call, p) : Verdict::kNo;
}

Verdict draw_rows(OpCall& call) {
  const TensorSpec& self = call.tensor(0);
  if (!call.none(call.find("generator"))) return Verdict::kNo;
  return self.placement.is_shard() && self.dim() == 2 && self.placement.dim == 0 ? local(call, self.placement) : Verdict::kNo;
}

}  // namespace
}  // namespace koila
