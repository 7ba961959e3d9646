// Attention: every sample (and head) by itself.
#include "torchglue/placement/alignment.h"
#include "torchglue/placement/operands.h"

namespace koila {
namespace {

Verdict attention(OpCall&);  // (query, key, value [..., L, E], attn_mask [..., L, S], dropout_p, is_causal, scale, enable_gqa)

const RegisterRules kTable{
    {"aten::scaled_dot_product_attention", attention, kRandom},
};

Verdict attention(OpCall& call) {
  auto out = align(call, defined_operands(call), /*trailing=*/2);
  if (!out) return Verdict::kNo;
  const int64_t ndim = call.tensor(0).dim();
  // Grouped heads: query and key count them differently, so a batch merged into them does not line up.
  if (call.boolean(call.find("enable_gqa")) && out->dim == ndim - 3) return Verdict::kNo;
  return local(call, *out);
}

}  // namespace
}  // namespace koila
