// The time of a run: seconds since the process met PyTorch, or, in the child of a fork, since the fork.
#ifndef KOILA_RUNTIME_RUN_CLOCK_H_
#define KOILA_RUNTIME_RUN_CLOCK_H_

#include <time.h>

#include <chrono>

namespace koila {

class RunClock {
 public:
  RunClock() : started_(at(CLOCK_REALTIME)), begin_(at(CLOCK_MONOTONIC)) {}

  double started() const { return started_; }  // since 1970
  double now() const { return at(CLOCK_MONOTONIC) - begin_; }

  std::chrono::steady_clock::time_point begin() const {
    return std::chrono::steady_clock::time_point(std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::chrono::duration<double>(begin_)));
  }
  double seconds_at(std::chrono::steady_clock::time_point moment) const {
    return std::chrono::duration<double>(moment.time_since_epoch()).count() - begin_;  // it is CLOCK_MONOTONIC
  }

  // Up to some milliseconds late, for a quarter of the cost. Never before a moment that it gave already, and never negative.
  double coarse_now() const {
    const double now = at(CLOCK_MONOTONIC_COARSE) - begin_;
    return now > 0 ? now : 0;
  }

 private:
  static double at(clockid_t clock) {
    timespec time = {};
    clock_gettime(clock, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  }

  double started_;
  double begin_;
};

}  // namespace koila

#endif  // KOILA_RUNTIME_RUN_CLOCK_H_
