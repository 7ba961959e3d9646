#include "shim/cupti/unseen.h"

#include <algorithm>
#include <vector>

#include "runtime/bytes.h"
#include "runtime/report/report.h"

namespace koila::cupti {

void Unseen::seen(std::uint64_t address) {
  if (const auto block = live_.find(address); block != live_.end()) {
    drop(block);
  } else {
    ++expected_[address];
  }
}

void Unseen::allocated(std::uint64_t address, std::int64_t bytes, int place, const std::string& library, bool hooked) {
  ++reports_;
  if (const auto expected = expected_.find(address); expected != expected_.end()) {
    if (--expected->second == 0) expected_.erase(expected);
    return;
  }
  // Its release was not reported.
  if (const auto stale = live_.find(address); stale != live_.end()) drop(stale);
  const auto source = figures_.try_emplace({place, library.empty() ? "unknown" : library}).first;
  live_[address] = {bytes, source, !hooked};
  if (hooked) return;
  source->second.live_bytes += bytes;
  source->second.blocks += 1;
}

void Unseen::released(std::uint64_t address) {
  ++reports_;
  if (const auto block = live_.find(address); block != live_.end()) drop(block);
}

void Unseen::drop(std::unordered_map<std::uint64_t, Block>::iterator block) {
  if (block->second.counted) {
    Figures& figures = block->second.source->second;
    figures.live_bytes -= block->second.bytes;
    figures.blocks -= 1;
  }
  live_.erase(block);
}

std::string Unseen::describe() const {
  if (reports_ == 0) return "by CUPTI: nothing was reported";
  std::map<int, std::vector<std::pair<std::int64_t, std::string>>> places;
  for (const auto& [where, figures] : figures_) {
    if (figures.blocks > 0) places[where.first].emplace_back(figures.live_bytes, where.second);
  }
  if (places.empty()) return "by CUPTI: no memory that the hooks do not see";
  std::string text = "by CUPTI:";
  for (auto& [place, libraries] : places) {
    std::sort(libraries.rbegin(), libraries.rend());
    std::int64_t bytes = 0;
    std::string list;
    for (const auto& [size, library] : libraries) {
      bytes += size;
      list += (list.empty() ? "" : ", ") + library + " " + format_bytes(size);
    }
    text += (place == places.begin()->first ? " " : "; ") + format_bytes(bytes) + " on " + device_name(place) + " not seen by the hooks: " + list;
  }
  return text;
}

}  // namespace koila::cupti
