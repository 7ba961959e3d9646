// A program run under koila for a few steps, and then ended.
#ifndef KOILA_TOOL_TRIAL_H_
#define KOILA_TOOL_TRIAL_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/config.h"

namespace koila::tool {

struct TrialPlan {
  std::vector<std::string> command;
  Environment environment;    // added to this process's
  std::string folder;         // for its records and its output; exists
  std::int64_t steps = 3;     // it is ended when it has made so many
  double seconds = 600;       // or after so long
};

struct TrialResult {
  enum class Kind {
    kFits,      // made the steps, or ended well before, and got no out-of-memory error
    kRanOut,    // got one, from koila, from its allocator or from the kernel
    kFailed,    // ended badly for another reason
    kTooSlow,   // made fewer steps in the time
    kStopped,   // Ctrl-C
  };
  Kind kind = Kind::kFailed;
  std::int64_t steps = 0;
  std::int64_t rescues = 0;
  std::int64_t micro_batch = 0;
  std::int64_t peak_bytes = 0;  // of the device that held most
  std::optional<double> seconds_per_step;
  std::string why;     // one sentence, where it does not fit
  std::string output;  // the last lines of what the program said
};

// Runs it in a process group of its own without a terminal, whose end it also sees to when this process is stopped.
TrialResult run_trial(const TrialPlan& plan);

}  // namespace koila::tool

#endif  // KOILA_TOOL_TRIAL_H_
