#include "runtime/report/sane.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace koila {
namespace {

constexpr std::int64_t kMost = std::int64_t{1} << 50;  // a sum of as many as there may be, five times over, is below 2^63
constexpr double kMostSeconds = 1e11;
constexpr std::size_t kMaxLeaks = 1000;
constexpr std::size_t kMaxSourcesShown = 1000;

template <class... Figures>
void bound(Figures&... figures) {
  ((figures = std::clamp(figures, -kMost, kMost)), ...);
}

template <class... Times>
void bound_times(Times&... times) {
  ((times = std::isfinite(times) ? std::clamp(times, 0.0, kMostSeconds) : 0), ...);
}

template <class List>
void shorten(List& list, std::size_t most) {
  if (list.size() > most) list.resize(most);
}

void bound(CategoryBytes& bytes) {
  for (std::int64_t& figure : bytes) bound(figure);
}

void bound(koila_region_event& region) {
  bound(region.batch, region.micro_batch, region.runs, region.forward_only, region.halvings, region.operators);
  bound_times(region.seconds);
}

void bound(DeviceFigures& device) {
  bound(device.live_bytes, device.peak_bytes, device.budget_bytes, device.allocations, device.frees, device.outside_bytes, device.outside_peak_bytes,
        device.outside_written_bytes, device.peak_step, device.failed_allocations, device.tensor_bytes, device.tensor_peak_bytes, device.used_bytes,
        device.untracked_bytes);
  bound(device.live_by_category);
  bound(device.peak_by_category);
  bound_times(device.peak_seconds);
  shorten(device.holders, kMaxHolders);
  for (Holder& holder : device.holders) bound(holder.bytes, holder.count, holder.step);
  shorten(device.timeline, kMaxSamples);
  for (Sample& sample : device.timeline) {
    bound_times(sample.seconds);
    bound(sample.live_bytes);
    bound(sample.by_category);
  }
  for (std::int64_t& count : device.sizes) bound(count);
}

void bound(EventList& events) {
  bound(events.steps, events.rescues, events.refusals);
  for (auto& [rung, totals] : events.rungs) {
    bound(totals.count);
    bound_times(totals.seconds);
  }
  shorten(events.oom_events, kMaxOomEvents);
  for (OomEvent& event : events.oom_events) {
    bound(event.requested_bytes, event.live_bytes, event.budget_bytes, event.micro_batch, event.batch, event.count, event.step);
    bound_times(event.seconds, event.at);
  }
  shorten(events.regions, kMaxRegions);
  for (koila_region_event& region : events.regions) bound(region);
  bound(events.last_region);
  RegionTotals& totals = events.region_totals;
  bound(totals.count, totals.runs, totals.forward_only, totals.halvings);
  bound_times(totals.seconds);
  while (events.full_batch.size() > kMaxFullBatchOps) events.full_batch.erase(std::prev(events.full_batch.end()));
  for (auto& [op, entry] : events.full_batch) bound(entry.count, entry.bytes);
  shorten(events.notes, kMaxNotes);
}

}  // namespace

void make_sane(ReportData& data) {
  bound(data.microbatch, data.pid);
  bound_times(data.started, data.seconds);
  for (DeviceFigures& device : data.devices) bound(device);
  shorten(data.sources, kMaxSourcesShown);
  for (SourceFigures& source : data.sources) bound(source.live_bytes, source.peak_bytes, source.allocations, source.frees);
  bound(data.events);
  shorten(data.steps, kMaxSamples);
  for (StepSample& step : data.steps) {
    bound_times(step.seconds);
    bound(step.step, step.live_bytes, step.peak_bytes, step.batch, step.micro_batch, step.rescues);
  }
  shorten(data.leaks, kMaxLeaks);
  for (Leak& leak : data.leaks) bound(leak.bytes, leak.bytes_per_step, leak.first_step, leak.graph_nodes);
  ProgramFacts& facts = data.facts;
  bound(facts.autocast, facts.half_parameters_bytes, facts.checkpoints, facts.kept_gradients, facts.kept_gradients_bytes, facts.graph_in_evaluation,
        facts.graph_in_evaluation_bytes, facts.foreach_bytes, facts.fused_optimizer, facts.expandable_segments, facts.fragmented_bytes, facts.size_cache);
}

}  // namespace koila
