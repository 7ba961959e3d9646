#include "runtime/report/phrases.h"

#include <algorithm>
#include <cstdio>
#include <numeric>

#include "runtime/bytes.h"
#include "runtime/report/remedy.h"
#include "runtime/report/report.h"

namespace koila {
namespace {

constexpr std::size_t kShownOps = 4;
constexpr std::size_t kShownSources = 5;

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

}  // namespace

std::string plural(std::int64_t n, const char* what) { return std::to_string(n) + " " + what + (n == 1 ? "" : "s"); }

std::string rows(std::int64_t micro_batch, std::int64_t batch) {
  return batch > 0 ? std::to_string(micro_batch) + " of " + plural(batch, "row") : plural(micro_batch, "row");
}

std::string duration(double seconds) {
  char text[64];
  if (seconds < kNoTime) return "<1 ms";
  if (seconds < 0.0995) std::snprintf(text, sizeof text, "%.0f ms", seconds * 1e3);
  else if (seconds < 600) std::snprintf(text, sizeof text, "%.1f s", seconds);
  else if (seconds < 36000) std::snprintf(text, sizeof text, "%.0f min", seconds / 60);
  else std::snprintf(text, sizeof text, "%.1f h", seconds / 3600);
  return text;
}

std::string step_time(double seconds) {
  if (seconds < 0.0995 || seconds >= 9.95) return duration(seconds);
  char text[32];
  std::snprintf(text, sizeof text, "%.2f s", seconds);
  return text;
}

double seconds_of_running_out(const ReportData& data) {
  double seconds = 0;
  for (const auto& [rung, totals] : data.events.rungs) seconds += totals.seconds;
  return seconds;
}

std::string share(std::int64_t part, std::int64_t whole) {
  const double percent = whole > 0 ? 100 * static_cast<double>(part) / static_cast<double>(whole) : 0;
  char text[32];
  if (percent < 0.5) return "(<1%)";
  std::snprintf(text, sizeof text, "(%.0f%%)", percent);
  return text;
}

std::string innermost(const std::string& where) { return where.substr(0, where.find('\n')); }

std::string shortened(const std::string& name) {
  constexpr std::size_t kKept = 40;
  return name.size() <= 2 * kKept ? name : name.substr(0, kKept) + "..." + name.substr(name.size() - kKept);
}

std::int64_t sum_of(const CategoryBytes& bytes) { return std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0}); }

std::vector<std::pair<std::int64_t, std::string>> parts_of_peak(const DeviceFigures& device) {
  std::vector<std::pair<std::int64_t, std::string>> parts;
  for (int category = 0; category < KOILA_CATEGORIES; ++category)
    if (device.peak_by_category[category] > 0) parts.emplace_back(device.peak_by_category[category], category_name(category));
  const std::int64_t tensors = sum_of(device.peak_by_category);
  if (device.device >= 0) {
    if (device.peak_bytes > tensors) parts.emplace_back(device.peak_bytes - tensors, "cached, or no tensors");
    if (device.untracked_bytes > 0) parts.emplace_back(device.untracked_bytes, "untracked");
  }
  std::stable_sort(parts.begin(), parts.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  return parts;
}

std::string holder_line(const Holder& holder) {
  std::string line = format_bytes(holder.bytes) + " in " + plural(holder.count, "tensor") + ": " + category_name(holder.category);
  if (!holder.op.empty()) line += " of " + shortened(holder.op);
  if (!holder.where.empty()) line += ", made at " + innermost(holder.where);
  return line;
}

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

std::string outside_line(const DeviceFigures& device) {
  return "kept outside, " + std::string(device.device == KOILA_CPU ? "in files" : "in pinned memory for " + device_name(device.device)) + ": peak " +
         format_bytes(device.outside_peak_bytes) + ", " + format_bytes(device.outside_written_bytes) + " written in all";
}

std::string leak_line(const Leak& leak) {
  std::string line = "leak: ";
  if (leak.graph_nodes > 0) line += plural(leak.graph_nodes, "node") + " of autograd graphs by now";
  else line += format_bytes(leak.bytes_per_step) + " a step on " + device_name(leak.device) + ", " + format_bytes(leak.bytes) + " by now";
  line += ", since step " + std::to_string(leak.first_step);
  if (leak.graph_nodes == 0) line += std::string(": ") + category_name(leak.category);
  if (!leak.op.empty()) line += " of " + shortened(leak.op);
  if (!leak.where.empty()) line += ", made at " + innermost(leak.where);
  if (!leak.holder.empty()) line += "; held by " + leak.holder;
  return line;
}

std::string full_batch_line(const EventList& events) {
  std::vector<std::pair<std::string, FullBatchOp>> ops(events.full_batch.begin(), events.full_batch.end());
  std::stable_sort(ops.begin(), ops.end(), [](const auto& a, const auto& b) { return a.second.bytes > b.second.bytes; });
  std::string line = "at full batch for want of a rule: ";
  for (std::size_t i = 0; i < std::min(ops.size(), kShownOps); ++i) {
    if (i > 0) line += ", ";
    line += shortened(ops[i].first) + " (" + format_bytes(ops[i].second.bytes) + ", " + plural(ops[i].second.count, "time") + ")";
  }
  if (ops.size() > kShownOps) line += " and " + std::to_string(ops.size() - kShownOps) + " more";
  return line;
}

std::string next_line(const ReportData& data) {
  const std::string next = next_thing_to_try(data);
  const auto& events = data.events.oom_events;
  const auto refused = std::find_if(events.begin(), events.end(), [](const OomEvent& e) { return e.outcome == KOILA_REFUSED; });
  return next.empty() || (refused != events.end() && next == remedy(refused->reason)) ? "" : "next: " + next;
}

std::vector<const DeviceFigures*> in_order(const ReportData& data) {
  std::vector<const DeviceFigures*> devices;
  for (const DeviceFigures& device : data.devices) devices.push_back(&device);
  std::stable_partition(devices.begin(), devices.end(), [](const DeviceFigures* d) { return d->device >= KOILA_CPU; });
  return devices;
}

}  // namespace koila
