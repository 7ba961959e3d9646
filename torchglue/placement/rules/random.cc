// Random draws inside a region. Noise, which depends on a shape and on no value, is drawn once for the full batch, as the program would
// draw it, and sliced where it is used. Samples (multinomial, bernoulli, normal of means) depend on values, but no gradient flows through
// them: they have no rule here, and are drawn at the full batch too, since an action or a mask that is another one is another step. What
// depends on values and is differentiated (dropout) draws per micro-batch, from the same distribution. A generator of the program's own is
// left alone.
#include "torchglue/placement/alignment.h"
#include "torchglue/placement/operands.h"

namespace koila {
namespace {

Verdict noise(OpCall&);         // (self, ...): of self's shape, or into self
Verdict draw(OpCall&);          // a draw for every entry
Verdict noisy_slope(OpCall&);    // (self, lower, upper, training)
Verdict draw_channels(OpCall&); // a draw for every [n, c]: dropout2d

const RegisterRules kTable{
    {"aten::alpha_dropout", draw, kRandom},
    {"aten::bernoulli.p", noise, kRandom},
    {"aten::cauchy", noise, kRandom},
    {"aten::dropout", draw, kRandom},
    {"aten::exponential", noise, kRandom},
    {"aten::feature_alpha_dropout", draw_channels, kRandom},
    {"aten::feature_dropout", draw_channels, kRandom},
    {"aten::geometric", noise, kRandom},
    {"aten::log_normal", noise, kRandom},
    {"aten::native_dropout", draw, kRandom},
    {"aten::rand_like", noise, kRandom},
    {"aten::randint_like", noise, kRandom},
    {"aten::randn_like", noise, kRandom},
    {"aten::random", noise, kRandom},
    {"aten::rrelu", noisy_slope, kRandom},
    {"aten::uniform", noise, kRandom},
};

const RegisterRagged kRagged{draw};

bool fills_self(const OpCall& call) { return call.schema().name().back() == '_'; }

// A bound that is a tensor is a value, and is read.
Verdict noise(OpCall& call) { return fills_self(call) || defined_operands(call).size() > 1 ? Verdict::kNo : Verdict::kReal; }

Verdict draw(OpCall& call) {
  if (!call.none(call.find("generator"))) return Verdict::kNo;
  auto out = align(call, defined_operands(call));
  return out ? local(call, *out) : Verdict::kNo;
}

// Its slopes in training are noise, and no mask: they are the plain run's, which are drawn for the batch.
Verdict noisy_slope(OpCall& call) { return call.boolean(call.find("training")) ? Verdict::kNo : draw(call); }

Verdict draw_channels(OpCall& call) {
  const Placement p = call.tensor(0).placement;
  return p.is_shard() && p.dim <= 1 ? local(call, p) : Verdict::kNo;
}

}  // namespace
}  // namespace koila
