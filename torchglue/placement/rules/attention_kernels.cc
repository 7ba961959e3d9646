// Attention by the kernels' own interfaces, which compiled graphs and libraries call: every sample by itself.
//
// Beside the output and the sums of exponentials, which have rows, a kernel returns what only its own backward pass reads: the longest sequences as numbers, which are the same for any rows, and the
// state of the generator that it drew from. Where nothing is drawn nobody has written to that, or read it. With dropout it says which draws were made, and the call runs whole.
// Sequences that lie one behind the other (cum_seq, cu_seqlens) are told apart by values that count within the whole batch: whole, too.
#include "torchglue/placement/alignment.h"
#include "torchglue/placement/operands.h"

namespace koila {
namespace {

Verdict heads_first(OpCall&);  // (query, key, value [N, H, L, E], bias [N, H, L, S], ...)
Verdict heads_last(OpCall&);   // (query, key, value [N, L, H, E], bias [N, H, L, S], ...)

const RegisterRules kTable{
    {"aten::_cudnn_attention_forward", heads_first, kRandom},
    {"aten::_efficient_attention_forward", heads_last, kRandom},
    {"aten::_flash_attention_forward", heads_last, kRandom},
    {"aten::_scaled_dot_product_cudnn_attention", heads_first, kRandom},
    {"aten::_scaled_dot_product_efficient_attention", heads_first, kRandom},
    {"aten::_scaled_dot_product_flash_attention", heads_first, kRandom},
    {"aten::_scaled_dot_product_flash_attention_for_cpu", heads_first},
};

bool draws_or_shows_its_draws(const OpCall& call) {
  return call.number(call.find("dropout_p")) != 0 || call.boolean(call.find("return_debug_mask"));
}

// Arguments that count within the whole batch, or scale all of it.
bool has_any(const OpCall& call, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (!call.none(call.find(name))) return true;
  }
  return false;
}

// The output and the sums of exponentials; the rest is the kernel's.
Verdict by_sample(OpCall& call, const Placement& p) {
  call.output(0, p);
  call.output(1, p);
  for (int i = 2; i < static_cast<int>(call.schema().returns().size()); ++i) call.leave_aside(i);
  return Verdict::kLocal;
}

Verdict heads_first(OpCall& call) {
  if (draws_or_shows_its_draws(call) || has_any(call, {"cum_seq_q", "cum_seq_k", "q_descale", "k_descale", "v_descale"})) return Verdict::kNo;
  for (int i = 0; i < 3; ++i) {
    if (call.tensor(i).dim() != 4) return Verdict::kNo;
  }
  const auto out = align(call, defined_operands(call), /*trailing=*/2);
  // Where query and key count their heads differently, a batch that lies in them does not line up.
  if (!out || (out->dim == 1 && call.tensor(0).sizes[1] != call.tensor(1).sizes[1])) return Verdict::kNo;
  return by_sample(call, *out);
}

Verdict heads_last(OpCall& call) {
  if (draws_or_shows_its_draws(call)) return Verdict::kNo;
  if (has_any(call, {"cum_seq_q", "cum_seq_k", "cu_seqlens_q", "cu_seqlens_k", "seqlen_k", "block_table", "q_descale", "k_descale", "v_descale"})) return Verdict::kNo;
  const Placement p = call.first_split()->placement;
  if (!p.is_shard() || p.dim != 0) return Verdict::kNo;
  for (ArgRef ref : defined_operands(call)) {
    const TensorSpec& t = spec(call, ref);
    const int64_t own = ref.arg < 3 ? 4 : ref.arg == call.find("bias") ? 4 : ref.arg == call.find("alibi_slopes") ? 2 : 1;
    if (ref.arg < 3 && t.dim() != own) return Verdict::kNo;
    // A bias or slopes without a sample of their own are for all.
    const bool for_all = ref.arg >= 3 && (t.dim() < own || t.sizes[0] == 1);
    if (for_all ? !t.placement.is_replicate() : !call.require(ref, p)) return Verdict::kNo;
  }
  return by_sample(call, p);
}

}  // namespace
}  // namespace koila
