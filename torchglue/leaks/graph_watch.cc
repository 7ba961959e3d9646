#include "torchglue/leaks/graph_watch.h"

#include <ATen/SequenceNumber.h>
#include <dlfcn.h>
#include <malloc.h>

#include <algorithm>
#include <optional>

#include "runtime/leaks.h"
#include "torchglue/base/process.h"
#include "torchglue/leaks/holders.h"

namespace koila {

namespace {

constexpr int64_t kLookEvery = 8;         // steps, at first; then after a 16th of the steps so far
constexpr int64_t kRarer = 16;
constexpr int64_t kNodesAtLeast = 64;
constexpr int64_t kBytesOfANode = 4096;   // no node has more: a heap that grew more grew by something else too

// In use on the C library's heap, in bytes. Nothing where it is another allocator's, or too old a library to say.
std::optional<int64_t> heap_in_use() {
  static const auto ask = reinterpret_cast<struct mallinfo2 (*)()>(dlsym(RTLD_DEFAULT, "mallinfo2"));
  if (ask == nullptr) return std::nullopt;
  const struct mallinfo2 info = ask();
  const auto bytes = static_cast<int64_t>(info.uordblks + info.hblkhd);
  return bytes > 0 ? std::make_optional(bytes) : std::nullopt;
}

}  // namespace

void GraphWatch::after_step(bool may_search) {
  boundaries_.push_back(at::sequence_number::peek());
  if (boundaries_.size() > kBoundaries) boundaries_.pop_front();
  ++steps_;
  if (steps_ < next_look_) return;
  next_look_ = steps_ + std::max(kLookEvery, steps_ / kRarer);
  const std::optional<int64_t> heap = heap_in_use();
  if (!heap) return;
  looks_.emplace_back(steps_, *heap - process().runtime->live_bytes(KOILA_CPU));
  if (looks_.size() > kLeakLooks) looks_.erase(looks_.begin());
  if (first_.first == 0) first_ = looks_.front();
  if (!may_search || steps_ < next_search_) return;
  if (const int64_t per_step = growth_per_step(looks_); per_step > 0) search(per_step, looks_.back().second - first_.second);
}

// Each search costs some tenths of a second, so they become rare.
void GraphWatch::search(int64_t per_step, int64_t grown) {
  next_search_ = steps_ * 4;
  const GraphKeeper keeper = find_graph_keeper(old_before());
  if (keeper.nodes < kNodesAtLeast) return;
  const bool plausible = grown <= keeper.nodes * kBytesOfANode;
  const koila_leak leak{KOILA_CPU, KOILA_OTHER, "", "", keeper.holder.c_str(), plausible ? grown : 0, plausible ? per_step : 0, first_.first, keeper.nodes};
  process().runtime->on_leak(&leak);
}

}  // namespace koila
