// Tensors of zeros that the step has made, and that nothing has been written to yet.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace koila {

// Note [Zeros that rows are added to]
// `out = zeros(n, d); out.index_add_(0, i, rows)` puts rows together that lie anywhere in `out`: a sum over the rows, where each row of the batch adds its own. A region can make that sum
// where `out` is its own from the beginning. A plan over a tape knows how it was made. In a step that begins in micro-batches the program makes it before anybody knows what it is for, and has it
// with its memory; it becomes a value of the region when rows are added to it (Region::take_zeros), as long as nobody else can have looked at that memory: it is forgotten here as soon as the
// program asks for any pointer. The same of `zeros(B * T, codes).scatter_(1, index, 1)`, where each row writes to its own: which dimension is the rows' shows by what is written.
// Thread contract: the owner's.
class FreshZeros {
 public:
  void note(const at::Tensor& zeros);
  bool has(const at::Tensor& tensor) const;
  bool any() const { return !noted_.empty(); }
  void forget() { noted_.clear(); }

 private:
  std::vector<std::pair<c10::weak_intrusive_ptr<c10::TensorImpl>, uint32_t>> noted_;  // and its version then
};

}  // namespace koila
