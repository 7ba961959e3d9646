// Which real tensors of a step are split.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/flat_hash_map.h>

#include <cstdint>

#include "torchglue/placement/placement.h"

namespace koila {

// A real tensor whose split is known: a seed, a view of one, or a value that a region gave up. Operators on it join a region.
struct Mark {
  c10::weak_intrusive_ptr<c10::TensorImpl> keep_address;
  Placement placement;
  int64_t batch = 0;
  int64_t micro_batch = 0;
};

class Marks {
 public:
  void add(const at::Tensor& tensor, const Placement& placement, int64_t batch, int64_t micro_batch);
  const Mark* find(const c10::TensorImpl* impl) const;
  void remove(const c10::TensorImpl* impl) { marks_.erase(impl); }
  void clear() { marks_.clear(); }
  bool any() const { return !marks_.empty(); }

 private:
  ska::flat_hash_map<const c10::TensorImpl*, Mark> marks_;
};

}  // namespace koila
