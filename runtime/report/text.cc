// The text report: a dozen short lines. What it leaves out is in the long form (long_text.cc) and in the JSON.
#include <algorithm>

#include "runtime/bytes.h"
#include "runtime/report/advice.h"
#include "runtime/report/page.h"
#include "runtime/report/phrases.h"
#include "runtime/report/remedy.h"
#include "runtime/report/report.h"

namespace koila {
namespace {

constexpr std::size_t kShownRefusals = 3;
constexpr std::size_t kShownRescues = 3;
constexpr std::size_t kShownNotes = 2;
constexpr std::size_t kShownLeaks = 2;
constexpr std::size_t kShownHolders = 2;
constexpr double kWorthTelling = 0.01;  // of the run's time, or of a peak

// What gives way first where all of it is more than a screen.
enum Rank { kAlways = 0, kFirst, kSecond, kThird };

// "48 rows as 6 x 8"; "50 rows as 6 x 8 + 2".
std::string division(const koila_region_event& region) {
  const std::int64_t parts = region.batch / region.micro_batch, rest = region.batch % region.micro_batch;
  return plural(region.batch, "row") + " as " + std::to_string(parts) + " x " + std::to_string(region.micro_batch) + (rest > 0 ? " + " + std::to_string(rest) : "");
}

// Steps that were rescued or split. Of a long run neighbours are merged, and then it is not known how many.
std::string rescued_steps(const ReportData& data) {
  const auto helped = static_cast<std::int64_t>(std::count_if(data.steps.begin(), data.steps.end(), [](const StepSample& s) { return s.batch > 0 || s.rescues > 0; }));
  if (helped == 0) return "";
  const bool asked_for = data.microbatch > 0 || data.mode == KOILA_MODE_LAZY;
  const char* how = asked_for ? "in micro-batches" : "rescued";
  if (static_cast<std::int64_t>(data.steps.size()) != data.events.steps) return std::string(", ") + how;
  return ", " + (helped == data.events.steps && data.events.refusals == 0 ? "all" : std::to_string(helped)) + " " + how;
}

std::string head_line(const ReportData& data) {
  const EventList& events = data.events;
  std::string line;
  if (data.end == RunEnd::kRunning) line = "still running, after " + duration(data.seconds) + ": ";
  if (data.end == RunEnd::kCutOff) line = "cut off after " + duration(data.seconds) + ", without an exit (Ctrl-C, killed, or crashed): ";
  if (data.torch_version.empty() && events.steps == 0) {
    line += "a program without PyTorch";
  } else {
    line += plural(events.steps, "step");
    const std::string rescued = rescued_steps(data);
    if (rescued.empty() && events.rescues > 0) line += ", " + plural(events.rescues, "rescue");
    line += rescued;
    if (rescued.empty() && events.rescues == 0 && events.refusals == 0 && events.steps > 0) line += ", nothing ran out";
    if (events.region_totals.count > 0 && events.last_region.micro_batch > 0 && events.last_region.micro_batch < events.last_region.batch)
      line += ": " + division(events.last_region);
    if (const auto seconds = data.seconds_per_step()) line += ", " + step_time(*seconds) + " a step";
    if (events.refusals > 0) line += ", " + plural(events.refusals, "refusal");
  }
  if (data.mode != KOILA_MODE_RESCUE) line += std::string("; mode ") + mode_name(data.mode);
  return line + "; pid " + std::to_string(data.pid);
}

std::string device_line(const DeviceFigures& device, RunEnd end) {
  std::string line = device_name(device.device) + ": peak " + format_bytes(device.peak_bytes);
  if (device.budget_bytes > 0) line += " of " + format_bytes(device.budget_bytes);
  if (sum_of(device.peak_by_category) == 0) {
    line += ", " + format_bytes(device.live_bytes) + " live " + (end == RunEnd::kRunning ? "now" : "at the end");
    if (device.untracked_bytes > 0) line += ", " + format_bytes(device.untracked_bytes) + " untracked";
    if (device.failed_allocations > 0) line += ", " + plural(device.failed_allocations, "allocation") + " failed";
    return line;
  }
  if (device.peak_step > 0) line += ", in step " + std::to_string(device.peak_step + 1);
  const auto parts = parts_of_peak(device);
  std::int64_t whole = 0;
  for (const auto& part : parts) whole += part.first;
  const char* comma = ": ";
  for (const auto& [bytes, name] : parts) {
    if (static_cast<double>(bytes) < kWorthTelling * static_cast<double>(whole)) continue;
    line += comma + name + " " + format_bytes(bytes) + " " + share(bytes, whole);
    comma = ", ";
  }
  return line;
}

void add_devices(Page& page, const ReportData& data) {
  const std::vector<const DeviceFigures*> devices = in_order(data);
  for (std::size_t i = 0; i < devices.size(); ++i) {
    const DeviceFigures& device = *devices[i];
    page.add(device_line(device, data.end), i < 1 ? kAlways : i < 4 ? kFirst : kSecond);
    for (std::size_t h = 0; i == 0 && h < std::min(device.holders.size(), kShownHolders); ++h) page.add(holder_line(device.holders[h]), h == 0 ? kFirst : kSecond, Tone::kPlain, 2);
    if (sum_of(device.peak_by_category) == 0)
      if (const std::string line = sources_line(data, device.device); !line.empty()) page.add(line, kThird);
    if (device.outside_written_bytes > 0) page.add(outside_line(device), kSecond);
  }
}

std::string in_use(const OomEvent& event) {
  std::string line = event.requested_bytes > 0 ? ", wanted " + format_bytes(event.requested_bytes) + " with " : ", with ";
  line += format_bytes(event.live_bytes);
  if (event.budget_bytes > 0) line += " of " + format_bytes(event.budget_bytes);
  return line + " in use";
}

// Why the step does not run with more rows: what ran out, the full batch and then each size that was tried, the last of them.
void add_rescues(Page& page, const ReportData& data) {
  std::vector<std::string> lines;
  std::int64_t size = 0;   // that was in use when it ran out
  std::int64_t batch = 0;  // of the first
  for (const OomEvent& event : data.events.oom_events) {
    if (event.outcome != KOILA_RESCUED) continue;
    std::string line = "out of memory";
    if (event.micro_batch > 0) {
      const bool whole = event.op != kInMicroBatch || size == 0;
      // Of another batch than the one that the line before is about, as in an evaluation, it is said of how many.
      const bool other = !whole && batch > 0 && event.batch != batch;
      line = whole ? plural(event.batch, "row") + " at once ran out" : (other ? rows(size, event.batch) : plural(size, "row")) + " ran out as well";
      size = event.micro_batch;
      if (lines.empty()) batch = event.batch;
    }
    if (!event.op.empty() && event.op != kInMicroBatch) line += " in " + event.op;
    line += std::string(" (") + phase_name(event.phase) + ")" + in_use(event);
    if (event.rung == KOILA_RUNG_RETRY) line += ": tried again, now that there is room";
    if (event.rung == KOILA_RUNG_SPLIT && event.micro_batch == 0) line += ": the optimizer's step runs a few elements at a time";
    if (event.rung == KOILA_RUNG_OFFLOAD) line += ": nothing can be split; what does not fit is kept outside";
    lines.push_back(line);
  }
  // The first tells what the program would have died of, the last why the size is what it is.
  for (std::size_t i = 0; i < lines.size(); ++i)
    if (i == 0 || i + kShownRescues > lines.size()) page.add(lines[i], i == 0 ? kFirst : kSecond, Tone::kGood);
}

void add_refusals(Page& page, const ReportData& data) {
  std::size_t shown = 0;
  for (const OomEvent& event : data.events.oom_events) {
    if (event.outcome != KOILA_REFUSED || shown++ >= kShownRefusals) continue;
    page.add(describe(event) + (event.count > 1 ? " (" + plural(event.count, "time") + ")" : ""), shown == 1 ? kAlways : kSecond, Tone::kBad);
    if (const std::string todo = remedy(event.reason); !todo.empty()) page.add("do: " + todo, shown == 1 ? kAlways : kSecond, Tone::kTitle, 2);
  }
  if (shown > kShownRefusals) page.add("and " + plural(static_cast<std::int64_t>(shown - kShownRefusals), "further refusal"), kSecond);
}

}  // namespace

std::string report_text(const ReportData& data, const TextStyle& style) {
  const EventList& events = data.events;
  Page page;
  page.add(head_line(data), kAlways, data.end == RunEnd::kCutOff || events.refusals > 0 ? Tone::kBad : Tone::kTitle, 0);
  add_devices(page, data);
  add_rescues(page, data);
  add_refusals(page, data);
  const std::string next = next_line(data);
  const bool is_told = next.find("running out cost") != std::string::npos;
  if (const double cost = seconds_of_running_out(data); !is_told && cost > kNoTime && cost > kWorthTelling * data.seconds)
    page.add("running out cost " + duration(cost) + (data.seconds > 0 ? " of " + duration(data.seconds) : ""), kSecond);
  if (!events.full_batch.empty()) page.add(full_batch_line(events), kSecond);
  for (std::size_t i = 0; i < std::min(data.leaks.size(), kShownLeaks); ++i) page.add(leak_line(data.leaks[i]), i == 0 ? kFirst : kSecond, Tone::kBad);
  for (std::size_t i = 0; i < std::min(events.notes.size(), kShownNotes); ++i) page.add("note: " + events.notes[i], kSecond, Tone::kNote);
  if (!next.empty()) page.add(next, kAlways, Tone::kTitle);
  return page.text(style);
}

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
    else if (event.rung == KOILA_RUNG_SPLIT) line += "the optimizer's step runs a few elements at a time";
    else if (event.rung == KOILA_RUNG_RETRY) line += "tried again, now that there is room";
    else if (event.rung == KOILA_RUNG_OFFLOAD) line += "nothing can be split; what does not fit is kept outside";
    else line += "going on";
  } else {
    line += event.reason.empty() ? "the program gets the error" : event.reason;
  }
  return line;
}

}  // namespace koila
