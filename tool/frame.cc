#include "tool/frame.h"

#include <algorithm>
#include <cstdio>
#include <string_view>

#include "runtime/bytes.h"
#include "runtime/printable.h"
#include "runtime/report/phrases.h"
#include "runtime/report/report.h"
#include "tool/screen.h"

namespace koila::tool {
namespace {

constexpr int kNarrowest = 30;
constexpr std::size_t kShownEvents = 8;

std::string duration(double seconds) {
  const auto whole = static_cast<long long>(seconds);
  char text[48];
  std::snprintf(text, sizeof text, "%lld:%02lld:%02lld", whole / 3600, whole / 60 % 60, whole % 60);
  return text;
}

class Lines {
 public:
  Lines(int columns, bool colour) : columns_(std::max(columns, kNarrowest)), colour_(colour) {}

  void add(const std::string& text, const char* code = "") {
    const std::string line = cut(printable(text), columns_);
    lines_.push_back(colour_ && *code != '\0' ? code + line + "\033[0m" : line);
  }
  // Over as many lines as it takes, the further ones set in.
  void wrap(const std::string& text, std::size_t indent, const char* code = "") {
    std::string rest = printable(text);
    while (true) {
      std::string line = cut(rest, columns_);
      if (line.size() == rest.size()) return add(rest, code);
      if (const std::size_t space = line.rfind(' '); space != std::string::npos && space > indent) line.resize(space);
      add(line, code);
      rest = std::string(indent, ' ') + rest.substr(std::min(rest.find_first_not_of(' ', line.size()), rest.size()));
    }
  }
  int columns() const { return columns_; }
  std::vector<std::string> take() { return std::move(lines_); }

 private:
  int columns_;
  bool colour_;
  std::vector<std::string> lines_;
};

std::string steps_line(const Moment& moment) {
  const EventList& events = moment.data.events;
  std::string line = "steps " + std::to_string(events.steps);
  if (moment.steps_per_second > 0) {
    char rate[48];
    std::snprintf(rate, sizeof rate, moment.steps_per_second >= 1 ? " (%.1f/s)" : " (%.3f/s)", moment.steps_per_second);
    line += rate;
  }
  line += "   rescues " + std::to_string(events.rescues) + "   refusals " + std::to_string(events.refusals);
  if (moment.resident_bytes > 0) line += "   RSS " + format_bytes(moment.resident_bytes);
  return line;
}

// The peaks of the latest steps on the device, a sign for each; "" with fewer than two.
std::string history(const ReportData& data, const DeviceFigures& device, int columns) {
  constexpr std::string_view kLevels = " .:-=+*#";
  std::vector<std::int64_t> peaks;
  for (const StepSample& step : data.steps)
    if (step.device == device.device) peaks.push_back(step.peak_bytes);
  if (peaks.size() < 2) return "";
  const auto shown = std::min<std::size_t>(peaks.size(), static_cast<std::size_t>(std::max(columns, 1)));
  peaks.erase(peaks.begin(), peaks.end() - static_cast<std::ptrdiff_t>(shown));
  const std::int64_t whole = std::max<std::int64_t>({device.budget_bytes, *std::max_element(peaks.begin(), peaks.end()), 1});
  std::string text;
  for (const std::int64_t peak : peaks)
    text += kLevels[static_cast<std::size_t>(std::clamp<double>(static_cast<double>(peak) / static_cast<double>(whole) * static_cast<double>(kLevels.size() - 1) + 0.5, 0,
                                                                static_cast<double>(kLevels.size() - 1)))];
  return text;
}

void add_device(const ReportData& data, const DeviceFigures& device, Lines& lines) {
  const std::string name = device_name(device.device);
  std::string figures = "live " + format_bytes(device.live_bytes) + "  peak " + format_bytes(device.peak_bytes);
  if (device.budget_bytes > 0) figures += "  budget " + format_bytes(device.budget_bytes);
  const std::string head = name + std::string(name.size() < 8 ? 8 - name.size() : 1, ' ');
  const int left = lines.columns() - static_cast<int>(head.size() + figures.size()) - 4;
  const bool tight = device.budget_bytes > 0 && device.live_bytes > device.budget_bytes / 10 * 9;
  lines.add(head + (left >= 10 ? memory_bar(device.live_bytes, device.peak_bytes, device.budget_bytes, std::min(left, 50)) + "  " : "") + figures,
            tight ? "\033[33m" : "\033[1m");
  std::string categories;
  for (int category = 0; category < KOILA_CATEGORIES; ++category)
    if (device.live_by_category[category] > 0)
      categories += std::string(categories.empty() ? "" : ", ") + category_name(category) + " " + format_bytes(device.live_by_category[category]);
  if (!categories.empty()) lines.wrap("        " + categories, 8);
  if (device.outside_bytes > 0) lines.add("        kept outside: " + format_bytes(device.outside_bytes));
  constexpr int kMargin = 24;  // of "        peaks by step  []"
  if (const std::string peaks = history(data, device, lines.columns() - kMargin); !peaks.empty()) lines.add("        peaks by step [" + peaks + "]");
}

}  // namespace

std::string memory_bar(std::int64_t live, std::int64_t peak, std::int64_t budget, int columns) {
  const int inside = std::max(columns - 2, 1);
  const std::int64_t whole = std::max<std::int64_t>({budget, budget > 0 ? 0 : peak, live, 1});
  const auto cells = [&](std::int64_t bytes) {
    return static_cast<int>(static_cast<double>(std::clamp<std::int64_t>(bytes, 0, whole)) / static_cast<double>(whole) * inside + 0.5);
  };
  std::string bar(static_cast<std::size_t>(inside), ' ');
  for (int i = 0; i < cells(peak); ++i) bar[static_cast<std::size_t>(i)] = '-';
  for (int i = 0; i < cells(live); ++i) bar[static_cast<std::size_t>(i)] = '#';
  return "[" + bar + "]";
}

double recent_rate(const ReportData& data, double seconds) {
  if (data.steps.size() < 2) return 0;
  const StepSample& last = data.steps.back();
  auto first = data.steps.end() - 2;
  while (first != data.steps.begin() && last.seconds - first->seconds < seconds) --first;
  if (last.seconds <= first->seconds || last.step <= first->step) return 0;
  return static_cast<double>(last.step - first->step) / (last.seconds - first->seconds);
}

std::vector<std::string> frame(const Moment& moment, int columns, int rows, bool colour) {
  const ReportData& data = moment.data;
  Lines lines(columns, colour);
  lines.add("koila top   pid " + std::to_string(data.pid) + "   " + end_name(data.end) + "   " + duration(data.seconds) + "   mode " + mode_name(data.mode) +
                (data.torch_version.empty() ? "" : "   torch " + data.torch_version),
            data.end == RunEnd::kRunning ? "\033[7m" : "\033[7;31m");
  lines.add(data.command);
  lines.add(steps_line(moment), data.events.refusals > 0 ? "\033[31m" : "");
  if (const koila_region_event& last = data.events.last_region; last.micro_batch > 0)
    lines.add("micro-batch " + koila::rows(last.micro_batch, last.batch));
  lines.add("");
  for (const DeviceFigures& device : data.devices) add_device(data, device, lines);
  if (data.devices.empty()) lines.add("no memory asked for yet");
  else lines.add("[#] live   [-] the peak   the whole bar: the budget, or the peak where there is none", "\033[2m");

  if (!data.events.oom_events.empty()) {
    lines.add("");
    lines.add("out of memory, the latest first", "\033[1m");
    std::vector<OomEvent> events = data.events.oom_events;
    std::stable_sort(events.begin(), events.end(), [](const OomEvent& a, const OomEvent& b) { return a.at > b.at; });
    for (std::size_t i = 0; i < std::min(events.size(), kShownEvents); ++i) {
      char at[48];
      std::snprintf(at, sizeof at, "%8.1f s  ", events[i].at);
      lines.wrap(at + describe(events[i]) + (events[i].count > 1 ? " (" + std::to_string(events[i].count) + " times)" : ""),
                 12, events[i].outcome == KOILA_REFUSED ? "\033[31m" : "");
    }
  }
  for (const std::string& note : data.events.notes) lines.wrap("note: " + note, 6, "\033[33m");

  std::vector<std::string> all = lines.take();
  if (static_cast<int>(all.size()) > std::max(rows, 1)) all.resize(static_cast<std::size_t>(std::max(rows, 1)));
  return all;
}

}  // namespace koila::tool
