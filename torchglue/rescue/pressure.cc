#include "torchglue/rescue/pressure.h"

#include <algorithm>
#include <utility>

#include "torchglue/session.h"

namespace koila {

bool Pressure::persists(int device, bool ran_out) {
  if (device < 0 || device >= KOILA_CUDA_DEVICES) return false;
  const int64_t failed = session().runtime->failed_allocations(device);
  const bool pressed = failed > std::exchange(failed_[device], failed) && !ran_out;
  int& score = score_[device];
  score = pressed ? score + 2 : std::max(0, score - 1);
  if (score < 3) return false;
  score = 0;
  return true;
}

}  // namespace koila
