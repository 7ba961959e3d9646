// Mean and variance of a batch, and what becomes of its running statistics, found in another way.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "torchglue/region/region.h"

namespace koila {

// Note [Witnesses of statistics]
// A stage's mean and variance are put together from those of micro-batches, and a buffer of the program's is moved by them: no operator's rule tells of it, and no micro-batch of
// another size makes it again. So a few channels are looked at in another way: all their entries are added up in double precision, and so are the squares of their distances from the
// first, in plain memory; the buffer has to come to (1 - momentum) times what it was, and momentum times the mean, or the unbiased variance. It is looked at before the program gets it: one
// that is wrong is put back.
class StatisticsWitness final : public RowObserver {
 public:
  // Mean and variance over `dims` of x; or, where they are `by_row`, of each row and channel by itself (dimensions 0 and 1), and then the mean over rows. `observer` finds them too.
  StatisticsWitness(RowObserver& observer, std::vector<int64_t> dims, bool by_row, bool look);

  void add(const at::Tensor& part) override;
  void start_over() override;
  bool looks() const { return looks_; }

  // What of these, without `dims`, is not as it should be; "": nothing.
  std::string against(const at::Tensor& mean, const at::Tensor& biased_variance) const;
  // Buffers, of which either may be undefined, before and after they are moved.
  void before(const at::Tensor& running_mean, const at::Tensor& running_var);
  std::string after(const at::Tensor& running_mean, const at::Tensor& running_var, double momentum) const;

 private:
  struct Channel {
    int64_t index = 0;  // among all
    double shift = 0, sum = 0, squares = 0;
    double means = 0, variances = 0;  // by row: summed
    int64_t count = 0, rows = 0;
    std::optional<double> old_mean{}, old_var{};

    double mean() const { return rows > 0 ? means / static_cast<double>(rows) : shift + sum / static_cast<double>(count); }
    double m2() const { return squares - sum * sum / static_cast<double>(count); }
    double biased() const { return m2() / static_cast<double>(count); }
    double unbiased() const { return rows > 0 ? variances / static_cast<double>(rows) : m2() / static_cast<double>(count - 1); }
  };
  void look_at(const at::Tensor& part);
  void add_entries(Channel& channel, const at::Tensor& entries) const;

  RowObserver& observer_;
  std::vector<int64_t> dims_;
  bool by_row_, looks_;
  at::ScalarType type_ = at::kFloat;  // that they are found in
  std::vector<Channel> channels_;
};

// Whether the statistics of such a call are still to be proven, which they count as from now on.
bool statistics_to_prove(const c10::OperatorHandle& op, const at::Tensor& x, const Placement& placement, int64_t batch);

}  // namespace koila
