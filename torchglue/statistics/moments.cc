#include "torchglue/statistics/moments.h"

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>

#include <algorithm>
#include <utility>

namespace koila {

bool all_but_channels(const at::Tensor& t, at::IntArrayRef dims) {
  return t.dim() >= 2 && static_cast<int64_t>(dims.size()) == t.dim() - 1 && std::find(dims.begin(), dims.end(), 1) == dims.end();
}

void Moments::add(const at::Tensor& part) {
  if (part.numel() == 0) return;
  const at::Tensor x = part.to(at::toOpMathType(part.scalar_type()));
  dtype_ = x.scalar_type();
  at::Tensor mean, var;
  if (all_but_channels(x, dims_)) {
    std::tie(mean, var) = at::batch_norm_update_stats(x, {}, {}, 0.0);
  } else {
    std::tie(var, mean) = at::var_mean(x, at::OptionalIntArrayRef(dims_), /*correction=*/at::Scalar(0), /*keepdim=*/false);
  }
  int64_t n = 1;
  for (int64_t dim : dims_) n *= x.size(dim);
  // The distance between the means of a few entries each, far from zero, would be mostly rounding in single precision.
  constexpr int64_t kFew = 4096;
  mean = n < kFew ? x.sum(dims_, /*keepdim=*/false, at::kDouble).div_(static_cast<double>(n)) : mean.to(at::kDouble);
  const at::Tensor m2 = var.to(at::kDouble).mul_(static_cast<double>(n));
  if (count_ == 0) {
    mean_ = mean;
    m2_ = m2;
    count_ = n;
    return;
  }
  const double total = static_cast<double>(count_ + n);
  const at::Tensor delta = mean - mean_;
  // Nothing changes before all of it is there: memory may run out on the way, and the same rows come again.
  at::Tensor next_m2 = m2_ + m2 + delta.square() * (static_cast<double>(count_) * static_cast<double>(n) / total);
  at::Tensor next_mean = mean_ + delta * (static_cast<double>(n) / total);
  m2_ = std::move(next_m2);
  mean_ = std::move(next_mean);
  count_ += n;
}

void Moments::start_over() {
  count_ = 0;
  mean_.reset();
  m2_.reset();
}

}  // namespace koila
