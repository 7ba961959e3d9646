#include <algorithm>
#include <cstdio>
#include <numeric>
#include <utility>

#include "runtime/bytes.h"
#include "runtime/report/page.h"
#include "runtime/report/report.h"

namespace koila {
namespace {

constexpr std::size_t kShownEvents = 5;
constexpr std::size_t kShownRefusals = 3;  // of these
constexpr std::size_t kShownOps = 4;
constexpr std::size_t kShownSources = 5;
constexpr std::size_t kShownNotes = 3;
constexpr std::size_t kShownHolders = 3;
constexpr std::size_t kShownLeaks = 2;

// What gives way first where all of it is more than a screen.
enum Rank { kAlways = 0, kFirst, kSecond, kThird, kLast };

std::string plural(std::int64_t n, const char* what) { return std::to_string(n) + " " + what + (n == 1 ? "" : "s"); }

std::string rows(std::int64_t micro_batch, std::int64_t batch) {
  return std::to_string(micro_batch) + (batch > 0 ? " of " + std::to_string(batch) : "") + " rows";
}

// "12 ms", "3.4 s", "17 min", "12.5 h".
std::string duration(double seconds) {
  char text[64];
  if (seconds < 0.0995) std::snprintf(text, sizeof text, "%.0f ms", seconds * 1e3);
  else if (seconds < 600) std::snprintf(text, sizeof text, "%.1f s", seconds);
  else if (seconds < 36000) std::snprintf(text, sizeof text, "%.0f min", seconds / 60);
  else std::snprintf(text, sizeof text, "%.1f h", seconds / 3600);
  return text;
}

// "(72%)" of a whole.
std::string share(std::int64_t part, std::int64_t whole) {
  const double percent = whole > 0 ? 100 * static_cast<double>(part) / static_cast<double>(whole) : 0;
  char text[32];
  if (percent < 0.5) return "(<1%)";
  std::snprintf(text, sizeof text, "(%.0f%%)", percent);
  return text;
}

// The innermost frame: the others are in the JSON.
std::string innermost(const std::string& where) { return where.substr(0, where.find('\n')); }

// A C++ template's or a compiled kernel's name may be a page long; both of its ends tell something.
std::string shortened(const std::string& name) {
  constexpr std::size_t kKept = 40;
  return name.size() <= 2 * kKept ? name : name.substr(0, kKept) + "..." + name.substr(name.size() - kKept);
}

const char* when_of(RunEnd end) {
  switch (end) {
    case RunEnd::kRunning: return "now";
    case RunEnd::kCutOff: return "at the end";
    case RunEnd::kExited: break;
  }
  return "at exit";
}

std::string head_line(const ReportData& data) {
  const EventList& events = data.events;
  std::string line;
  if (data.end == RunEnd::kRunning) line = "still running, after " + duration(data.seconds) + ": ";
  if (data.end == RunEnd::kCutOff) line = "cut off after " + duration(data.seconds) + ", without an exit (killed, or crashed): ";
  if (data.torch_version.empty() && events.steps == 0) line += "a program without PyTorch";
  else line += plural(events.steps, "step") + ", " + plural(events.rescues, "rescue") + ", " + plural(events.refusals, "refusal");
  line += std::string("; mode ") + mode_name(data.mode);
  if (data.microbatch > 0) line += ", micro-batches of " + std::to_string(data.microbatch) + " rows asked for";
  return line + ", pid " + std::to_string(data.pid);
}

std::string device_line(const DeviceFigures& device, RunEnd end) {
  std::string line = device_name(device.device) + ": peak " + format_bytes(device.peak_bytes);
  if (device.budget_bytes > 0) line += " of a budget of " + format_bytes(device.budget_bytes);
  line += ", " + format_bytes(device.live_bytes) + " live " + when_of(end) + ", " + plural(device.allocations, "allocation") + ", " +
          plural(device.frees, "free");
  if (device.failed_allocations > 0) line += ", " + std::to_string(device.failed_allocations) + " failed";
  return line;
}

std::int64_t sum_of(const CategoryBytes& bytes) { return std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0}); }

// By category, the largest first. On CUDA the tensors lie inside what was got from the device, and that is not all that is in use there.
std::string peak_line(const DeviceFigures& device) {
  std::vector<std::pair<std::int64_t, std::string>> parts;
  for (int category = 0; category < KOILA_CATEGORIES; ++category)
    if (device.peak_by_category[category] > 0) parts.emplace_back(device.peak_by_category[category], category_name(category));
  const std::int64_t tensors = sum_of(device.peak_by_category);
  if (device.device >= 0) {
    if (device.peak_bytes > tensors) parts.emplace_back(device.peak_bytes - tensors, "cached, or no tensors");
    if (device.untracked_bytes > 0) parts.emplace_back(device.untracked_bytes, "untracked");
  }
  std::stable_sort(parts.begin(), parts.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  std::int64_t whole = 0;
  for (const auto& part : parts) whole += part.first;

  std::string line = "at the peak";
  if (device.peak_step > 0) line += ", in step " + std::to_string(device.peak_step + 1);
  line += ": ";
  for (std::size_t i = 0; i < parts.size(); ++i)
    line += (i > 0 ? ", " : "") + parts[i].second + " " + format_bytes(parts[i].first) + " " + share(parts[i].first, whole);
  return line;
}

std::string holder_line(const Holder& holder) {
  std::string line = format_bytes(holder.bytes) + " in " + plural(holder.count, "tensor") + ": " + category_name(holder.category);
  if (!holder.op.empty()) line += " of " + shortened(holder.op);
  if (!holder.where.empty()) line += ", made at " + innermost(holder.where);
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

std::string tensors_line(const DeviceFigures& device, RunEnd end) {
  return device_name(device.device) + " tensors inside the caching allocator: peak " + format_bytes(device.tensor_peak_bytes) + ", " +
         format_bytes(device.tensor_bytes) + " live " + when_of(end);
}

std::string untracked_line(const DeviceFigures& device) {
  return device_name(device.device) + " untracked: " + format_bytes(device.untracked_bytes) + " of the " + format_bytes(device.used_bytes) +
         " last seen in use (CUDA's own, static runtimes, other processes)";
}

std::string outside_line(const DeviceFigures& device) {
  return "kept outside, " + std::string(device.device == KOILA_CPU ? "in files" : "in pinned memory for " + device_name(device.device)) + ": peak " +
         format_bytes(device.outside_peak_bytes) + ", " + format_bytes(device.outside_written_bytes) + " written in all";
}

// The CPU, the devices, then what CUDA gives outside them; of like ones in their order.
std::vector<const DeviceFigures*> in_order(const ReportData& data) {
  std::vector<const DeviceFigures*> devices;
  for (const DeviceFigures& device : data.devices) devices.push_back(&device);
  std::stable_partition(devices.begin(), devices.end(), [](const DeviceFigures* d) { return d->device >= KOILA_CPU; });
  return devices;
}

void add_devices(Page& page, const ReportData& data) {
  const std::vector<const DeviceFigures*> devices = in_order(data);
  for (std::size_t i = 0; i < devices.size(); ++i) {
    const DeviceFigures& device = *devices[i];
    const bool has_categories = sum_of(device.peak_by_category) > 0;
    page.add(device_line(device, data.end), i < 1 ? kAlways : i < 4 ? kFirst : kSecond, Tone::kTitle);
    if (has_categories) page.add(peak_line(device), i < 1 ? kAlways : i < 2 ? kSecond : kThird, Tone::kPlain, 2);
    for (std::size_t h = 0; h < std::min(device.holders.size(), kShownHolders); ++h)
      page.add(holder_line(device.holders[h]), i == 0 && h == 0 ? kFirst : i == 0 ? kSecond : kThird, Tone::kPlain, 2);
    if (const std::string line = sources_line(data, device.device); !line.empty()) page.add(line, kThird);
    if (device.tensor_peak_bytes > 0) page.add(tensors_line(device, data.end), kThird);
    if (device.outside_written_bytes > 0) page.add(outside_line(device), kSecond);
    if (device.untracked_bytes > 0 && !has_categories) page.add(untracked_line(device), kThird);
  }
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

// "(3 times, 1.5 s)".
std::string cost_of(const OomEvent& event) {
  std::string text = event.count > 1 ? std::to_string(event.count) + " times" : "";
  if (event.seconds > 0) text += (text.empty() ? "" : ", ") + duration(event.seconds);
  return text.empty() ? "" : " (" + text + ")";
}

// Refusals before rescues, and both in the order in which they came.
void add_events(Page& page, const std::vector<OomEvent>& events) {
  std::vector<std::size_t> shown;
  for (std::size_t i = 0; i < events.size() && shown.size() < kShownRefusals; ++i)
    if (events[i].outcome == KOILA_REFUSED) shown.push_back(i);
  for (std::size_t i = 0; i < events.size() && shown.size() < kShownEvents; ++i)
    if (events[i].outcome != KOILA_REFUSED) shown.push_back(i);
  std::sort(shown.begin(), shown.end());

  bool first_refusal = true, first_rescue = true;
  for (const std::size_t i : shown) {
    const bool refused = events[i].outcome == KOILA_REFUSED;
    bool& first = refused ? first_refusal : first_rescue;
    page.add(describe(events[i]) + cost_of(events[i]), !first ? kSecond : refused ? kAlways : kFirst, refused ? Tone::kBad : Tone::kGood);
    first = false;
  }
  if (events.size() > shown.size()) page.add("and " + std::to_string(events.size() - shown.size()) + " more", kSecond);
}

// What all of them cost, rung by rung. "" when there was none.
std::string ladder_line(const ReportData& data) {
  double seconds = 0;
  std::string rungs;
  for (const int rung : {static_cast<int>(KOILA_RUNG_RETRY), static_cast<int>(KOILA_RUNG_SPLIT), static_cast<int>(KOILA_RUNG_OFFLOAD), 0}) {
    const auto found = data.events.rungs.find(rung);
    if (found == data.events.rungs.end() || found->second.count == 0) continue;
    seconds += found->second.seconds;
    rungs += (rungs.empty() ? "" : ", ") + std::string(rung_name(rung)) + " " + plural(found->second.count, "time") + " " + duration(found->second.seconds);
  }
  if (rungs.empty()) return "";
  return "running out cost " + duration(seconds) + (data.seconds > 0 ? " of " + duration(data.seconds) : "") + ": " + rungs;
}

std::string region_line(const EventList& events) {
  const RegionTotals& totals = events.region_totals;
  const koila_region_event& last = events.last_region;
  std::string line = "micro-batch in use: " + rows(last.micro_batch, last.batch) + "; " + plural(totals.count, "region") + " in " +
                     plural(totals.runs, "pass");
  if (totals.runs != 1) line.replace(line.size() - 1, 1, "es");
  if (totals.forward_only > 0) line += " (" + std::to_string(totals.forward_only) + " forward only)";
  if (totals.halvings > 0) line += ", " + plural(totals.halvings, "halving");
  return line + ", " + duration(totals.seconds);
}

// Those with the most bytes first.
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

std::string report_text(const ReportData& data, const TextStyle& style) {
  const EventList& events = data.events;
  Page page;
  page.add(head_line(data), kAlways, data.end == RunEnd::kCutOff ? Tone::kBad : Tone::kTitle, 0);
  add_devices(page, data);
  add_events(page, events.oom_events);
  if (const std::string line = ladder_line(data); !line.empty()) page.add(line, kFirst);
  if (events.region_totals.count > 0) page.add(region_line(events), kFirst);
  if (!events.full_batch.empty()) page.add(full_batch_line(events), kSecond);
  for (std::size_t i = 0; i < std::min(data.leaks.size(), kShownLeaks); ++i)
    page.add(leak_line(data.leaks[i]), i == 0 ? kFirst : kSecond, Tone::kBad);
  if (data.leaks.size() > kShownLeaks) page.add("and " + plural(static_cast<std::int64_t>(data.leaks.size() - kShownLeaks), "further leak"), kSecond);
  for (std::size_t i = 0; i < std::min(events.notes.size(), kShownNotes); ++i) page.add("note: " + events.notes[i], i == 0 ? kSecond : kLast, Tone::kNote);
  if (events.notes.size() > kShownNotes)
    page.add("and " + plural(static_cast<std::int64_t>(events.notes.size() - kShownNotes), "further note"), kLast);
  if (const std::string next = next_thing_to_try(data); !next.empty()) page.add("next: " + next, kAlways, Tone::kTitle);
  return page.text(style);
}

}  // namespace koila
