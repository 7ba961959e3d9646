// The time of a run: seconds since the process met PyTorch, or, in the child of a fork, since the fork.
#ifndef KOILA_RUNTIME_RUN_CLOCK_H_
#define KOILA_RUNTIME_RUN_CLOCK_H_

#include <time.h>

namespace koila {

class RunClock {
 public:
  RunClock() : started_(at(CLOCK_REALTIME)), begin_(at(CLOCK_MONOTONIC)) {}

  double started() const { return started_; }  // since 1970
  double now() const { return at(CLOCK_MONOTONIC) - begin_; }

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
