#include <algorithm>
#include <cstdio>

#include "runtime/bytes.h"
#include "runtime/report/report.h"

namespace koila {
namespace {

constexpr std::size_t kShownEvents = 5;
constexpr std::size_t kShownOps = 4;
constexpr std::size_t kShownSources = 5;
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
  if (device.failed_allocations > 0) line += ", " + std::to_string(device.failed_allocations) + " failed";
  return line;
}

// Of the kinds, device memory needs no name, and a place of its own says what it is.
std::string source_name(const SourceFigures& source) {
  switch (source.kind) {
    case MemoryKind::kPool: return "pool of " + source.library;
    case MemoryKind::kArray: return "arrays of " + source.library;
    case MemoryKind::kVirtual: return "segments of " + source.library;
    case MemoryKind::kDevice:
    case MemoryKind::kManaged:
    case MemoryKind::kPinned: break;
  }
  return source.library;
}

// Those who held most first, at their peaks: at exit most has been given back. "" when nobody held any.
std::string sources_line(const ReportData& data, int device) {
  std::vector<SourceFigures> sources;
  for (const SourceFigures& source : data.sources)
    if (source.place == device) sources.push_back(source);
  if (sources.empty()) return "";
  std::stable_sort(sources.begin(), sources.end(), [](const auto& a, const auto& b) { return a.peak_bytes > b.peak_bytes; });
  std::string line = device_name(device) + " by source: ";
  for (std::size_t i = 0; i < std::min(sources.size(), kShownSources); ++i) {
    if (i > 0) line += ", ";
    line += source_name(sources[i]) + " " + format_bytes(sources[i].live_bytes);
    if (sources[i].peak_bytes != sources[i].live_bytes) line += " (peak " + format_bytes(sources[i].peak_bytes) + ")";
  }
  if (sources.size() > kShownSources) line += " and " + std::to_string(sources.size() - kShownSources) + " more";
  return line;
}

std::string tensors_line(const DeviceFigures& device) {
  return device_name(device.device) + " tensors inside the caching allocator: peak " + format_bytes(device.tensor_peak_bytes) + ", " +
         format_bytes(device.tensor_bytes) + " live at exit";
}

std::string untracked_line(const DeviceFigures& device) {
  return device_name(device.device) + " untracked: " + format_bytes(device.untracked_bytes) + " of the " + format_bytes(device.used_bytes) +
         " that were in use when it was last asked (CUDA's own, statically linked runtimes, other processes)";
}

std::string outside_line(const DeviceFigures& device) {
  return "kept outside, " + std::string(device.device == KOILA_CPU ? "in files" : "in pinned memory for " + device_name(device.device)) + ": peak " +
         format_bytes(device.outside_peak_bytes) + ", " + format_bytes(device.outside_written_bytes) + " written in all";
}

// The CPU, the devices, then what CUDA gives outside them.
std::vector<DeviceFigures> in_order(std::vector<DeviceFigures> devices) {
  std::stable_partition(devices.begin(), devices.end(), [](const DeviceFigures& d) { return d.device >= KOILA_CPU; });
  return devices;
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
    if (event.micro_batch > 0) line += "running in micro-batches of " + rows(event.micro_batch, event.batch);
    else if (event.rung == KOILA_RUNG_RETRY) line += "tried again, now that there is room";
    else if (event.rung == KOILA_RUNG_OFFLOAD) line += "nothing can be split; what does not fit is kept outside";
    else line += "going on";
  } else {
    line += event.reason.empty() ? "the program gets the error" : event.reason;
  }
  return line;
}

std::string report_text(const ReportData& data) {
  const EventList& events = data.events;
  std::string text = "koila: ";
  if (data.torch_version.empty() && events.steps == 0) text += "a program without PyTorch";
  else text += plural(events.steps, "step") + ", " + plural(events.rescues, "rescue") + ", " + plural(events.refusals, "refusal");
  text += std::string("; mode ") + mode_name(data.mode);
  if (data.microbatch > 0) text += ", micro-batches of " + std::to_string(data.microbatch) + " rows asked for";
  text += ", pid " + std::to_string(data.pid) + "\n";
  const auto add = [&](const std::string& line) { text += "koila:   " + line + "\n"; };

  for (const DeviceFigures& device : in_order(data.devices)) {
    add(device_line(device));
    if (const std::string line = sources_line(data, device.device); !line.empty()) add(line);
    if (device.tensor_peak_bytes > 0) add(tensors_line(device));
    if (device.outside_written_bytes > 0) add(outside_line(device));
    if (device.untracked_bytes > 0) add(untracked_line(device));
  }
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

}  // namespace koila
