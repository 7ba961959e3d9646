#include "torchglue/rescue/sizing.h"

#include <algorithm>
#include <bit>

#include "torchglue/session.h"

namespace koila {

int64_t first_micro_batch(int64_t batch) {
  if (const int64_t forced = session().forced_micro_batch(); forced > 0) return std::min(forced, batch);
  if (batch <= 1) return 1;
  return static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(batch - 1)));
}

}  // namespace koila
