#include "runtime/size_policy.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <utility>

#include "runtime/size_cache.h"

namespace koila {
namespace {

constexpr std::int64_t kLasts = 256;           // steps
constexpr std::int64_t kLastsAtMost = 1 << 16;
constexpr std::size_t kFailuresAtMost = 16;
constexpr std::size_t kSizesAtMost = 32;
constexpr double kNear = 0.02;    // what is available differs by less: the same conditions
constexpr double kFaster = 0.95;  // worth another size
constexpr int kTimed = 3;         // steps, until a time is believed

}  // namespace

void SizePolicy::Times::add(double seconds) { last[count++ % 5] = seconds; }

double SizePolicy::Times::best() const { return count < kTimed ? 0 : *std::min_element(last, last + std::min(count, 5)); }

SizePolicy::SizePolicy(std::int64_t batch, std::int64_t first, Options options)
    : batch_(batch), rows_(std::clamp<std::int64_t>(first, 1, batch)), most_(rows_), options_(options) {}

std::int64_t SizePolicy::evened(std::int64_t rows) const {
  if (rows >= batch_) return batch_;
  if (options_.way == Way::kPow2) return static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(rows)));
  const std::int64_t count = passes(rows);
  return (batch_ + count - 1) / count;
}

// The line through the two points around `rows`, or the last ones on that side; beyond the largest from the one that is farthest from it, so that a
// little noise is no slope. Through one point: from `at_none` at no rows.
std::int64_t SizePolicy::line(const ByRows& points, std::int64_t rows, std::int64_t at_none) {
  const auto through = [rows](std::int64_t r1, std::int64_t n1, std::int64_t r2, std::int64_t n2) {
    const double slope = std::max(0.0, static_cast<double>(n2 - n1) / static_cast<double>(r2 - r1));
    return std::max<std::int64_t>(0, n1 + static_cast<std::int64_t>(slope * static_cast<double>(rows - r1)));
  };
  if (points.empty()) return 0;
  if (const auto known = points.find(rows); known != points.end()) return known->second;
  const auto above = points.upper_bound(rows);
  const auto& smallest = *points.begin();
  if (points.size() == 1) return through(0, std::min(at_none, smallest.second), smallest.first, smallest.second);
  const auto& first = above == points.begin() ? *above : above == points.end() ? smallest : *std::prev(above);
  const auto& second = above == points.begin() ? *std::next(above) : above == points.end() ? *std::prev(above) : *above;
  return through(first.first, first.second, second.first, second.second);
}

// The most, but for what was once.
void SizePolicy::put(ByRows& points, std::int64_t rows, std::int64_t bytes) {
  const auto [at, fresh] = points.try_emplace(rows, bytes);
  if (!fresh) at->second = bytes >= at->second ? bytes : at->second - (at->second - bytes) / 8;
  if (points.size() <= kSizesAtMost) return;
  points.erase(std::next(points.begin()) == at ? std::next(at) : std::next(points.begin()));
}

std::optional<std::int64_t> SizePolicy::need(std::int64_t rows) const {
  if (needs_.empty()) return std::nullopt;
  return line(needs_, rows, standing_) + line(excess_, rows, 0);
}

std::optional<std::int64_t> SizePolicy::need_of_pass(std::int64_t rows) const {
  if (needs_.empty()) return std::nullopt;
  return line(needs_, rows, standing_);
}

bool SizePolicy::has_failed(std::int64_t rows, std::int64_t available) const {
  return std::any_of(failures_.begin(), failures_.end(), [&](const Failure& f) {
    return rows >= f.rows && step_ < f.until && static_cast<double>(available) <= static_cast<double>(f.available) * (1 + kNear);
  });
}

bool SizePolicy::fits(std::int64_t rows, std::int64_t available, double margin, std::int64_t beside) const {
  return static_cast<double>(*need(rows) + beside) <= static_cast<double>(available) * (1 - margin) && !has_failed(rows, available);
}

// 0: none.
std::int64_t SizePolicy::largest(std::int64_t available, double margin, std::int64_t beside) const {
  std::int64_t low = 0, high = batch_ + 1;
  while (high - low > 1) {
    const std::int64_t middle = low + (high - low) / 2;
    (fits(middle, available, margin, beside) ? low : high) = middle;
  }
  return low;
}

// See Note [Rows or boundaries].
std::int64_t SizePolicy::chosen(std::int64_t available, double margin) const {
  const std::int64_t most = largest(available, margin);
  return boundaries_ == 0 ? most : std::max(largest(available, margin, boundaries_), std::min(most, enough_));
}

void SizePolicy::stages(std::int64_t bytes, std::int64_t enough) {
  boundaries_ = bytes;
  if (enough > 0) enough_ = std::min(enough, batch_);
}

std::int64_t SizePolicy::by_memory(std::int64_t available) {
  if (needs_.empty()) {
    while (rows_ > 1 && has_failed(rows_, available)) rows_ /= 2;
    return rows_;
  }
  std::int64_t rows = evened(std::max<std::int64_t>(1, chosen(available, options_.margin)));
  if (unsure_ && rows > rows_) return rows_;
  // By so little it may be the margin alone.
  if (rows < most_ && chosen(available, 0) >= most_) return most_;
  // Fewer passes, or it is not worth a change.
  if (rows > most_ && rows < batch_ && passes(rows) == passes(most_) && fits(most_, available, options_.margin)) return most_;
  // The model says that not even one row fits, and errs more likely than not.
  if (rows == 1 && most_ > 1 && largest(available, 0) == 0) rows = has_failed(most_ / 2, available) ? 1 : most_ / 2;
  return rows;
}

std::int64_t SizePolicy::by_time(std::int64_t most) {
  if (const auto known = fastest_.find(most); known != fastest_.end()) return known->second;
  const auto seconds = [&](std::int64_t rows) {
    const auto known = times_.find(rows);
    return known == times_.end() ? 0.0 : known->second.best();
  };
  std::int64_t best = most;
  if (seconds(best) == 0) return best;
  for (;;) {
    const std::int64_t half = best > 1 ? evened(best / 2) : best;
    if (half != best && seconds(half) == 0) return half;
    if (half == best || seconds(half) > kFaster * seconds(best)) break;
    best = half;
  }
  if (fastest_.size() < kSizesAtMost) fastest_[most] = best;
  return best;
}

std::int64_t SizePolicy::begin(std::optional<std::int64_t> available) {
  available_ = available;
  failed_ = false;
  if (options_.way == Way::kFixed) return rows_;
  if (begins_whole()) return rows_ = batch_;
  if (!available) return rows_ = limited_ ? batch_ : rows_;
  std::erase_if(failures_, [&](const Failure& f) { return step_ > f.until + f.lasts; });
  if (const auto settled = choices_.find(coarse(*available)); std::exchange(restored_, false) && settled != choices_.end() && fits(settled->second, *available, 0)) {
    return rows_ = most_ = settled->second;
  }
  if (probing()) rows_ = most_ = probe_;
  most_ = by_memory(*available);
  rows_ = options_.timed && options_.way == Way::kModel && most_ < batch_ ? by_time(most_) : most_;
  return rows_;
}

void SizePolicy::use(std::int64_t rows) { rows_ = most_ = std::clamp<std::int64_t>(rows, 1, batch_); }

void SizePolicy::passed(std::int64_t rows, std::int64_t bytes, std::int64_t standing) {
  if (rows < 1 || rows >= batch_ || bytes < 0) return;
  standing_ = std::max<std::int64_t>(0, std::min(standing, bytes));
  put(needs_, rows, bytes);
}

void SizePolicy::probe(std::int64_t rows) {
  use(rows);
  probe_ = rows_;
}

std::int64_t SizePolicy::failed(std::int64_t rows) {
  rows = std::clamp<std::int64_t>(rows, 1, batch_);
  failed_ = true;
  limited_ = available_.has_value();
  probe_ = 0;
  if (available_ && rows > 1) {
    std::int64_t lasts = kLasts;
    for (const Failure& f : failures_) {
      if (f.rows == rows) lasts = std::min(kLastsAtMost, std::max(lasts, f.lasts * 4));
    }
    const Failure failure{rows, *available_, step_ + lasts, lasts};
    std::erase_if(failures_, [&](const Failure& f) { return f.rows >= failure.rows && f.available <= failure.available && f.until <= failure.until; });
    if (failures_.size() >= kFailuresAtMost) failures_.erase(failures_.begin());
    failures_.push_back(failure);
  }
  rows_ = std::max<std::int64_t>(1, std::min(rows_, rows / 2));  // several parts of a step may say so
  if (options_.way == Way::kPow2) rows_ = evened(rows_);
  most_ = rows_;
  return rows_;
}

void SizePolicy::end(std::int64_t bytes, double seconds, bool in_parts) {
  ++step_;
  unsure_ = failed_ && in_parts;
  if (rows_ >= batch_) {
    if (bytes <= 0 || failed_) return;
    needs_[batch_] = bytes;
    excess_[batch_] = 0;
    settle();
    return;
  }
  if (!needs_.empty()) put(excess_, rows_, std::max<std::int64_t>(0, bytes - line(needs_, rows_, standing_)));
  if (options_.timed && !failed_ && (times_.size() < kSizesAtMost || times_.count(rows_) > 0)) times_[rows_].add(seconds);
  settle();
}

// A size that is tried for its speed is no choice yet.
void SizePolicy::settle() {
  if (failed_ || !available_ || (options_.timed && most_ < batch_ && (fastest_.count(most_) == 0 || fastest_[most_] != rows_))) return;
  const std::int64_t available = coarse(*available_);
  if (choices_.size() < kSizesAtMost || choices_.count(available) > 0) choices_[available] = rows_;
}

std::vector<SizePolicy::Observation> SizePolicy::observations() const {
  std::map<std::int64_t, Observation> all;
  for (const auto& [rows, bytes] : needs_) all[rows] = {rows, *need(rows), 0};
  for (const auto& [rows, times] : times_) {
    all[rows].rows = rows;
    all[rows].seconds = times.best();
  }
  std::vector<Observation> list;
  for (const auto& [rows, observation] : all) list.push_back(observation);
  return list;
}

void SizePolicy::restore(const std::vector<Observation>& observations, const std::vector<Failure>& failures, std::map<std::int64_t, std::int64_t> choices) {
  for (const Observation& o : observations) {
    if (o.rows < 1 || o.rows > batch_) continue;
    if (o.bytes > 0) needs_[o.rows] = o.bytes;
    if (o.seconds > 0) {
      for (int i = 0; i < kTimed; ++i) times_[o.rows].add(o.seconds);
    }
  }
  failures_ = failures;
  for (Failure& f : failures_) {
    f.lasts = std::max(f.lasts, kLasts);
    f.until = step_ + f.lasts;
  }
  choices_ = std::move(choices);
  std::erase_if(choices_, [&](const auto& choice) { return choice.second < 1 || choice.second > batch_; });
  restored_ = !needs_.empty();
  limited_ = !failures_.empty();
}

}  // namespace koila
