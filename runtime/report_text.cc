#include <algorithm>
#include <cstdio>

#include "runtime/bytes.h"
#include "runtime/report.h"

namespace koila {
namespace {

constexpr std::size_t kShownEvents = 5;
constexpr std::size_t kShownOps = 4;
constexpr std::size_t kShownNotes = 3;

std::string plural(std::int64_t n, const char* what) {
  return std::to_string(n) + " " + what + (n == 1 ? "" : "s");
}

std::string rows(std::int64_t micro_batch, std::int64_t batch) {
  return std::to_string(micro_batch) + (batch > 0 ? " of " + std::to_string(batch) : "") + " rows";
}

std::string device_line(const DeviceFigures& device) {
  std::string line = device_name(device.device) + ": peak " + format_bytes(device.peak_bytes);
  if (device.budget_bytes > 0) line += " of a budget of " + format_bytes(device.budget_bytes);
  line += ", " + format_bytes(device.live_bytes) + " live at exit, " + plural(device.allocations, "allocation") + ", " +
          plural(device.frees, "free");
  return line;
}

std::string region_line(const EventList& events) {
  const RegionTotals& totals = events.region_totals;
  const koila_region_event& last = events.last_region;
  char seconds[32];
  std::snprintf(seconds, sizeof seconds, "%.1f s", totals.seconds);
  std::string line = "micro-batch in use: " + rows(last.micro_batch, last.batch) + "; " + plural(totals.count, "region") + " in " +
                     plural(totals.runs, "pass");
  if (totals.runs != 1) line.replace(line.size() - 1, 1, "es");
  if (totals.forward_only > 0) line += " (" + std::to_string(totals.forward_only) + " forward only)";
  if (totals.halvings > 0) line += ", " + plural(totals.halvings, "halving");
  return line + ", " + seconds;
}

// The ops at full batch, those with the most bytes first.
std::vector<std::pair<std::string, FullBatchOp>> by_bytes(const EventList& events) {
  std::vector<std::pair<std::string, FullBatchOp>> ops(events.full_batch.begin(), events.full_batch.end());
  std::stable_sort(ops.begin(), ops.end(), [](const auto& a, const auto& b) { return a.second.bytes > b.second.bytes; });
  return ops;
}

std::string full_batch_line(const EventList& events) {
  const auto ops = by_bytes(events);
  std::string line = "at full batch for want of a rule: ";
  for (std::size_t i = 0; i < std::min(ops.size(), kShownOps); ++i) {
    if (i > 0) line += ", ";
    line += ops[i].first + " (" + format_bytes(ops[i].second.bytes) + ", " + plural(ops[i].second.count, "time") + ")";
  }
  if (ops.size() > kShownOps) line += " and " + std::to_string(ops.size() - kShownOps) + " more";
  return line;
}

}  // namespace

std::string describe(const OomEvent& event) {
  std::string line = event.outcome == KOILA_RESCUED ? "rescued" : "refused";
  line += ": out of memory";
  if (!event.op.empty()) line += " in " + event.op;
  line += std::string(" (") + phase_name(event.phase) + ") on " + device_name(event.device);
  if (event.requested_bytes > 0) line += ", wanted " + format_bytes(event.requested_bytes);
  line += (event.requested_bytes > 0 ? " with " : ", with ") + format_bytes(event.live_bytes);
  if (event.budget_bytes > 0) line += " of " + format_bytes(event.budget_bytes);
  line += " in use: ";
  if (event.outcome == KOILA_RESCUED) {
    line += event.micro_batch > 0 ? "running in micro-batches of " + rows(event.micro_batch, event.batch) : "going on";
  } else {
    line += event.reason.empty() ? "the program gets the error" : event.reason;
  }
  return line;
}

std::string report_text(const ReportData& data) {
  const EventList& events = data.events;
  std::string text = "koila: " + plural(events.steps, "step") + ", " + plural(events.rescues, "rescue") + ", " +
                     plural(events.refusals, "refusal") + "; mode " + mode_name(data.mode);
  if (data.microbatch > 0) text += ", micro-batches of " + std::to_string(data.microbatch) + " rows asked for";
  text += ", pid " + std::to_string(data.pid) + "\n";
  const auto add = [&](const std::string& line) { text += "koila:   " + line + "\n"; };

  for (const DeviceFigures& device : data.devices) add(device_line(device));
  for (std::size_t i = 0; i < std::min(events.oom_events.size(), kShownEvents); ++i) {
    const OomEvent& event = events.oom_events[i];
    add(describe(event) + (event.count > 1 ? " (" + std::to_string(event.count) + " times)" : ""));
  }
  if (events.oom_events.size() > kShownEvents) add("and " + std::to_string(events.oom_events.size() - kShownEvents) + " more");
  if (events.region_totals.count > 0) add(region_line(events));
  if (!events.full_batch.empty()) add(full_batch_line(events));
  for (std::size_t i = 0; i < std::min(events.notes.size(), kShownNotes); ++i) add("note: " + events.notes[i]);
  if (events.notes.size() > kShownNotes) add("and " + plural(events.notes.size() - kShownNotes, "further note"));
  if (const std::string next = next_thing_to_try(data); !next.empty()) add("next: " + next);
  return text;
}

std::string next_thing_to_try(const ReportData& data) {
  const EventList& events = data.events;
  const auto with_budget =
      std::find_if(data.devices.begin(), data.devices.end(), [](const DeviceFigures& d) { return d.budget_bytes > 0; });

  if (data.mode == KOILA_MODE_TRACK && events.refusals > 0) return "KOILA_MODE=rescue, which recovers from out-of-memory errors";
  if (events.refusals > 0 && !events.full_batch.empty())
    return "a rule for " + by_bytes(events).front().first + " (KOILA_RULES), which kept its whole batch in memory, or a larger budget";
  if (events.refusals > 0) return "a larger budget, or a change that the refusal's reason names";
  if (!events.full_batch.empty() && events.region_totals.count > 0)
    return "a rule for " + by_bytes(events).front().first + " (KOILA_RULES) would let it run in micro-batches too";
  if (data.mode == KOILA_MODE_RESCUE && data.microbatch == 0 && events.rescues > 0 && events.steps >= 10 &&
      events.rescues * 2 > events.steps)
    return "KOILA_MICROBATCH=" + std::to_string(events.last_region.micro_batch) + ", since most steps had to be rescued anew";
  if (with_budget != data.devices.end() && events.rescues == 0 && events.region_totals.count == 0 && with_budget->peak_bytes > 0)
    return "nothing to do: the budget was never reached";
  return "";
}

}  // namespace koila
