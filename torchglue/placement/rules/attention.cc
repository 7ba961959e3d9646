// Attention: every sample (and head) by itself.
#include <algorithm>

#include "torchglue/placement/alignment.h"
#include "torchglue/placement/operands.h"

namespace koila {
namespace {

Verdict attention(OpCall&);      // (query, key, value [..., L, E], attn_mask [..., L, S], dropout_p, is_causal, scale, enable_gqa)
Verdict fused_layer(OpCall&);    // (src [N, L, E], weights, ..., mask, mask_type): what nn.TransformerEncoderLayer runs in evaluation
Verdict fused_heads(OpCall&);    // (query, key, value [N, L, E], weights, ..., mask, ..., mask_type): nn.MultiheadAttention's

const RegisterRules kTable{
    {"aten::_native_multi_head_attention", fused_heads},
    {"aten::_transformer_encoder_layer_fwd", fused_layer},
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

// Masks of type 0 are [L, L], for all samples; 1 is [N, L] and 2 is [N, heads, L, L].
bool split_mask(OpCall& call, const Placement& p) {
  const int mask = call.find("mask");
  if (call.none(mask)) return true;
  switch (call.integer(call.find("mask_type"), -1)) {
    case 0:
      return call.tensor(mask).dim() == 2 && call.tensor(mask).placement.is_replicate();
    case 1:
      return call.tensor(mask).dim() == 2 && call.require({mask}, p);
    case 2:
      return call.tensor(mask).dim() == 4 && call.require({mask}, p);
  }
  return false;
}

Verdict fused(OpCall& call, std::initializer_list<int> inputs) {
  const Placement p = call.first_split()->placement;
  if (!p.is_shard() || p.dim != 0) return Verdict::kNo;
  for (ArgRef ref : defined_operands(call)) {
    const bool input = std::find(inputs.begin(), inputs.end(), ref.arg) != inputs.end();
    if (input ? spec(call, ref).dim() != 3 || !call.require(ref, p) : ref.arg != call.find("mask") && !spec(call, ref).placement.is_replicate()) {
      return Verdict::kNo;
    }
  }
  return split_mask(call, p) ? local(call, p) : Verdict::kNo;
}

Verdict fused_layer(OpCall& call) { return fused(call, {0}); }
Verdict fused_heads(OpCall& call) { return fused(call, {0, 1, 2}); }

}  // namespace
}  // namespace koila
