// Gradient accumulation with the full batch's normalisation: the gradient of a mean over all tokens, valid labels or rows of several micro-batches, and not the mean of
// their means.
//
//     // Micro-batches of sentences of different lengths; each loss is the mean over the tokens of its micro-batch.
//     at::Tensor loss = koila::accumulate(koila::valid_labels(labels), [&](size_t i) { return cross_entropy(model->forward(tokens[i]), labels[i]); });
//     optimizer.step();
//
// The loss and the gradients are those of one batch of all of them. An exception leaves all gradients as they were.
//
// Threads: any number at once, as with backward() itself.
//
// C++17; header-only over LibTorch 2.11 or newer on Linux.
#ifndef KOILA_ACCUMULATE_H_
#define KOILA_ACCUMULATE_H_

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full_like.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/autograd.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "koila/detail/undo.h"

namespace koila {

struct AccumulateOptions {
  enum class Reduction : std::uint8_t {
    kMean,  // f returns the mean over the counted items of its micro-batch
    kSum,   // f returns their sum
  };
  Reduction reduction = Reduction::kMean;
  // What gradients are multiplied by, for losses in 16 bits: they are to be divided by it before the update. The returned loss is not.
  double scale = 1;

  AccumulateOptions with_reduction(Reduction kind) const { return {kind, scale}; }
  AccumulateOptions with_scale(double factor) const { return {reduction, factor}; }
};

// How many labels of each micro-batch are not `ignored`, as PyTorch's losses count with ignore_index: the counts for accumulate. Waits for the device once.
inline std::vector<std::int64_t> valid_labels(const std::vector<at::Tensor>& labels, std::int64_t ignored = -100) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> sums;
  for (const at::Tensor& each : labels) {
    TORCH_CHECK_VALUE(each.defined(), "koila::valid_labels: the labels of micro-batch ", sums.size(), " are undefined");
    sums.push_back(each.ne(ignored).sum());
  }
  std::vector<std::int64_t> counts;
  for (const at::Tensor& sum : sums) counts.push_back(sum.item<std::int64_t>());
  return counts;
}

// f(i) for each micro-batch i whose count is not 0, in order: returns its loss, one element with a gradient. counts[i]: how many items that loss is the mean
// (or sum) of. Each is weighted as in a mean over all items, and its gradients are added to the leaves'. Returns the mean over all items: one element, in the
// losses' type or float where that has 16 bits, without a graph. For autocast: f may run under its own guard; the weighing is done in float.
//
// Throws what f throws; c10::ValueError for a negative count, for counts that are all 0 (there is no mean of nothing), and for a loss of several elements.
template <class F>
at::Tensor accumulate(const std::vector<std::int64_t>& counts, F&& f, const AccumulateOptions& options = {}) {
  constexpr bool fits = std::is_invocable_r_v<at::Tensor, F&, std::size_t>;
  static_assert(fits, "koila::accumulate(counts, f): f takes the number of the micro-batch and returns its loss, as in [&](size_t i) { return ...; }");
  TORCH_CHECK_VALUE(at::GradMode::is_enabled(), "koila::accumulate: gradients are switched off here (NoGradGuard); it computes them");
  double items = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    TORCH_CHECK_VALUE(counts[i] >= 0, "koila::accumulate: the count of micro-batch ", i, " is ", counts[i], "; it is how many items its loss is the mean of");
    items += static_cast<double>(counts[i]);
  }
  TORCH_CHECK_VALUE(items > 0, "koila::accumulate: ", counts.empty() ? "there are no micro-batches" : "the counts are all 0", ", and no mean of nothing");
  detail::Gradients gradients;
  at::Tensor total;
  if constexpr (fits) {
    for (std::size_t i = 0; i < counts.size(); ++i) {
      if (counts[i] == 0) continue;
      at::Tensor loss = f(i);
      TORCH_CHECK_VALUE(loss.defined() && loss.numel() == 1, "koila::accumulate: the loss of micro-batch ", i, " ",
                        loss.defined() ? "has the shape " + c10::str(loss.sizes()) : "is undefined", "; it has one element");
      if (loss.element_size() < 4) loss = loss.to(at::kFloat);
      const double share = options.reduction == AccumulateOptions::Reduction::kMean ? static_cast<double>(counts[i]) / items : 1 / items;
      const at::Tensor part = loss.detach() * share;
      total = total.defined() ? total + part : part;
      gradients.put_aside({loss}, 0);
      torch::autograd::backward({loss}, {at::full_like(loss, share * options.scale)});
    }
  }
  gradients.add_up();
  return total;
}

}  // namespace koila

#endif  // KOILA_ACCUMULATE_H_
