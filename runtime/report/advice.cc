#include "runtime/report/advice.h"

#include <algorithm>
#include <string>

#include "runtime/report/report.h"

namespace koila {
namespace {

std::string plural(std::int64_t n, const char* what) { return std::to_string(n) + " " + what + (n == 1 ? "" : "s"); }

// The operator at full batch with the most bytes.
std::string largest_at_full_batch(const EventList& events) {
  return std::max_element(events.full_batch.begin(), events.full_batch.end(), [](const auto& a, const auto& b) { return a.second.bytes < b.second.bytes; })
      ->first;
}

}  // namespace

std::string next_thing_to_try(const ReportData& data) {
  const EventList& events = data.events;
  const auto with_budget = [&](auto holds) {
    return std::any_of(data.devices.begin(), data.devices.end(), [&](const DeviceFigures& d) { return d.budget_bytes > 0 && holds(d); });
  };

  if (data.mode == KOILA_MODE_TRACK && events.refusals > 0) return "KOILA_MODE=rescue, which recovers from out-of-memory errors";
  if (events.refusals > 0 && !events.full_batch.empty())
    return "a rule for " + largest_at_full_batch(events) + " (KOILA_RULES), which kept its whole batch in memory, or a larger budget";
  if (events.refusals > 0) return "a larger budget, or a change that the refusal's reason names";
  if (!events.full_batch.empty() && events.region_totals.count > 0)
    return "a rule for " + largest_at_full_batch(events) + " (KOILA_RULES) would let it run in micro-batches too";
  const auto rescues_by = [&](int rung) {
    const auto found = events.rungs.find(rung);
    return found == events.rungs.end() ? std::int64_t{0} : found->second.count;
  };
  if (rescues_by(KOILA_RUNG_OFFLOAD) > 0)
    return "a larger budget or a smaller batch: in " + plural(rescues_by(KOILA_RUNG_OFFLOAD), "step") + " what nothing could split was kept outside, which is slower";
  if (data.mode == KOILA_MODE_RESCUE && data.microbatch == 0 && events.steps >= 10 && rescues_by(KOILA_RUNG_SPLIT) * 2 > events.steps)
    return "KOILA_MICROBATCH=" + std::to_string(events.last_region.micro_batch) + ", since most steps had to be rescued anew";
  if (events.rescues == 0 && events.region_totals.count == 0 && with_budget([](const DeviceFigures& d) { return d.peak_bytes > 0; }) &&
      !with_budget([](const DeviceFigures& d) { return d.failed_allocations > 0; }))
    return "nothing to do: the budget was never reached";
  return "";
}

std::vector<Advice> advice(const ReportData& data) {
  const std::string next = next_thing_to_try(data);
  return next.empty() ? std::vector<Advice>() : std::vector<Advice>{{next, 0}};
}

}  // namespace koila
