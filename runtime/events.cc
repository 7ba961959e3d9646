#include "runtime/events.h"

#include <algorithm>

#include "runtime/record/writer.h"

namespace koila {

bool OomEvent::is_like(const OomEvent& other) const {
  return device == other.device && phase == other.phase && op == other.op && requested_bytes == other.requested_bytes &&
         outcome == other.outcome && rung == other.rung && reason == other.reason && micro_batch == other.micro_batch && batch == other.batch;
}

bool Events::add_oom(OomEvent event) {
  std::lock_guard lock(mutex_);
  event.step = list_.steps;
  ++(event.outcome == KOILA_RESCUED ? list_.rescues : list_.refusals);
  RungTotals& rung = list_.rungs[event.outcome == KOILA_RESCUED ? event.rung : 0];
  ++rung.count;
  rung.seconds += event.seconds;
  std::vector<OomEvent>& all = list_.oom_events;
  const auto like = std::find_if(all.begin(), all.end(), [&](const OomEvent& e) { return e.is_like(event); });
  const bool first = like == all.end() && all.size() < kMaxOomEvents;
  if (like != all.end()) {
    ++like->count;
    like->seconds += event.seconds;
    write_oom(static_cast<std::size_t>(like - all.begin()));
  } else if (first) {
    all.push_back(std::move(event));
    write_oom(all.size() - 1);
  }
  write_page();
  return first;
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
  if (list_.regions.size() < kMaxRegions) {
    list_.regions.push_back(event);
    if (record_ != nullptr) record_->write_region(list_.regions.size() - 1, event);
  }
  write_page();
}

EndedStep Events::add_step() {
  std::lock_guard lock(mutex_);
  EndedStep step;
  step.number = ++list_.steps;
  step.rescues = list_.rescues - rescues_before_;
  if (list_.region_totals.count > regions_before_) {
    step.batch = list_.last_region.batch;
    step.micro_batch = list_.last_region.micro_batch;
  }
  rescues_before_ = list_.rescues;
  regions_before_ = list_.region_totals.count;
  write_page();
  return step;
}

void Events::add_full_batch(const std::string& op, std::int64_t bytes) {
  std::lock_guard lock(mutex_);
  const auto found = list_.full_batch.find(op);
  if (found == list_.full_batch.end() && list_.full_batch.size() >= kMaxFullBatchOps) return;
  FullBatchOp& entry = found != list_.full_batch.end() ? found->second : list_.full_batch[op];
  ++entry.count;
  entry.bytes = std::max(entry.bytes, bytes);
  if (record_ != nullptr) record_->write_full_batch(op, entry);
}

void Events::add_note(const std::string& note) {
  std::lock_guard lock(mutex_);
  if (list_.notes.size() >= kMaxNotes || std::find(list_.notes.begin(), list_.notes.end(), note) != list_.notes.end()) return;
  list_.notes.push_back(note);
  if (record_ != nullptr) record_->write_note(list_.notes.size() - 1, note);
}

EventList Events::snapshot() const {
  std::lock_guard lock(mutex_);
  return list_;
}

std::int64_t Events::steps() const {
  std::lock_guard lock(mutex_);
  return list_.steps;
}

void Events::write_oom(std::size_t index) {
  if (record_ != nullptr) record_->write_oom(index, list_.oom_events[index]);
}

void Events::write_page() {
  if (record_ != nullptr) record_->write_page(list_);
}

void Events::write_to(RecordWriter* record) {
  std::lock_guard lock(mutex_);
  record_ = record;
  for (std::size_t i = 0; i < list_.oom_events.size(); ++i) write_oom(i);
  for (std::size_t i = 0; i < list_.regions.size(); ++i) record->write_region(i, list_.regions[i]);
  for (std::size_t i = 0; i < list_.notes.size(); ++i) record->write_note(i, list_.notes[i]);
  for (const auto& [op, entry] : list_.full_batch) record->write_full_batch(op, entry);
  write_page();
}

void Events::end_record() {
  std::lock_guard lock(mutex_);
  if (record_ != nullptr) record_->write_end(list_);
}

}  // namespace koila
