// Embedding: looks up rows of a table that every micro-batch shares.
// No entry for embedding_bag: its offsets are values that point into the indices of the whole batch; a slice of them points elsewhere.
#include "torchglue/placement/operands.h"

namespace koila {
namespace {

Verdict embedding(OpCall&);  // (weight, indices, padding_idx, scale_grad_by_freq, sparse)
Verdict one_hot(OpCall&);    // (self, num_classes)

const RegisterRules kTable{
    {"aten::embedding", embedding},
    {"aten::one_hot", one_hot},
};

const RegisterRagged kRagged{embedding, one_hot};

Verdict embedding(OpCall& call) {
  const Placement p = call.tensor(1).placement;
  if (!p.is_shard() || !others_replicate(call, {1})) return Verdict::kNo;
  // The gradient by frequency counts over the whole batch.
  if (call.boolean(call.find("scale_grad_by_freq")) || call.boolean(call.find("sparse"))) return Verdict::kNo;
  return local(call, p);
}

Verdict one_hot(OpCall& call) {
  const Placement p = call.tensor(0).placement;
  // Without a number of classes the largest entry of the batch decides.
  return p.is_shard() && call.integer(1, -1) > 0 ? local(call, p) : Verdict::kNo;
}

}  // namespace
}  // namespace koila
