// Losses, normalised exactly: `mean` divides by what the full batch holds, whatever its micro-batches hold.
#include <ATen/autocast_mode.h>
#include <ATen/core/Reduction.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/masked_select.h>
#include <ATen/ops/ne.h>
#include <ATen/ops/sum.h>

#include <algorithm>

#include "torchglue/placement/alignment.h"
#include "torchglue/placement/operands.h"

namespace koila {
namespace {

Verdict pointwise_loss(OpCall&);   // a loss per entry; weights broadcast
Verdict row_loss(OpCall&);         // a loss per row: every operand but `weight` goes along with dimension 0
Verdict triplet_loss(OpCall&);     // a loss per vector of the last dimension
Verdict ctc_loss(OpCall&);         // (log_probs [T, N, C], targets [N, S], lengths [N], lengths [N])
Verdict ctc_of_lists(OpCall&);     // the same, with the lengths as lists of numbers, and targets [sum of their lengths] as well
Verdict class_loss(OpCall&);       // cross entropy and NLL
Verdict vector_distance(OpCall&);  // (x1, x2): over the last dimension
Verdict similarity(OpCall&);       // (x1, x2, dim)
Verdict matrix_distance(OpCall&);  // (x1 [..., P, M], x2 [..., R, M])

const RegisterRules kTable{
    {"aten::binary_cross_entropy", pointwise_loss},
    {"aten::binary_cross_entropy_with_logits", pointwise_loss},
    {"aten::hinge_embedding_loss", pointwise_loss},
    {"aten::huber_loss", pointwise_loss},
    {"aten::kl_div", pointwise_loss},
    {"aten::l1_loss", pointwise_loss},
    {"aten::margin_ranking_loss", pointwise_loss},
    {"aten::mse_loss", pointwise_loss},
    {"aten::poisson_nll_loss", pointwise_loss},
    {"aten::smooth_l1_loss", pointwise_loss},
    {"aten::soft_margin_loss", pointwise_loss},

    {"aten::cosine_embedding_loss", row_loss},
    {"aten::ctc_loss.IntList", ctc_of_lists},
    {"aten::ctc_loss.Tensor", ctc_loss},
    {"aten::multi_margin_loss", row_loss},
    {"aten::multilabel_margin_loss", row_loss},
    {"aten::triplet_margin_loss", triplet_loss},

    {"aten::cross_entropy_loss", class_loss},
    {"aten::nll_loss", class_loss},
    {"aten::nll_loss2d", class_loss},
    {"aten::nll_loss_nd", class_loss},

    {"aten::cdist", matrix_distance},
    {"aten::cosine_similarity", similarity},
    {"aten::pairwise_distance", vector_distance},
};

const RegisterRagged kRagged{class_loss, pointwise_loss};

// A reduction whose terms come in equal number from every row: the mean of a micro-batch is its share, times rows / B.
Verdict reduced(OpCall& call, const Placement& unreduced) {
  switch (call.integer(call.find("reduction"), at::Reduction::Mean)) {
    case at::Reduction::None:
      return local(call, unreduced);
    case at::Reduction::Mean:
      if (unreduced.ragged) return Verdict::kNo;
      call.scale_outputs_by_rows();
      return local(call, Placement::partial());
    case at::Reduction::Sum:
      return local(call, Placement::partial());
  }
  return Verdict::kNo;
}

Verdict pointwise_loss(OpCall& call) {
  // Broadcast, some of these losses divide their gradient by the wrong number of entries. The functions of torch.nn.functional expand first.
  if (call.tensor(0).sizes != call.tensor(1).sizes) return Verdict::kNo;
  auto out = align(call, defined_operands(call));
  // Of one entry in all, rows have one or none: what has one place for it goes along, and is not what each row reads.
  if (!out || !call.require({0}, *out) || !call.require({1}, *out)) return Verdict::kNo;
  const int reduction = call.find("reduction");
  const bool is_mean = call.integer(reduction, at::Reduction::Mean) == at::Reduction::Mean;
  if (!is_mean || (!out->ragged && !divides_once(call.tensor(0).dtype, call.tensor(0).dtype))) return reduced(call, *out);
  call.set_argument(reduction, static_cast<int64_t>(at::Reduction::Sum));
  return mean_of_sum(call);
}

Verdict row_loss(OpCall& call) {
  const TensorSpec* split = call.first_split();
  const Placement p = split->placement;
  if (!p.is_shard() || p.dim != 0) return Verdict::kNo;
  const int weight = call.find("weight");  // per class
  for (ArgRef ref : defined_operands(call)) {
    if (ref.arg == weight ? !spec(call, ref).placement.is_replicate() : !call.require(ref, p)) return Verdict::kNo;
  }
  // [C] alone is one sample.
  if (call.tensor(0).dim() != 2) return Verdict::kNo;
  return reduced(call, p);
}

Verdict triplet_loss(OpCall& call) {
  auto out = align(call, defined_operands(call), /*trailing=*/1);
  return out ? reduced(call, *out) : Verdict::kNo;
}

Verdict ctc_loss(OpCall& call) {
  const Placement p = call.first_split()->placement;
  // Targets in one row after the other have no place that says where a row begins.
  if (!p.is_shard() || call.tensor(0).dim() != 3 || call.tensor(1).dim() != 2) return Verdict::kNo;
  const bool along = call.require({0}, p.at(1)) && call.require({1}, p.at(0)) && call.require({2}, p.at(0)) && call.require({3}, p.at(0));
  return along ? reduced(call, p.at(0)) : Verdict::kNo;
}

// The targets of each row, one row after the other, `inner` of them for each row of the batch.
std::shared_ptr<const Ragged> by_lengths(const std::vector<int64_t>& lengths, int64_t inner) {
  Ragged rows;
  int64_t first = 0;
  for (size_t i = 0; i < lengths.size(); ++i) {
    if (static_cast<int64_t>(i) % inner == 0) rows.first.push_back(first);
    first += lengths[i];
  }
  rows.first.push_back(first);
  return std::make_shared<const Ragged>(std::move(rows));
}

Verdict ctc_of_lists(OpCall& call) {
  const Placement p = call.tensor(0).placement;
  const auto inputs = call.integers(2), targets = call.integers(3);
  const int64_t rows = p.is_shard() ? p.extent(call.batch()) : -1;
  if (p.dim != 1 || p.outer != 1 || p.ragged || call.tensor(0).dim() != 3 || !inputs || !targets) return Verdict::kNo;
  if (static_cast<int64_t>(inputs->size()) != rows || static_cast<int64_t>(targets->size()) != rows) return Verdict::kNo;
  const bool one_behind_the_other = call.tensor(1).dim() == 1;
  if (!call.require({1}, one_behind_the_other ? Placement::shard(0, by_lengths(*targets, p.inner)) : p.at(0))) return Verdict::kNo;
  call.slice_literal(2, p.inner);
  call.slice_literal(3, p.inner);
  return reduced(call, p.at(0));
}

// --- cross entropy and NLL: (self [N, C, d1, ...], target [N, d1, ...], weight [C], reduction, ignore_index, label_smoothing) ---

// What ATen divides by: the targets that count, or the sum of their classes' weights. The same for label smoothing.
at::Tensor counted_targets(const std::vector<c10::IValue>& args) {
  const at::Tensor& target = args[1].toTensor();
  const at::Tensor counts = at::ne(target, args[4].toInt());
  if (!args[2].isTensor() || !args[2].toTensor().defined()) return at::sum(counts);
  return at::sum(at::gather(args[2].toTensor().detach(), 0, at::masked_select(target, counts)));
}

Verdict class_loss(OpCall& call) {
  const TensorSpec& self = call.tensor(0);
  const TensorSpec& target = call.tensor(1);
  if (self.dim() < 2 || !call.tensor(2).placement.is_replicate()) return Verdict::kNo;  // [C] alone is one sample
  const bool probabilities = self.sizes == target.sizes;  // ATen's own test
  auto target_place = [&](int64_t d) { return probabilities || d == 0 ? d : d - 1; };
  auto self_place = [&](int64_t d) { return probabilities || d == 0 ? d : d + 1; };

  const bool by_self = !self.placement.is_replicate();
  const Placement p = by_self ? self.placement : target.placement.at(self_place(target.placement.dim));
  if (!(by_self ? self : target).placement.is_shard() || p.dim == 1) return Verdict::kNo;
  const Placement along = p.at(target_place(p.dim));
  if (!call.require({0}, p) || !call.require({1}, along)) return Verdict::kNo;

  // Without the class dimension the result has the shape of integer targets.
  const Placement unreduced = p.at(p.dim == 0 ? 0 : p.dim - 1);
  const int reduction = call.find("reduction");
  if (probabilities || call.integer(reduction, at::Reduction::Mean) != at::Reduction::Mean) return reduced(call, unreduced);

  // Rows count differently, so each micro-batch sums. In half precision that sum may overflow where the mean does not; autocast
  // computes these losses in float.
  if (self.dtype == c10::ScalarType::Half && !at::autocast::is_autocast_enabled(at::kCUDA)) return Verdict::kNo;
  call.set_argument(reduction, static_cast<int64_t>(at::Reduction::Sum));
  std::vector<int> real = {1};
  if (call.tensor(2).defined) real.push_back(2);
  call.divide_outputs_by(std::move(real), counted_targets);
  return local(call, Placement::partial());
}

// --- distances ---

Verdict vector_distance(OpCall& call) {
  auto out = align(call, defined_operands(call), /*trailing=*/1);
  return out ? local(call, *out) : Verdict::kNo;
}

Verdict similarity(OpCall& call) {
  auto out = align(call, defined_operands(call));
  auto dim = wrap_dim(call.integer(call.find("dim"), 1), std::max(call.tensor(0).dim(), call.tensor(1).dim()));
  if (!out || !dim || *dim == out->dim) return Verdict::kNo;
  return local(call, out->at(out->dim - (*dim < out->dim ? 1 : 0)));
}

Verdict matrix_distance(OpCall& call) {
  // How distances are computed depends on how many there are: micro-batches do as the full batch would.
  constexpr int64_t kFew = 25, kAlwaysByProduct = 1, kNeverByProduct = 2;
  const TensorSpec &x1 = call.tensor(0), &x2 = call.tensor(1);
  const int mode = call.find("compute_mode");
  if (x1.dim() < 2 || x2.dim() < 2) return Verdict::kNo;
  if (call.none(mode) || call.integer(mode) == 0) {
    const bool many = x1.sizes[x1.dim() - 2] > kFew || x2.sizes[x2.dim() - 2] > kFew;
    call.set_argument(mode, many ? kAlwaysByProduct : kNeverByProduct);
  }
  if (auto out = align(call, defined_operands(call), /*trailing=*/2)) return local(call, *out);
  // The rows of one against all of the other.
  const int64_t dims = std::max(x1.dim(), x2.dim());
  if (x1.placement.is_shard() && x1.placement.dim == x1.dim() - 2 && x2.placement.is_replicate()) return local(call, x1.placement.at(dims - 2));
  if (x2.placement.is_shard() && x2.placement.dim == x2.dim() - 2 && x1.placement.is_replicate()) return local(call, x2.placement.at(dims - 1));
  return Verdict::kNo;
}

}  // namespace
}  // namespace koila
