#include "torchglue/step/marks.h"

#include <bit>

namespace koila {

// A loop without backward passes marks each of its batches, and nothing clears them: those that are gone are forgotten now and then.
void Marks::add(const at::Tensor& tensor, const Placement& placement, int64_t batch, int64_t micro_batch) {
  constexpr size_t kManyAtLeast = 256;
  if (marks_.size() >= kManyAtLeast && std::has_single_bit(marks_.size())) {
    for (auto it = marks_.begin(); it != marks_.end();) {
      if (it->second.keep_address.expired()) {
        it = marks_.erase(it);
      } else {
        ++it;
      }
    }
  }
  marks_.insert_or_assign(tensor.unsafeGetTensorImpl(),
                          Mark{c10::weak_intrusive_ptr<c10::TensorImpl>(tensor.getIntrusivePtr()), placement, batch, micro_batch});
}

const Mark* Marks::find(const c10::TensorImpl* impl) const {
  auto it = marks_.find(impl);
  return it == marks_.end() ? nullptr : &it->second;
}

}  // namespace koila
