#include "torchglue/session.h"

#include <algorithm>
#include <bit>

namespace koila {

Session& make_session() {
  static auto* made = new Session;  // never destroyed: tensors may outlive static destruction
  return *(the_session = made);
}

void Session::log(int level, const std::string& message) const {
  if (level >= runtime->settings->log_level) runtime->log(level, message.c_str());
}

void Session::warn(const std::string& message) const {
  runtime->log(KOILA_LOG_WARN, message.c_str());
  runtime->on_note(message.c_str());
}

std::vector<std::shared_ptr<Region>> Session::live_regions() {
  std::vector<std::shared_ptr<Region>> live;
  auto gone = std::remove_if(regions.begin(), regions.end(), [&](const std::weak_ptr<Region>& weak) {
    auto region = weak.lock();
    if (!region || region->released()) return true;
    live.push_back(std::move(region));
    return false;
  });
  regions.erase(gone, regions.end());
  return live;
}

void Session::before_write(const c10::StorageImpl* storage) {
  if (storage == nullptr) return;
  for (const auto& region : live_regions()) {
    if (region->captures_storage(storage)) region->before_write(storage);
    region->give_up(storage);
  }
}

void Session::forget_step() {
  tape.cut();
  marks.clear();
  named.step_over();
  current.reset();
}

void Session::settle() {
  for (const auto& region : live_regions()) {
    region->materialise_held();
    region->close();
  }
  forget_step();
  named.clear();
}

void Session::stay_out(const char* why) {
  settle();
  rescue = false;
  runtime->on_note(why);
}

int64_t Session::batch_in_use() {
  for (const auto& region : live_regions()) {
    if (region->has_deferred()) return region->batch();
  }
  return 0;
}

std::shared_ptr<Region> Session::region_for(int64_t batch, int64_t micro_batch, at::Device device) {
  if (current && current->open() && current->batch() == batch && current->device() == device) return current;
  current = std::make_shared<Region>(batch, std::min(micro_batch, batch), device);
  regions.push_back(current);
  sizes.add_region(batch);
  return current;
}

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
