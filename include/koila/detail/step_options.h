// Options and result of koila::step. Not for programs to include; koila/step.h does.
#ifndef KOILA_DETAIL_STEP_OPTIONS_H_
#define KOILA_DETAIL_STEP_OPTIONS_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <utility>

#include "koila/batch.h"

namespace koila {

// What a loss over all rows is of the losses over parts of them.
enum class Separable : std::uint8_t {
  kNo,    // nothing that is known: it is given all rows at once
  kSum,   // their sum
  kMean,  // their mean, each part counted by its rows, or by StepOptions::counts
};

struct StepOptions {
  // Rows of a micro-batch to begin with; 0: all rows at once.
  std::int64_t micro_batch = 0;
  // The dimension of the inputs that holds the rows, and that of the outputs; negative ones count from the last.
  std::int64_t dim = 0;
  std::int64_t output_dim = 0;
  Separable separable = Separable::kNo;
  // kMean: how many items the loss counts of each row, such as tokens that are not padding: a tensor of shape (rows), on any device. Undefined: one
  // each. The loss must be a mean over just these.
  at::Tensor counts = {};
  // Where the outputs are gathered and the loss is computed; else where they are made. A loss of host memory's size: at::kCPU.
  std::optional<c10::Device> gather_on = std::nullopt;
  // Whether two rows are run together and apart, once for each place of a call, and the second pass is compared with the first.
  bool verify = true;
  // Of the search for a size: minimum, grow_after, device, empty_caches, cpu_memory, cache, context. BatchOptions::dim is not looked at.
  BatchOptions sizes = {};

  StepOptions with_micro_batch(std::int64_t rows) const { return with(&StepOptions::micro_batch, rows); }
  StepOptions with_dim(std::int64_t dimension) const { return with(&StepOptions::dim, dimension); }
  StepOptions with_output_dim(std::int64_t dimension) const { return with(&StepOptions::output_dim, dimension); }
  StepOptions with_separable(Separable kind) const { return with(&StepOptions::separable, kind); }
  StepOptions with_counts(at::Tensor of_rows) const { return with(&StepOptions::counts, std::move(of_rows)); }
  StepOptions with_gather_on(c10::Device where) const { return with(&StepOptions::gather_on, std::optional<c10::Device>(where)); }
  StepOptions with_verify(bool yes) const { return with(&StepOptions::verify, yes); }
  StepOptions with_sizes(const BatchOptions& options) const { return with(&StepOptions::sizes, options); }

 private:
  template <class T>
  StepOptions with(T StepOptions::* field, T value) const {
    StepOptions changed = *this;
    changed.*field = std::move(value);
    return changed;
  }
};

template <class Outputs>
struct StepResult {
  at::Tensor loss;               // of the full batch; one element, without a graph
  Outputs outputs;               // of all rows, without a graph; with a separable loss in micro-batches: not kept, empty
  std::int64_t micro_batch = 0;  // rows that went through at a time
};

}  // namespace koila

#endif  // KOILA_DETAIL_STEP_OPTIONS_H_
