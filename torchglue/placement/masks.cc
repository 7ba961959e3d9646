#include "torchglue/placement/masks.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "torchglue/base/tls.h"

namespace koila {

std::shared_ptr<const Ragged> Masks::rows_under(const at::Tensor& mask, int64_t batch) {
  constexpr size_t kRemembered = 16;
  if (mask.scalar_type() != at::kBool || mask.dim() == 0 || batch == 0 || mask.size(0) % batch != 0) return nullptr;
  const NoInterceptGuard no_intercept;
  const at::NoGradGuard no_grad;
  const at::Tensor counts = mask.reshape({batch, -1}).sum(1).cumsum(0).to(at::kCPU);
  Ragged rows{{0}};
  const int64_t* ends = counts.const_data_ptr<int64_t>();
  rows.first.insert(rows.first.end(), ends, ends + batch);
  const auto known = std::find_if(latest_.begin(), latest_.end(), [&](const auto& other) { return other->first == rows.first; });
  if (known != latest_.end()) return *known;
  if (latest_.size() >= kRemembered) latest_.pop_front();
  return latest_.emplace_back(std::make_shared<const Ragged>(std::move(rows)));
}

}  // namespace koila
