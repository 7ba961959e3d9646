#include "tests/placement/cases.h"

namespace koila::cases {

namespace {

constexpr int64_t kNone = 0, kMean = 1, kSum = 2;

// Every reduction of a loss whose unreduced result has this placement. `before` and `after` stand around the reduction argument.
void reductions(std::vector<Case>& cases, const char* op, std::vector<Argument> before, const Placement& unreduced, std::vector<Argument> after = {}) {
  for (int64_t reduction : {kNone, kMean, kSum}) {
    std::vector<Argument> args = before;
    args.emplace_back(reduction);
    args.insert(args.end(), after.begin(), after.end());
    cases.push_back({op, args, kLocal, reduction == kNone ? unreduced : P()});
  }
}

void pointwise(std::vector<Case>& cases) {
  for (const char* op : {"aten::mse_loss", "aten::l1_loss", "aten::smooth_l1_loss", "aten::huber_loss", "aten::soft_margin_loss", "aten::kl_div"}) {
    const auto target = [&](Operand o) { return std::string(op) == "aten::soft_margin_loss" ? constant(o) : o; };
    reductions(cases, op, {shard({B, 3}), target(replicate({B, 3}, Fill::kUnit))}, S(0));
    reductions(cases, op, {replicate({2, 6 * B}), target(shard({2, 6 * B}, 1, 3, 2, Fill::kUnit))}, S(1, 3, 2));
    cases.push_back({op, {partial({3}), replicate({3}, Fill::kUnit)}, kNo});
    cases.push_back({op, {shard({B, B}), shard({B, B}, 1)}, kNo});
  }
  cases.push_back({"aten::mse_loss", {shard({B, 1}), replicate({B})}, kNo});  // broadcast to [B, B]
  reductions(cases, "aten::hinge_embedding_loss", {shard({B, 3}), replicate({B, 3}, Fill::kSigns), 1.0}, S(0));
  reductions(cases, "aten::margin_ranking_loss", {shard({B}), shard({B}), replicate({B}, Fill::kSigns), 0.2}, S(0));
  reductions(cases, "aten::poisson_nll_loss", {shard({B, 3}), replicate({B, 3}, Fill::kPositive), true, true, 1e-8}, S(0));
  reductions(cases, "aten::binary_cross_entropy", {shard({B, 3}, Fill::kUnit), replicate({B, 3}, Fill::kUnit), none()}, S(0));
  reductions(cases, "aten::binary_cross_entropy", {shard({B, 3}, Fill::kUnit), shard({B, 3}, Fill::kUnit), constant(replicate({B, 1}, Fill::kUnit))}, S(0));
  reductions(cases, "aten::binary_cross_entropy", {shard({B, 1}, Fill::kUnit), replicate({B, 1}, Fill::kUnit), none()}, S(0));
  reductions(cases, "aten::binary_cross_entropy_with_logits", {shard({B, 3}), replicate({B, 3}, Fill::kUnit), none(), none()}, S(0));
  reductions(cases, "aten::binary_cross_entropy_with_logits",
             {shard({B, 3}), replicate({B, 3}, Fill::kUnit), constant(replicate({B, 1}, Fill::kUnit)), constant(replicate({3}, Fill::kPositive))}, S(0));
}

void by_class(std::vector<Case>& cases) {
  for (const char* op : {"aten::nll_loss", "aten::nll_loss_nd", "aten::cross_entropy_loss"}) {
    const auto labels = [] { return replicate({B}, Fill::kIndex); };
    reductions(cases, op, {shard({B, 3}), labels(), none()}, S(0), {-100});
    reductions(cases, op, {shard({B, 3}), ignoring(labels(), {0, 3}), none()}, S(0), {-100});            // ragged counts
    reductions(cases, op, {shard({B, 3}), ignoring(labels(), {2}), constant(replicate({3}, Fill::kPositive))}, S(0), {-100});
    reductions(cases, op, {shard({B, 3}), shard({B}, Fill::kIndex), none()}, S(0), {1});                // ignore class 1
    reductions(cases, op, {replicate({B, 3}), shard({B}, Fill::kIndex), none()}, S(0), {-100});
    reductions(cases, op, {shard({4 * B, 3}, 0, 1, 4), ignoring(replicate({4 * B}, Fill::kIndex), {0, 1, 2, 3, 9}), none()}, S(0, 1, 4), {-100});
    reductions(cases, op, {shard({4 * B, 3}, 0, 4), ignoring(replicate({4 * B}, Fill::kIndex), {0, 5, 10, 15}), none()}, S(0, 4), {-100});
    // nothing counts: nan in the mean, as the full batch has it
    cases.push_back({op, {shard({B, 3}), ignoring(labels(), {0, 1, 2, 3, 4}), none(), kMean, -100}, kLocal, P()});
    cases.push_back({op, {shard({2, B}, 1), replicate({2}, Fill::kIndex), none(), kMean, -100}, kNo});
    cases.push_back({op, {shard({B}), replicate({}, Fill::kIndex), none(), kMean, -100}, kNo});
    cases.push_back({op, {partial({2, 3}), replicate({2}, Fill::kIndex), none(), kMean, -100}, kNo});
    cases.push_back({op, {as(shard({B, 3}), c10::ScalarType::Half), replicate({B}, Fill::kIndex), none(), kMean, -100}, kNo});
  }
  for (const char* op : {"aten::nll_loss_nd", "aten::cross_entropy_loss"}) {
    reductions(cases, op, {shard({B, 3, 4}), ignoring(replicate({B, 4}, Fill::kIndex), {0, 7}), none()}, S(0), {-100});
    reductions(cases, op, {shard({2, 3, B}, 2), ignoring(replicate({2, B}, Fill::kIndex), {1, 2, 3}), none()}, S(1), {-100});
    reductions(cases, op, {replicate({2, 3, 2, B}), shard({2, 2, B}, 2, 1, 1, Fill::kIndex), none()}, S(2), {-100});
  }
  reductions(cases, "aten::nll_loss2d", {shard({B, 3, 2, 2}), ignoring(replicate({B, 2, 2}, Fill::kIndex), {3, 4}), constant(replicate({3}, Fill::kPositive))}, S(0), {-100});
  const char* op = "aten::cross_entropy_loss";
  reductions(cases, op, {shard({B, 3}), ignoring(replicate({B}, Fill::kIndex), {1}), none()}, S(0), {-100, 0.2});
  reductions(cases, op, {shard({B, 3}), ignoring(replicate({B}, Fill::kIndex), {1}), constant(replicate({3}, Fill::kPositive))}, S(0), {-100, 0.2});
  reductions(cases, op, {shard({B, 3, 2}), ignoring(replicate({B, 2}, Fill::kIndex), {1, 5, 6}), constant(replicate({3}, Fill::kPositive))}, S(0), {-100, 0.2});
  reductions(cases, op, {shard({B, 3}), replicate({B, 3}, Fill::kUnit), none()}, S(0), {-100});         // probabilities
  reductions(cases, op, {shard({B, 3}), replicate({B, 3}, Fill::kUnit), replicate({3}, Fill::kPositive)}, S(0), {-100, 0.2});
  reductions(cases, op, {replicate({B, 3, 2}), shard({B, 3, 2}, Fill::kUnit), none()}, S(0), {-100});
  reductions(cases, op, {shard({2, 3, B}, 2), replicate({2, 3, B}, Fill::kUnit), none()}, S(1), {-100});
}

void by_row(std::vector<Case>& cases) {
  const auto signs = [] { return replicate({B}, Fill::kSigns); };
  reductions(cases, "aten::cosine_embedding_loss", {shard({B, 3}), replicate({B, 3}), signs(), 0.1}, S(0));
  cases.push_back({"aten::cosine_embedding_loss", {shard({B}), replicate({B}), replicate({}, Fill::kSigns), 0.1, kMean}, kNo});
  reductions(cases, "aten::multi_margin_loss", {shard({B, 3}), replicate({B}, Fill::kIndex), 1.0, 1.0, none()}, S(0));
  reductions(cases, "aten::multi_margin_loss", {shard({B, 3}), shard({B}, Fill::kIndex), 2.0, 0.5, constant(replicate({3}, Fill::kPositive))}, S(0));
  cases.push_back({"aten::multi_margin_loss", {shard({B}), replicate({}, Fill::kIndex)}, kNo});
  reductions(cases, "aten::multilabel_margin_loss", {shard({B, 3}), replicate({B, 3}, Fill::kIndex)}, S(0));
  for (bool swap : {false, true}) {
    reductions(cases, "aten::triplet_margin_loss", {shard({B, 3}), shard({B, 3}), replicate({B, 3}), 1.0, 2.0, 1e-6, swap}, S(0));
  }
  reductions(cases, "aten::triplet_margin_loss", {shard({2, B, 3}, 1), shard({2, B, 3}, 1), shard({2, B, 3}, 1), 1.0, 2.0, 1e-6, false}, S(1));
  cases.push_back({"aten::triplet_margin_loss", {shard({2, B}, 1), shard({2, B}, 1), shard({2, B}, 1)}, kNo});

  const Operand lengths = with_values({7, 7, 7, 7, 7});
  const Operand labels = replicate({B, 2}, Fill::kLabel);
  for (int64_t reduction : {kNone, kMean, kSum}) {
    cases.push_back({"aten::ctc_loss.Tensor", {shard({7, B, 4}, 1), labels, lengths, with_values({2, 1, 2, 2, 1}), 0, reduction}, kLocal, reduction == kNone ? S(0) : P()});
  }
  const std::vector<int64_t> long_enough(B, 7), of_labels = {2, 1, 2, 0, 1};
  for (int64_t reduction : {kNone, kMean, kSum}) {
    const Placement out = reduction == kNone ? S(0) : P();
    cases.push_back({"aten::ctc_loss.IntList", {shard({7, B, 4}, 1), labels, long_enough, of_labels, 0, reduction}, kLocal, out});
    cases.push_back({"aten::ctc_loss.IntList", {shard({7, B, 4}, 1), replicate({6}, Fill::kLabel), long_enough, of_labels, 0, reduction}, kLocal, out});  // one row behind the other
  }
  cases.push_back({"aten::ctc_loss.IntList", {shard({7, 2 * B, 4}, 1, 1, 2), replicate({2 * B, 2}, Fill::kLabel), std::vector<int64_t>(2 * B, 7), std::vector<int64_t>(2 * B, 2), 0, kNone}, kLocal, S(0, 1, 2)});
  cases.push_back({"aten::ctc_loss.IntList", {shard({7, 2 * B, 4}, 1, 2, 1), replicate({2 * B, 2}, Fill::kLabel), std::vector<int64_t>(2 * B, 7), std::vector<int64_t>(2 * B, 2)}, kNo});
  cases.push_back({"aten::ctc_loss.IntList", {shard({7, B, 4}, 1), replicate({7}, Fill::kLabel), long_enough, of_labels}, kNo});  // other numbers than there are targets
  cases.push_back({"aten::ctc_loss.Tensor", {shard({7, B, 4}, 1), replicate({8}, Fill::kIndex), lengths, with_values({2, 1, 2, 2, 1})}, kNo});
}

void distances(std::vector<Case>& cases) {
  cases.insert(cases.end(), {
    {"aten::pairwise_distance", {shard({B, 3}), replicate({B, 3})}, kLocal, S(0)},
    {"aten::pairwise_distance", {shard({2, B, 3}, 1), replicate({3})}, kLocal, S(1)},
    {"aten::pairwise_distance", {shard({B, 3}), replicate({B, 3}), 1.0, 1e-6, true}, kLocal, S(0)},
    {"aten::pairwise_distance", {shard({2, B}, 1), shard({2, B}, 1)}, kNo},
    {"aten::cosine_similarity", {shard({B, 3}), replicate({B, 3})}, kLocal, S(0)},
    {"aten::cosine_similarity", {shard({B, 3}), replicate({2, 1, 3}), -1}, kLocal, S(1)},
    {"aten::cosine_similarity", {shard({3, B}, 1), shard({3, B}, 1), 0}, kLocal, S(0)},
    {"aten::cosine_similarity", {shard({B, 3}), shard({B, 3}), 0}, kNo},
    {"aten::cosine_similarity", {shard({B, 1, 3}), shard({1, B, 3}, 1), -1}, kNo},
    {"aten::cdist", {shard({B, 2, 3}), replicate({B, 4, 3})}, kLocal, S(0)},
    {"aten::cdist", {shard({B, 2, 3}), replicate({4, 3})}, kLocal, S(0)},
    {"aten::cdist", {shard({B, 3}), replicate({4, 3})}, kLocal, S(0)},
    {"aten::cdist", {replicate({4, 3}), shard({2 * B, 3}, 0, 1, 2)}, kLocal, S(1, 1, 2)},
    {"aten::cdist", {shard({B, 3}), replicate({30, 3}), 1.0}, kLocal, S(0)},
    {"aten::cdist", {shard({B, 3}), shard({B, 3})}, kNo},
    {"aten::cdist", {shard({B, 3}, 1), shard({4, B}, 1)}, kNo},
  });
}

}  // namespace

std::vector<Case> loss_cases() {
  std::vector<Case> cases;
  pointwise(cases);
  by_class(cases);
  by_row(cases);
  distances(cases);
  return cases;
}

}  // namespace koila::cases
