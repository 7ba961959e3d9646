// How many entries of each row a mask picks, and from which rows an index does.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "torchglue/placement/placement.h"

namespace koila {

// Two values that the same mask has picked are split alike, and so are those of masks that come to the same numbers: the latest are remembered, so
// that such placements compare equal. Thread contract: the owner's.
class Masks {
 public:
  // `mask`: bool, a real tensor whose first dimension is batch * inner. Null where it is not. Reads it, which waits for its device.
  std::shared_ptr<const Ragged> rows_under(const at::Tensor& mask, int64_t batch);
  // `index`: whole numbers, a real tensor that runs along its dimension `dim` and is the same along all others. It counts entries of a dimension with `entries` for each
  // row. Null where it is not, or counts from the end; and where it picks as
  // many as there are, in another order, since the batch in another order is a batch again, and what rules do not know a ragged split will take it. Reads it, too.
  std::shared_ptr<const Ragged> rows_of(const at::Tensor& index, int64_t dim, int64_t entries, int64_t batch);
  std::shared_ptr<const Ragged> remembered(Ragged&& rows);
  // Whether an index is an order that a sort has found. `found`: it is known to be one. Else it is where the same numbers were one lately: a region that has captured the index knows no more what made it.
  bool sorts(const at::Tensor& index, bool found);

 private:

  std::deque<std::shared_ptr<const Ragged>> latest_;
  std::deque<std::vector<int64_t>> orders_;
};

// The numbers of an int64 tensor of one dimension; nothing of any other. Reads them, which waits for their device.
std::optional<std::vector<int64_t>> numbers_in(const at::Tensor& tensor);

}  // namespace koila
