// How many rows to try first.
#pragma once

#include <cstdint>

namespace koila {

// The largest power of two below the batch: KOILA_MICROBATCH wins when it is smaller than the batch.
int64_t first_micro_batch(int64_t batch);

}  // namespace koila
