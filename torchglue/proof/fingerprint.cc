#include "torchglue/proof/fingerprint.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "torchglue/base/tensor_memory.h"
#include "torchglue/base/tls.h"

namespace koila {

namespace {

// splitmix64's last steps.
uint64_t mixed(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

double weight(uint32_t bits) { return static_cast<double>(static_cast<int32_t>(bits)) * 0x1p-31; }

void add(Fingerprint& f, double x, uint64_t bits) {
  if (std::isfinite(x)) {
    f.sums[0] += weight(static_cast<uint32_t>(bits)) * x;
    f.sums[1] += weight(static_cast<uint32_t>(bits >> 32)) * x;
    f.squares += x * x;
    f.largest = std::max(f.largest, std::abs(x));
  } else if (std::isnan(x)) {
    ++f.nans;
  } else {
    ++(x > 0 ? f.highs : f.lows);
  }
}

template <class T>
void add_entry(Fingerprint& f, const T& x, uint64_t bits, double, double) {
  add(f, static_cast<double>(x), bits);
}
template <class T>
void add_entry(Fingerprint& f, const c10::complex<T>& x, uint64_t bits, double real_sign, double imaginary_sign) {
  add(f, real_sign * static_cast<double>(x.real()), bits);
  add(f, imaginary_sign * static_cast<double>(x.imag()), ~mixed(bits));
}

// Where the rows' entries lie along the split dimension: in the tensor, and in the full batch.
std::vector<std::pair<int64_t, int64_t>> places(const Placement& p, int64_t batch, RowRange has, RowRange rows) {
  std::vector<std::pair<int64_t, int64_t>> found;
  if (p.ragged) {
    const std::vector<int64_t> all = p.ragged->places(has.begin, has.end);
    for (const int64_t i : p.ragged->places(rows.begin, rows.end)) found.emplace_back(std::lower_bound(all.begin(), all.end(), i) - all.begin(), i);
    return found;
  }
  for (int64_t o = 0; o < p.outer; ++o) {
    for (int64_t i = rows.begin * p.inner; i < rows.end * p.inner; ++i) found.emplace_back(o * (has.end - has.begin) * p.inner + i - has.begin * p.inner, o * batch * p.inner + i);
  }
  return found;
}

// Calls f(offset, number) for each entry but for dimension `dim`, which stays at 0: with its offset in memory, and its number among these. Of more than `most` for some.
template <class F>
void for_each_other(const at::Tensor& t, int64_t dim, int64_t most, F&& f) {
  std::vector<int64_t> sizes, strides;
  int64_t count = 1;
  for (int64_t d = 0; d < t.dim(); ++d) {
    if (d == dim) continue;
    sizes.push_back(t.size(d));
    strides.push_back(t.stride(d));
    count *= t.size(d);
  }
  if (count == 0) return;
  if (count > most) {
    const int64_t step = (count / most + 1) | 1;  // odd: of each column
    for (int64_t number = 0; number < count; number += step) {
      int64_t offset = 0, rest = number;
      for (size_t d = sizes.size(); d-- > 0; rest /= sizes[d]) offset += rest % sizes[d] * strides[d];
      f(offset, number);
    }
    return;
  }
  std::vector<int64_t> at(sizes.size(), 0);
  const int64_t last = sizes.empty() ? 1 : sizes.back(), stride = strides.empty() ? 0 : strides.back();
  int64_t offset = 0, number = 0;
  for (;;) {
    for (int64_t i = 0; i < last; ++i) f(offset + i * stride, number++);
    int64_t d = static_cast<int64_t>(sizes.size()) - 2;
    for (; d >= 0; --d) {
      offset += strides[d];
      if (++at[d] < sizes[d]) break;
      offset -= strides[d] * sizes[d];
      at[d] = 0;
    }
    if (d < 0) return;
  }
}

struct Lie {  // how the tensor lies in memory
  const at::Tensor& t;
  const Placement& placement;
  const std::vector<std::pair<int64_t, int64_t>>& places;
  int64_t most;  // entries of one place
};

template <class T>
void sum_up(Fingerprint& f, const Lie& lie, const void* memory) {
  const T* data = static_cast<const T*>(memory) + lie.t.storage_offset();
  const double sign = lie.t.is_neg() ? -1 : 1, imaginary = lie.t.is_conj() ? -sign : sign;
  const bool split = lie.placement.is_shard();
  const int64_t dim = split ? lie.placement.dim : -1, stride = split ? lie.t.stride(dim) : 0;
  for (const auto& [local, in_full] : lie.places) {
    const uint64_t row = static_cast<uint64_t>(in_full) * 0xc2b2ae3d27d4eb4fULL;
    for_each_other(lie.t, dim, lie.most, [&](int64_t offset, int64_t number) {
      ++f.entries;
      T x = data[offset + local * stride];
      if constexpr (!c10::is_complex<T>::value) {
        add_entry(f, sign < 0 ? -static_cast<double>(x) : static_cast<double>(x), mixed(row + static_cast<uint64_t>(number) * 0x9e3779b97f4a7c15ULL + 1), 1, 1);
      } else {
        add_entry(f, x, mixed(row + static_cast<uint64_t>(number) * 0x9e3779b97f4a7c15ULL + 1), sign, imaginary);
      }
    });
  }
}

bool sum_up(Fingerprint& f, const Lie& lie, const void* memory) {
  switch (lie.t.scalar_type()) {
    case at::kDouble: sum_up<double>(f, lie, memory); return true;
    case at::kFloat: sum_up<float>(f, lie, memory); return true;
    case at::kHalf: sum_up<at::Half>(f, lie, memory); return true;
    case at::kBFloat16: sum_up<at::BFloat16>(f, lie, memory); return true;
    case at::kComplexDouble: sum_up<c10::complex<double>>(f, lie, memory); return true;
    case at::kComplexFloat: sum_up<c10::complex<float>>(f, lie, memory); return true;
    case at::kLong: sum_up<int64_t>(f, lie, memory); return true;
    case at::kInt: sum_up<int32_t>(f, lie, memory); return true;
    case at::kShort: sum_up<int16_t>(f, lie, memory); return true;
    case at::kChar: sum_up<int8_t>(f, lie, memory); return true;
    case at::kByte: sum_up<uint8_t>(f, lie, memory); return true;
    case at::kBool: sum_up<uint8_t>(f, lie, memory); return true;
    default: return false;
  }
}

}  // namespace

at::Tensor on_host(const at::Tensor& t, at::ScalarType type) {
  const NoInterceptGuard no_intercept;
  const at::NoGradGuard no_grad;
  void* data = std::malloc(std::max<size_t>(1, static_cast<size_t>(t.numel()) * c10::elementSize(type)));
  if (data == nullptr) return {};
  const at::Tensor copy = at::for_blob(data, t.sizes()).deleter([](void* block) { std::free(block); }).options(t.options().device(at::kCPU).dtype(type).requires_grad(false)).make_tensor();
  copy.copy_(t.detach());
  return copy;
}

Fingerprint& Fingerprint::operator+=(const Fingerprint& other) {
  for (size_t i = 0; i < sums.size(); ++i) sums[i] += other.sums[i];
  squares += other.squares;
  largest = std::max(largest, other.largest);
  entries += other.entries;
  nans += other.nans;
  highs += other.highs;
  lows += other.lows;
  return *this;
}

Fingerprint Fingerprint::of_sum() const {
  Fingerprint f;
  if (nans + highs + lows > 0) {
    f.nans = 1;
    return f;
  }
  f.sums = sums;
  f.squares = squares;
  f.largest = largest;
  return f;
}

std::optional<Fingerprint> fingerprint(const at::Tensor& tensor, const Placement& placement, int64_t batch, RowRange has, RowRange rows, int64_t most) {
  if (!tensor.defined() || tensor.layout() != at::kStrided || storage_of(tensor) == nullptr) return std::nullopt;
  if (tensor.numel() > 0 && memory_of(tensor) == nullptr) return std::nullopt;
  at::Tensor host = tensor;
  if (!tensor.is_cpu()) {
    if (placement.is_shard() && !placement.ragged && placement.outer == 1) {
      const NoInterceptGuard no_intercept;
      const at::NoGradGuard no_grad;
      host = tensor.detach().narrow(placement.dim, (rows.begin - has.begin) * placement.inner, (rows.end - rows.begin) * placement.inner);
      has = rows;
    }
    host = on_host(host, host.scalar_type());
    if (!host.defined()) return std::nullopt;
  }
  const auto where = placement.is_shard() ? places(placement, batch, has, rows) : std::vector<std::pair<int64_t, int64_t>>{{0, 0}};
  Fingerprint f;
  if (!sum_up(f, {host, placement, where, most}, memory_of(host))) return std::nullopt;
  return f;
}

bool same_shape(const Fingerprint& a, const Fingerprint& b) { return a.entries == b.entries && a.nans == b.nans && a.highs == b.highs && a.lows == b.lows; }

double difference(const Fingerprint& a, const Fingerprint& b) {
  double most = 0;
  for (size_t i = 0; i < a.sums.size(); ++i) most = std::max(most, std::abs(a.sums[i] - b.sums[i]));
  return most;
}

double distance(const Fingerprint& a, const Fingerprint& b) {
  if (!same_shape(a, b)) return std::numeric_limits<double>::infinity();
  const double apart = difference(a, b);
  if (apart == 0) return 0;
  const double length = std::max(a.length(), b.length());
  return length > 0 ? apart / length : std::numeric_limits<double>::infinity();
}

// Note [Single precision that is less]
// A matrix product or a convolution of single precision may be told to run in TF32, or in bfloat16, on the way.
double rounding(at::ScalarType type, at::DeviceType device) {
  constexpr double kDouble = 0x1p-52, kFloat = 0x1p-23, kHalf = 0x1p-10, kBFloat16 = 0x1p-7;
  switch (c10::toRealValueType(type)) {
    case at::kDouble:
      return kDouble;
    case at::kFloat: {
      const at::Context& context = at::globalContext();
      if (context.float32MatmulPrecision() == at::Float32MatmulPrecision::MEDIUM) return kBFloat16;
      if (context.float32MatmulPrecision() != at::Float32MatmulPrecision::HIGHEST) return kHalf;
      return device != at::kCPU && (context.allowTF32CuDNN() || context.allowTF32CuBLAS()) ? kHalf : kFloat;
    }
    case at::kHalf:
      return kHalf;
    case at::kBFloat16:
      return kBFloat16;
    default:
      return 0;
  }
}

at::Tensor roundings(const at::Tensor& t, double phase, double coarsest) {
  const double one = std::max(rounding(t.scalar_type(), t.device().type()), coarsest), strength = one < 1e-5 ? 8 * one : 2 * one;
  const auto wide = t.options().requires_grad(false).dtype(c10::toRealValueType(t.scalar_type()) == at::kDouble ? at::kDouble : at::kFloat);
  return at::arange(t.numel(), wide).add_(1).mul_(phase).sin_().mul_(strength).add_(1).view(t.sizes());
}

// Some roundings of as many operators in a row: double 4e-9, single 1e-4, half 0.03, bfloat16 0.25.
double tolerance(double rounding) { return std::min(0.25, rounding < 1e-12 ? rounding * 0x1p24 : rounding < 1e-5 ? rounding * 1000 : rounding * 32); }

}  // namespace koila
