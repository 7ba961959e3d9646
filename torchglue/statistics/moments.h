// Mean and variance of a batch, put together from those of its micro-batches.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace koila {

// What looks at a value's rows as they come by, each once, in order. An add() that throws has added nothing.
class RowObserver {
 public:
  virtual ~RowObserver() = default;
  virtual void add(const at::Tensor& part) = 0;
  virtual void start_over() = 0;
};

// Whether `dims` (ascending, not negative) are all but dimension 1, as batch norm has it: PyTorch has kernels for that.
bool all_but_channels(const at::Tensor& t, at::IntArrayRef dims);

// Count, mean and sum of squared differences from the mean, combined pairwise (Chan, Golub and LeVeque, 1979), in double precision.
class Moments : public RowObserver {
 public:
  // Over the dimensions `dims`, ascending, not negative. Results are of x's type, float32 at least, and without `dims`.
  explicit Moments(std::vector<int64_t> dims) : dims_(std::move(dims)) {}

  void add(const at::Tensor& part) override;
  void start_over() override;

  int64_t count() const { return count_; }  // entries that one mean is of
  at::Tensor mean() const { return mean_.to(dtype_); }
  at::Tensor biased_variance() const { return m2_.div(static_cast<double>(count_)).to(dtype_); }

 private:
  std::vector<int64_t> dims_;
  int64_t count_ = 0;
  at::Tensor mean_, m2_;
  at::ScalarType dtype_ = at::kFloat;
};

}  // namespace koila
