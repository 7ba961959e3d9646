#include "torchglue/step/fresh_zeros.h"

#include <algorithm>

#include "torchglue/tape/tape.h"

namespace koila {

void FreshZeros::note(const at::Tensor& zeros) {
  constexpr size_t kAtMost = 256;
  if (noted_.size() >= kAtMost) noted_.erase(noted_.begin(), noted_.begin() + kAtMost / 2);
  noted_.emplace_back(c10::weak_intrusive_ptr<c10::TensorImpl>(zeros.getIntrusivePtr()), version_of(zeros));
}

bool FreshZeros::has(const at::Tensor& tensor) const {
  return std::any_of(noted_.begin(), noted_.end(), [&](const auto& noted) { return noted.first._unsafe_get_target() == tensor.unsafeGetTensorImpl() && noted.second == version_of(tensor); });
}

}  // namespace koila
