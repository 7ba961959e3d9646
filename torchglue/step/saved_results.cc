#include "torchglue/step/saved_results.h"

#include <algorithm>

namespace koila {

void SavedResults::note(const at::Tensor& result) {
  noted_.erase(std::remove_if(noted_.begin(), noted_.end(), [](const auto& noted) { return noted.expired(); }), noted_.end());
  noted_.emplace_back(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(result.storage().unsafeGetStorageImpl()));
}

bool SavedResults::has(const c10::StorageImpl* storage) const {
  return std::any_of(noted_.begin(), noted_.end(), [&](const auto& noted) { return noted._unsafe_get_target() == storage && !noted.expired(); });
}

}  // namespace koila
