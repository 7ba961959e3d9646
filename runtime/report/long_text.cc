// The long form of the text report: every figure, for `koila report -v`.
#include <algorithm>

#include "runtime/bytes.h"
#include "runtime/report/page.h"
#include "runtime/report/phrases.h"
#include "runtime/report/remedy.h"
#include "runtime/report/report.h"

namespace koila {
namespace {

constexpr std::size_t kShownEvents = 5;
constexpr std::size_t kShownRefusals = 3;  // of these
constexpr std::size_t kShownNotes = 3;
constexpr std::size_t kShownHolders = 3;
constexpr std::size_t kShownLeaks = 2;

// What gives way first where all of it is more than a screen.
enum Rank { kAlways = 0, kFirst, kSecond, kThird, kLast };

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
  if (data.end == RunEnd::kCutOff) line = "cut off after " + duration(data.seconds) + ", without an exit (Ctrl-C, killed, or crashed): ";
  if (data.torch_version.empty() && events.steps == 0) line += "a program without PyTorch";
  else line += plural(events.steps, "step") + ", " + plural(events.rescues, "rescue") + ", " + plural(events.refusals, "refusal");
  line += std::string("; mode ") + mode_name(data.mode);
  if (data.microbatch > 0) line += ", micro-batches of " + plural(data.microbatch, "row") + " asked for";
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

std::string peak_line(const DeviceFigures& device) {
  const auto parts = parts_of_peak(device);
  std::int64_t whole = 0;
  for (const auto& part : parts) whole += part.first;

  std::string line = "at the peak";
  if (device.peak_step > 0) line += ", in step " + std::to_string(device.peak_step + 1);
  line += ": ";
  for (std::size_t i = 0; i < parts.size(); ++i)
    line += (i > 0 ? ", " : "") + parts[i].second + " " + format_bytes(parts[i].first) + " " + share(parts[i].first, whole);
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

// "(3 times, 1.5 s)".
std::string cost_of(const OomEvent& event) {
  std::string text = event.count > 1 ? std::to_string(event.count) + " times" : "";
  if (event.seconds >= kNoTime) text += (text.empty() ? "" : ", ") + duration(event.seconds);
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
    if (const std::string todo = refused ? remedy(events[i].reason) : ""; !todo.empty()) page.add("do: " + todo, first ? kFirst : kSecond, Tone::kTitle, 2);
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

}  // namespace

std::string report_long_text(const ReportData& data, const TextStyle& style) {
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
  if (const std::string next = next_line(data); !next.empty()) page.add(next, kAlways, Tone::kTitle);
  return page.text(style);
}

}  // namespace koila
