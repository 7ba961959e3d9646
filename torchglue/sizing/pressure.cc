#include "torchglue/sizing/pressure.h"

#include <algorithm>
#include <utility>

#include "torchglue/base/process.h"

namespace koila {

Pressure& pressure() {
  static Pressure the_process;
  return the_process;
}

bool Pressure::persists(int device, bool ran_out) {
  if (device < 0 || device >= KOILA_CUDA_DEVICES) return false;
  const int64_t failed = process().runtime->failed_allocations(device);
  const bool pressed = failed > std::exchange(failed_[device], failed) && !ran_out;
  int& score = score_[device];
  score = pressed ? score + 2 : std::max(0, score - 1);
  constexpr int kInVainAtMost = 3;
  if (!pressed) in_vain_[device] = 0;
  if (score < 3 || in_vain_[device] >= kInVainAtMost) return false;
  score = 0;
  ++in_vain_[device];
  return true;
}

}  // namespace koila
