// What the session asks of its regions. Here, since the session itself lies below them: see docs/architecture.md, "What may call what".
#include <algorithm>
#include <iterator>
#include <utility>

#include "torchglue/region/boundary_store.h"
#include "torchglue/region/deferred.h"
#include "torchglue/region/region.h"
#include "torchglue/step/session.h"
#include "torchglue/step/spare.h"

namespace koila {

std::vector<std::shared_ptr<Region>> Session::live_regions() {
  const auto held = std::exchange(looked_at, {});  // to the end: a region that goes may lead back here
  std::copy_if(held.begin(), held.end(), std::back_inserter(looked_at), [](const auto& region) { return !region->released() && !region->looked_at().empty(); });
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
  if (boundaries().let_go(storage)) materialise_storage(storage);
  boundaries().keep_value(storage);
  for (const auto& region : live_regions()) {
    if (region->captures_storage(storage)) region->before_write(storage);
    region->give_up(storage);
  }
}

bool spare_first_frames() {
  bool spared = false;
  for (const auto& region : session().live_regions()) spared |= region->spare_first_frame();
  return spared;
}

// What a step that was refused leaves, once the program has let go of it, and went on to the next one.
bool release_unreachable_regions() {
  bool released = false;
  for (const auto& region : session().live_regions()) {
    if (!region->is_unreachable()) continue;
    region->release();
    released = true;
  }
  return released;
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

bool Session::holds_region() { return deferred_registry().any() || !live_regions().empty(); }

}  // namespace koila
