// How memory went over a run of any length, in at most kMaxSamples entries: of the moments of a device, and of the steps.
//
// When a series is full, each two neighbours become one, the higher of the two, and from then on entries come half as often: the resolution
// halves, and the peaks stay. A sample holds until the next one, as stairs do.
//
// Thread-safe. Memory for entries comes with the first of them; where there is none, there is no series. Nothing throws.
#ifndef KOILA_RUNTIME_TIMELINE_H_
#define KOILA_RUNTIME_TIMELINE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <new>
#include <vector>

#include "runtime/report/data.h"
#include "runtime/spin_lock.h"

namespace koila {

// Of two neighbours, one after the other.
Sample merged(const Sample& earlier, const Sample& later);
StepSample merged(const StepSample& earlier, const StepSample& later);

// Where a series is written to as it grows (runtime/record/). Called under the series' lock; must not throw.
template <class T>
class SeriesSink {
 public:
  virtual ~SeriesSink() = default;
  virtual void append(const T& entry) = 0;
  virtual void replace(const T* entries, std::size_t count) = 0;  // all of them
  virtual void pending(const T* entries, std::size_t count) = 0;  // what is to come after them, and may still change: kPending at most
};
constexpr std::size_t kPending = 2;

// The entries of a series. Not thread-safe by itself.
template <class T>
class Series {
 public:
  // Whether neighbours had to be merged first.
  bool append(const T& entry) {
    if (entries_ == nullptr) entries_.reset(new (std::nothrow) T[kMaxSamples]);
    if (entries_ == nullptr) return false;
    const bool full = count_ == kMaxSamples;
    if (full) {
      for (std::size_t i = 0; i < kMaxSamples / 2; ++i) entries_[i] = merged(entries_[2 * i], entries_[2 * i + 1]);
      count_ = kMaxSamples / 2;
      if (sink_ != nullptr) sink_->replace(entries_.get(), count_);
    }
    entries_[count_++] = entry;
    if (sink_ != nullptr) sink_->append(entry);
    return full;
  }

  void pending(const T* entries, std::size_t count) {
    if (sink_ != nullptr) sink_->pending(entries, count);
  }

  // From now on; first of all what is there. Nothing where it is so already.
  void write_to(SeriesSink<T>* sink) {
    if (sink_ == sink) return;
    sink_ = sink;
    if (count_ > 0) sink->replace(entries_.get(), count_);
  }

  std::vector<T> entries() const { return count_ > 0 ? std::vector<T>(entries_.get(), entries_.get() + count_) : std::vector<T>(); }

 private:
  std::unique_ptr<T[]> entries_;
  std::size_t count_ = 0;
  SeriesSink<T>* sink_ = nullptr;
};

// The moments of one device. due() is asked at each change of its live bytes, and is two comparisons; add() is for the few that it says yes to.
//
// Worth a sample is a move by 1/64 of the run's peak (or kDistance), and a new peak by 1/100. Of those within kInterval only the highest and
// the last are kept.
class alignas(64) Timeline {
 public:
  static constexpr std::int64_t kDistance = 16 << 10;  // bytes
  static constexpr double kInterval = 0.02;            // seconds, at first

  bool due(std::int64_t live) const {
    return live > high_.load(std::memory_order_relaxed) || live < low_.load(std::memory_order_relaxed);
  }

  // A moment that is due, or that is to be kept for another reason. True when it begins an interval, which is some fifty times a second
  // at most.
  bool add(const Sample& sample);

  void write_to(SeriesSink<Sample>* sink);
  std::vector<Sample> snapshot() const;

 private:
  void close_interval();
  std::size_t open_entries(Sample* entries) const;

  std::atomic<std::int64_t> high_{-1};
  std::atomic<std::int64_t> low_{0};
  mutable SpinLock lock_;
  bool is_open_ = false;
  double begin_ = 0;  // of the interval that is open
  double interval_ = kInterval;
  std::int64_t peak_ = 0;
  Sample highest_;  // of the interval
  Sample last_;
  Series<Sample> series_;
};

// The steps of the run.
class StepSeries {
 public:
  void add(const StepSample& step);

  void write_to(SeriesSink<StepSample>* sink);
  std::vector<StepSample> snapshot() const;

 private:
  mutable SpinLock lock_;
  std::int64_t stride_ = 1;  // steps an entry
  std::int64_t waiting_ = 0;
  StepSample next_;  // those that wait, as one
  Series<StepSample> series_;
};

}  // namespace koila

#endif  // KOILA_RUNTIME_TIMELINE_H_
