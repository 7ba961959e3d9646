#include "torchglue/placement/masks.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "torchglue/base/tls.h"

namespace koila {

namespace {

constexpr size_t kRemembered = 64;

}  // namespace

std::shared_ptr<const Ragged> Masks::rows_under(const at::Tensor& mask, int64_t batch) {
  if (mask.scalar_type() != at::kBool || mask.dim() == 0 || batch == 0 || mask.size(0) % batch != 0) return nullptr;
  const NoInterceptGuard no_intercept;
  const at::NoGradGuard no_grad;
  const at::Tensor counts = mask.reshape({batch, -1}).sum(1).cumsum(0).to(at::kCPU);
  Ragged rows{{0}, {}};
  const int64_t* ends = counts.const_data_ptr<int64_t>();
  rows.first.insert(rows.first.end(), ends, ends + batch);
  return remembered(std::move(rows));
}

std::shared_ptr<const Ragged> Masks::rows_of(const at::Tensor& index, int64_t dim, int64_t entries, int64_t batch) {
  if ((index.scalar_type() != at::kLong && index.scalar_type() != at::kInt) || dim >= index.dim() || index.numel() == 0 || entries <= 0) return nullptr;
  const NoInterceptGuard no_intercept;
  const at::NoGradGuard no_grad;
  at::Tensor numbers = index;
  for (int64_t d = index.dim() - 1; d >= 0; --d) {
    if (d == dim) continue;
    if (index.size(d) != 1 && index.stride(d) != 0) return nullptr;  // expanded, as scatter() wants it
    numbers = numbers.select(d, 0);
  }
  // Memory may have run out: nothing is allocated for it on the CPU.
  numbers = numbers.to(at::kCPU);
  const int64_t count = numbers.numel(), stride = numbers.stride(0);
  std::vector<int64_t> number(static_cast<size_t>(count));
  const auto read = [&](const auto* at) {
    for (int64_t i = 0; i < count; ++i) number[static_cast<size_t>(i)] = at[i * stride];
  };
  numbers.scalar_type() == at::kLong ? read(numbers.const_data_ptr<int64_t>()) : read(numbers.const_data_ptr<int32_t>());
  Ragged rows{std::vector<int64_t>(static_cast<size_t>(batch) + 1, 0), {}};
  for (const int64_t n : number) {
    if (n < 0 || n >= batch * entries) return nullptr;
    ++rows.first[static_cast<size_t>(n / entries) + 1];
  }
  std::partial_sum(rows.first.begin(), rows.first.end(), rows.first.begin());
  const auto before = [&](int64_t a, int64_t b) { return a / entries < b / entries; };
  if (std::is_sorted(number.begin(), number.end(), before)) return remembered(std::move(rows));
  if (count == batch * entries) return nullptr;
  std::vector<int64_t> next = rows.first;
  rows.order.resize(static_cast<size_t>(count));
  for (size_t i = 0; i < number.size(); ++i) rows.order[static_cast<size_t>(next[static_cast<size_t>(number[i] / entries)]++)] = static_cast<int64_t>(i);
  return remembered(std::move(rows));
}

std::optional<std::vector<int64_t>> numbers_in(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.scalar_type() != at::kLong || tensor.dim() != 1) return std::nullopt;
  const NoInterceptGuard no_intercept;
  const at::NoGradGuard no_grad;
  const at::Tensor numbers = tensor.to(at::kCPU).contiguous();
  const int64_t* first = numbers.const_data_ptr<int64_t>();
  return std::vector<int64_t>(first, first + numbers.numel());
}

bool Masks::sorts(const at::Tensor& index, bool found) {
  const auto numbers = numbers_in(index);
  if (!numbers) return false;
  const bool known = std::find(orders_.begin(), orders_.end(), *numbers) != orders_.end();
  if (known || !found) return known;
  if (orders_.size() >= kRemembered) orders_.pop_front();
  orders_.push_back(std::move(*numbers));
  return true;
}

std::shared_ptr<const Ragged> Masks::remembered(Ragged&& rows) {
  const auto known = std::find_if(latest_.begin(), latest_.end(), [&](const auto& other) { return other->first == rows.first && other->order == rows.order; });
  if (known != latest_.end()) return *known;
  if (latest_.size() >= kRemembered) latest_.pop_front();
  return latest_.emplace_back(std::make_shared<const Ragged>(std::move(rows)));
}

}  // namespace koila
