// One exact training step over a batch that does not fit: in micro-batches, with the loss, the gradients and the outputs of the full batch.
//
//     auto result = koila::step(
//         images,
//         [&](at::Tensor rows) { return model->forward(rows); },                                   // for any rows of the inputs
//         [&](at::Tensor scores) { return torch::nn::functional::cross_entropy(scores, labels); });  // over the outputs of all rows
//     optimizer.step();
//
// The loss may be any function of all outputs: contrastive, ranking, a metric. First the outputs of all rows are computed without a graph, micro-batch by
// micro-batch, and gathered; then the loss and its gradient with respect to them; then each micro-batch once more, with a graph, to which its rows of
// that gradient are given (Gao, Zhang, Han and Callan, "Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup", 2021). So a step takes
// one forward pass more, and the memory of one micro-batch, the outputs and the loss. A loss that is a sum or mean over rows, and is said to be so
// (StepOptions::separable), takes one pass. When all rows fit, the step is the plain one: forward, loss, backward.
//
// Memory that runs out: the step begins anew with half the rows, as if nothing had been; the size that went through is remembered as in koila/batch.h.
//
// Exact: the result is the full batch's but for the order in which floating-point numbers are added up; the second pass draws the random numbers that
// the first did. Or refused: where rows depend on one another in `forward` (batch norm in training; whatever two rows show when they are run
// together and apart), where it writes to tensors that were there before (a counter, a memory bank), where a hook looks at gradients in the making, and where
// the second pass computes something else than the first, the step throws, with a sentence that says why. With koila preloaded or linked, its own rescue
// comes first, which has exact batch norm.
//
// A step that throws has changed no gradient, no tensor that it wrote to, and no default generator. Not so where all rows were run at once and backward ran
// out below a hook or in a graph from before the step: what is left then is what plain PyTorch leaves, and nothing is tried again.
//
// Threads: any number at once, each with its own step. Steps in micro-batches on the same device wait for one another, since all draw from that device's
// generator; other code that draws from it meanwhile makes the step throw (the second pass is not the first's).
//
// C++17; header-only over LibTorch 2.11 or newer on Linux.
#ifndef KOILA_STEP_H_
#define KOILA_STEP_H_

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <string>
#include <typeinfo>
#include <utility>

#include "koila/batch.h"
#include "koila/detail/step_run.h"

namespace koila {

// One step over `inputs`, a structure of tensors with as many rows each: a tensor, or a std::vector, array, optional, pair, tuple, map or
// unordered_map of such. forward(rows) takes the same structure with some of the rows, or the parts of a tuple one by one, and returns a structure of
// tensors with a row for each. loss(outputs), loss(outputs, inputs) or loss(outputs, begin, end), for the rows [begin, end), returns one element that has
// a gradient. Gradients are added to those of the leaves, as backward() does it.
//
// Throws what forward and loss throw; c10::ValueError and c10::IndexError for misuse, and for what cannot be run in micro-batches where they were asked
// for; c10::OutOfMemoryError, with the reason why it is not run in micro-batches, where memory ran out.
template <class I, class F, class L>
auto step(const I& inputs, F&& forward, L&& loss, const StepOptions& options = {}, CallSite site = CallSite::here()) {
  static_assert(detail::Tensors<I>::supported,
                "koila::step(inputs, forward, loss): inputs are a tensor, or a std::vector, array, optional, pair, tuple, map or unordered_map of tensors");
  constexpr bool fits = detail::can_call<F, I>;
  static_assert(fits, "koila::step(inputs, forward, loss): forward takes rows of the inputs, as in [&](at::Tensor rows) { ... }");
  if constexpr (fits) {
    TORCH_CHECK_VALUE(at::GradMode::is_enabled() && !c10::InferenceMode::is_enabled(),
                      "koila::step: gradients are switched off here (NoGradGuard or InferenceMode); a step computes them");
    const std::string_view context = options.sizes.context;
    detail::StepRun<I, std::remove_reference_t<F>, std::remove_reference_t<L>> run(inputs, forward, loss, options,
                                                                                   {site.file, site.line, typeid(std::decay_t<F>), std::string(context)});
    BatchOptions sizes = options.sizes;
    const std::int64_t rows = std::max<std::int64_t>(run.rows(), 1);
    const std::int64_t initial = options.micro_batch > 0 ? std::min(options.micro_batch, rows) : rows;
    sizes.minimum = std::min(sizes.minimum, initial);  // of a last batch with fewer rows
    detail::Sizes search("koila::step", initial, sizes, detail::key_of(forward, site, sizes, run.device()));
    std::string ran_out;
    for (int changed = 0;;) {
      const std::int64_t tried = search.size();
      try {
        auto result = run.run(tried);
        search.went_through(tried);
        return result;
      } catch (const detail::StepRefusal& refusal) {
        // Another thread may have drawn from the same generator; not again and again.
        if (!refusal.changed || ++changed == 3) refusal.raise(ran_out, tried);
      } catch (const std::exception& error) {
        if (!run.undone()) throw;
        search.ran_out(error, tried);
        ran_out = error.what();
      }
      search.free_caches();
    }
  }
}

}  // namespace koila

#endif  // KOILA_STEP_H_
