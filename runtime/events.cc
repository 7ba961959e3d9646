#include "runtime/events.h"

#include <algorithm>

namespace koila {

bool OomEvent::is_like(const OomEvent& other) const {
  return device == other.device && phase == other.phase && op == other.op && requested_bytes == other.requested_bytes &&
         outcome == other.outcome && rung == other.rung && reason == other.reason && micro_batch == other.micro_batch && batch == other.batch;
}

bool Events::add_oom(const OomEvent& event) {
  std::lock_guard lock(mutex_);
  ++(event.outcome == KOILA_RESCUED ? list_.rescues : list_.refusals);
  RungTotals& rung = list_.rungs[event.outcome == KOILA_RESCUED ? event.rung : 0];
  ++rung.count;
  rung.seconds += event.seconds;
  const auto like = std::find_if(list_.oom_events.begin(), list_.oom_events.end(), [&](const OomEvent& e) { return e.is_like(event); });
  if (like != list_.oom_events.end()) {
    ++like->count;
    like->seconds += event.seconds;
    return false;
  }
  if (list_.oom_events.size() >= kMaxOomEvents) return false;
  list_.oom_events.push_back(event);
  return true;
}

void Events::add_region(const koila_region_event& event) {
  std::lock_guard lock(mutex_);
  RegionTotals& totals = list_.region_totals;
  ++totals.count;
  totals.runs += event.runs;
  totals.forward_only += event.forward_only;
  totals.halvings += event.halvings;
  totals.seconds += event.seconds;
  list_.last_region = event;
  if (list_.regions.size() < kMaxRegions) list_.regions.push_back(event);
}

void Events::add_step() {
  std::lock_guard lock(mutex_);
  ++list_.steps;
}

void Events::add_full_batch(const std::string& op, std::int64_t bytes) {
  std::lock_guard lock(mutex_);
  const auto found = list_.full_batch.find(op);
  if (found == list_.full_batch.end() && list_.full_batch.size() >= kMaxFullBatchOps) return;
  FullBatchOp& entry = found != list_.full_batch.end() ? found->second : list_.full_batch[op];
  ++entry.count;
  entry.bytes = std::max(entry.bytes, bytes);
}

void Events::add_note(const std::string& note) {
  std::lock_guard lock(mutex_);
  if (list_.notes.size() >= kMaxNotes || std::find(list_.notes.begin(), list_.notes.end(), note) != list_.notes.end()) return;
  list_.notes.push_back(note);
}

EventList Events::snapshot() const {
  std::lock_guard lock(mutex_);
  return list_;
}

}  // namespace koila
