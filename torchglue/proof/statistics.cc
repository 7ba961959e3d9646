#include "torchglue/proof/statistics.h"

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "torchglue/base/tls.h"
#include "torchglue/oom/error_text.h"
#include "torchglue/oom/oom.h"
#include "torchglue/proof/fingerprint.h"
#include "torchglue/proof/key.h"
#include "torchglue/step/session.h"

namespace koila {

namespace {

double entry(const at::Tensor& t, int64_t index) { return t.detach().reshape(-1)[index].to(at::kDouble).item<double>(); }

// Of many roundings: of a sum of any length.
double tolerated(at::ScalarType type) { return std::max(1e-12, tolerance(rounding(type, at::kCPU))); }

bool near(double found, double expected, double bound) { return std::abs(found - expected) <= bound || (std::isnan(found) && std::isnan(expected)) || found == expected; }

std::string told(const char* what, double found, double expected) { return std::string(what) + " is " + std::to_string(found) + ", and not " + std::to_string(expected); }

}  // namespace

StatisticsWitness::StatisticsWitness(RowObserver& observer, std::vector<int64_t> dims, bool by_row, bool look)
    : observer_(observer), dims_(std::move(dims)), by_row_(by_row), looks_(look) {}

void StatisticsWitness::add(const at::Tensor& part) {
  observer_.add(part);
  if (!looks_ || part.numel() == 0) return;
  try {
    look_at(part.detach());
  } catch (const std::exception& error) {
    take_allocator_ran_out();  // nobody's out-of-memory but the proof's
    looks_ = false;
    session().log(KOILA_LOG_DEBUG, std::string("statistics are not proven: ") + error_text(error));
  }
}

void StatisticsWitness::start_over() {
  observer_.start_over();
  channels_.clear();
}

void StatisticsWitness::look_at(const at::Tensor& part) {
  const NoInterceptGuard no_intercept;
  const at::NoGradGuard no_grad;
  if (!at::isFloatingType(part.scalar_type())) {
    looks_ = false;
    return;
  }
  type_ = at::toOpMathType(part.scalar_type());
  std::vector<int64_t> kept;
  int64_t count = 1;
  for (int64_t d = 0; d < part.dim(); ++d) {
    const bool keeps = by_row_ ? d == 1 : std::find(dims_.begin(), dims_.end(), d) == dims_.end();
    if (!keeps) continue;
    kept.push_back(d);
    count *= part.size(d);
  }
  if (channels_.empty()) {
    for (int64_t index : {int64_t{0}, count / 2, count - 1}) {
      if (channels_.empty() || channels_.back().index != index) channels_.push_back({index});
    }
  }
  for (Channel& channel : channels_) {
    at::Tensor entries = part;
    int64_t rest = channel.index;
    for (size_t k = kept.size(); k-- > 0;) {
      const int64_t size = part.size(kept[k]);
      entries = entries.select(kept[k], rest % size);
      rest /= size;
    }
    add_entries(channel, entries);
  }
}

void StatisticsWitness::add_entries(Channel& channel, const at::Tensor& given) const {
  const at::Tensor entries = on_host(given, at::kDouble);
  TORCH_CHECK(entries.defined(), "no memory for a channel");
  const auto* x = entries.const_data_ptr<double>();
  const int64_t rows = by_row_ ? entries.size(0) : 1, length = entries.numel() / std::max<int64_t>(1, rows);
  for (int64_t r = 0; r < rows; ++r) {
    if (by_row_ || channel.count == 0) channel.shift = x[r * length];
    double sum = 0, squares = 0;
    for (int64_t i = r * length; i < (r + 1) * length; ++i) {
      const double d = x[i] - channel.shift;
      sum += d;
      squares += d * d;
    }
    if (by_row_) {
      const auto n = static_cast<double>(length);
      channel.means += channel.shift + sum / n;
      channel.variances += (squares - sum * sum / n) / (n - 1);
      ++channel.rows;
    } else {
      channel.sum += sum;
      channel.squares += squares;
    }
    channel.count += length;
  }
}

std::string StatisticsWitness::against(const at::Tensor& mean, const at::Tensor& biased) const {
  if (!looks_) return {};
  const double part = tolerated(type_), one = rounding(type_, at::kCPU);
  for (const Channel& c : channels_) {
    const double deviation = std::sqrt(std::max(0.0, c.biased())), size = std::abs(c.mean()) + deviation;
    if (const double found = entry(mean, c.index); !near(found, c.mean(), part * size)) return told("the mean of a channel", found, c.mean());
    // A mean that is off by a rounding counts in the variance.
    const double bound = part * (deviation * deviation + one * size * deviation) + 64 * one * one * size * size;
    if (const double found = entry(biased, c.index); !near(found, c.biased(), bound)) return told("the variance of a channel", found, c.biased());
  }
  return {};
}

void StatisticsWitness::before(const at::Tensor& running_mean, const at::Tensor& running_var) {
  if (!looks_) return;
  for (Channel& c : channels_) {
    if (running_mean.defined() && c.index < running_mean.numel()) c.old_mean = entry(running_mean, c.index);
    if (running_var.defined() && c.index < running_var.numel()) c.old_var = entry(running_var, c.index);
  }
}

std::string StatisticsWitness::after(const at::Tensor& running_mean, const at::Tensor& running_var, double momentum) const {
  if (!looks_) return {};
  const double one = rounding(type_, at::kCPU);
  for (const Channel& c : channels_) {
    const double deviation = std::sqrt(std::max(0.0, c.unbiased())), size = std::abs(c.mean()) + deviation;
    const auto moved = [&](const at::Tensor& buffer, double old, double by, double uncertain) {
      const double expected = (1 - momentum) * old + momentum * by, found = entry(buffer, c.index);
      const double part = std::max(tolerated(type_), tolerated(buffer.scalar_type()));
      const bool right = near(found, expected, part * (std::abs(old) + std::abs(momentum) * uncertain) + std::abs(momentum) * 64 * one * one * size * size);
      return right ? std::string() : told("a channel's", found, expected);
    };
    if (c.old_mean) {
      if (const std::string wrong = moved(running_mean, *c.old_mean, c.mean(), size); !wrong.empty()) return "moves running_mean wrongly: " + wrong;
    }
    if (c.old_var && (c.count > 1 || by_row_)) {
      if (const std::string wrong = moved(running_var, *c.old_var, c.unbiased(), c.unbiased() + one * size * deviation); !wrong.empty()) return "moves running_var wrongly: " + wrong;
    }
  }
  return {};
}

bool statistics_to_prove(const c10::OperatorHandle& op, const at::Tensor& x, const Placement& placement, int64_t batch) {
  Session& s = session();
  if (!s.verifies()) return false;
  size_t key = combined(std::hash<const void*>()(&op.schema()), static_cast<size_t>(batch));
  key = combined(key, static_cast<size_t>(placement.kind) * 64 + static_cast<size_t>(placement.dim));
  key = combined(key, static_cast<size_t>(x.scalar_type()));
  for (int64_t size : x.sizes()) key = combined(key, static_cast<size_t>(size));
  return s.proven.calls.insert(key).second || s.verifies_always();
}

}  // namespace koila
