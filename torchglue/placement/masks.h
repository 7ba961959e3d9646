// How many entries of each row a mask picks.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <memory>

#include "torchglue/placement/placement.h"

namespace koila {

// Two values that the same mask has picked are split alike, and so are those of masks that come to the same numbers: the latest are remembered, so
// that such placements compare equal. Thread contract: the owner's.
class Masks {
 public:
  // `mask`: bool, a real tensor whose first dimension is batch * inner. Null where it is not. Reads it, which waits for its device.
  std::shared_ptr<const Ragged> rows_under(const at::Tensor& mask, int64_t batch);

 private:
  std::deque<std::shared_ptr<const Ragged>> latest_;
};

}  // namespace koila
