#include "runtime/timeline.h"

#include <algorithm>

namespace koila {

Sample merged(const Sample& earlier, const Sample& later) { return later.live_bytes > earlier.live_bytes ? later : earlier; }

StepSample merged(const StepSample& earlier, const StepSample& later) {
  StepSample both = later;
  if (earlier.peak_bytes > later.peak_bytes) {
    both.device = earlier.device;
    both.live_bytes = earlier.live_bytes;
    both.peak_bytes = earlier.peak_bytes;
  }
  if (earlier.device == later.device) both.live_bytes = std::max(earlier.live_bytes, later.live_bytes);
  if (later.batch == 0) {
    both.batch = earlier.batch;
    both.micro_batch = earlier.micro_batch;
  }
  both.rescues = earlier.rescues + later.rescues;
  return both;
}

std::size_t Timeline::open_entries(Sample* entries) const {
  if (!is_open_) return 0;
  entries[0] = highest_;
  if (last_.seconds <= highest_.seconds || highest_.live_bytes == last_.live_bytes) return 1;
  entries[1] = last_;
  return 2;
}

void Timeline::close_interval() {
  Sample open[kPending];
  const std::size_t count = open_entries(open);
  for (std::size_t i = 0; i < count; ++i) {
    if (series_.append(open[i])) interval_ *= 2;
  }
}

bool Timeline::add(const Sample& sample) {
  const std::lock_guard lock(lock_);
  // Clocks are read before the lock is taken: what comes late is of the moment that it comes at.
  Sample now = sample;
  if (is_open_) now.seconds = std::max(now.seconds, last_.seconds);
  peak_ = std::max(peak_, now.live_bytes);
  const std::int64_t distance = std::max(kDistance, peak_ / 64);
  const std::int64_t new_peak = peak_ + std::max(kDistance, peak_ / 100);
  high_.store(std::min(now.live_bytes + distance, new_peak), std::memory_order_relaxed);
  low_.store(now.live_bytes - distance, std::memory_order_relaxed);

  const bool begins = !is_open_ || now.seconds >= begin_ + interval_;
  if (begins) {
    close_interval();
    is_open_ = true;
    begin_ = now.seconds;
    highest_ = now;
  } else if (now.live_bytes > highest_.live_bytes) {
    highest_ = now;
  }
  last_ = now;
  Sample open[kPending];
  series_.pending(open, open_entries(open));
  return begins;
}

void Timeline::write_to(SeriesSink<Sample>* sink) {
  const std::lock_guard lock(lock_);
  series_.write_to(sink);
  Sample open[kPending];
  series_.pending(open, open_entries(open));
}

std::vector<Sample> Timeline::snapshot() const {
  std::lock_guard lock(lock_);
  std::vector<Sample> samples = series_.entries();
  Sample open[kPending];
  samples.insert(samples.end(), open, open + open_entries(open));
  return samples;
}

void StepSeries::add(const StepSample& step) {
  const std::lock_guard lock(lock_);
  next_ = waiting_ > 0 ? merged(next_, step) : step;
  if (++waiting_ < stride_) return series_.pending(&next_, 1);
  waiting_ = 0;
  if (series_.append(next_)) stride_ *= 2;
}

void StepSeries::write_to(SeriesSink<StepSample>* sink) {
  const std::lock_guard lock(lock_);
  series_.write_to(sink);
  series_.pending(&next_, waiting_ > 0 ? 1 : 0);
}

std::vector<StepSample> StepSeries::snapshot() const {
  const std::lock_guard lock(lock_);
  std::vector<StepSample> steps = series_.entries();
  if (waiting_ > 0) steps.push_back(next_);
  return steps;
}

}  // namespace koila
