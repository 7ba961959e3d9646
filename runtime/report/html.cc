// The HTML page: made whole at build time (page/bundle.py) but for the run's data, which is put in here as JSON.
//
// Strings of the program are data to the page's scripts, which set them as text; here they only must not end the element that holds them.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>

#include "runtime/report/advice.h"
#include "runtime/report/remedy.h"
#include "runtime/report/report.h"

// page.html with its styles and scripts, taken in by the assembler.
extern "C" const char koila_page[];
extern "C" const char koila_page_end[];

namespace koila {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kDataMark = "@DATA@";  // as in bundle.py
constexpr std::size_t kMaxText = 4096;            // bytes of one string: a page stays small whatever a command line or a stack is like

std::string text(const std::string& text) {
  if (text.size() <= kMaxText) return text;
  std::size_t end = kMaxText;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return text.substr(0, end) + " ...";
}

// Microseconds are enough, and 12.345678 is shorter than 12.345678000000001.
double seconds(double value) { return std::round(value * 1e6) / 1e6; }

template <typename List, typename F>
Json column(const List& list, F&& field) {
  Json json = Json::array();
  for (const auto& entry : list) json.push_back(field(entry));
  return json;
}

Json to_json(const Holder& holder) {
  return {{"category", holder.category}, {"op", text(holder.op)}, {"where", text(holder.where)},
          {"bytes", holder.bytes},       {"count", holder.count}, {"step", holder.step}};
}

// By column: a tenth of the size of a list of objects. Categories that no sample has are left empty.
Json to_json(const std::vector<Sample>& timeline) {
  Json by_category = Json::array();
  for (std::size_t category = 0; category < KOILA_CATEGORIES; ++category) {
    const bool any = std::any_of(timeline.begin(), timeline.end(), [&](const Sample& s) { return s.by_category[category] != 0; });
    by_category.push_back(any ? column(timeline, [&](const Sample& s) { return s.by_category[category]; }) : Json::array());
  }
  return {{"seconds", column(timeline, [](const Sample& s) { return seconds(s.seconds); })},
          {"live", column(timeline, [](const Sample& s) { return s.live_bytes; })},
          {"by_category", by_category}};
}

Json to_json(const DeviceFigures& device) {
  return {{"id", device.device},
          {"name", device_name(device.device)},
          {"live", device.live_bytes},
          {"peak", device.peak_bytes},
          {"budget", device.budget_bytes},
          {"allocations", device.allocations},
          {"frees", device.frees},
          {"failed", device.failed_allocations},
          {"outside", device.outside_bytes},
          {"outside_peak", device.outside_peak_bytes},
          {"outside_written", device.outside_written_bytes},
          {"tensors", device.tensor_bytes},
          {"tensors_peak", device.tensor_peak_bytes},
          {"used", device.used_bytes},
          {"untracked", device.untracked_bytes},
          {"live_by_category", device.live_by_category},
          {"peak_by_category", device.peak_by_category},
          {"peak_seconds", seconds(device.peak_seconds)},
          {"peak_step", device.peak_step},
          {"holders", column(device.holders, [](const Holder& holder) { return to_json(holder); })},
          {"timeline", to_json(device.timeline)}};
}

Json to_json(const OomEvent& event) {
  return {{"device", device_name(event.device)},
          {"device_id", event.device},
          {"phase", phase_name(event.phase)},
          {"op", text(event.op)},
          {"wanted", event.requested_bytes},
          {"live", event.live_bytes},
          {"budget", event.budget_bytes},
          {"rescued", event.outcome == KOILA_RESCUED},
          {"how", rung_name(event.outcome == KOILA_RESCUED ? event.rung : 0)},
          {"reason", text(event.reason)},
          {"todo", event.outcome == KOILA_RESCUED ? "" : remedy(event.reason)},
          {"micro_batch", event.micro_batch},
          {"batch", event.batch},
          {"cost", seconds(event.seconds)},
          {"count", event.count},
          {"at", seconds(event.at)},
          {"step", event.step}};
}

Json to_json(const Leak& leak) {
  return {{"device", device_name(leak.device)}, {"category", leak.category},        {"op", text(leak.op)},
          {"where", text(leak.where)},          {"holder", text(leak.holder)},      {"bytes", leak.bytes},
          {"per_step", leak.bytes_per_step},    {"first_step", leak.first_step}};
}

Json to_json(const SourceFigures& source) {
  return {{"device", device_name(source.place)}, {"kind", memory_kind_name(source.kind)}, {"library", text(source.library)},
          {"live", source.live_bytes},           {"peak", source.peak_bytes},             {"allocations", source.allocations},
          {"frees", source.frees}};
}

Json to_json(const std::vector<StepSample>& steps) {
  return {{"seconds", column(steps, [](const StepSample& s) { return seconds(s.seconds); })},
          {"step", column(steps, [](const StepSample& s) { return s.step; })},
          {"device", column(steps, [](const StepSample& s) { return s.device; })},
          {"live", column(steps, [](const StepSample& s) { return s.live_bytes; })},
          {"peak", column(steps, [](const StepSample& s) { return s.peak_bytes; })},
          {"batch", column(steps, [](const StepSample& s) { return s.batch; })},
          {"micro_batch", column(steps, [](const StepSample& s) { return s.micro_batch; })},
          {"rescues", column(steps, [](const StepSample& s) { return s.rescues; })}};
}

Json categories() {
  Json names = Json::array();
  for (int category = 0; category < KOILA_CATEGORIES; ++category) names.push_back(category_name(category));
  return names;
}

Json to_json(const ReportData& data) {
  const EventList& events = data.events;
  const RegionTotals& regions = events.region_totals;
  Json json = {{"koila", KOILA_VERSION},
               {"torch", text(data.torch_version)},
               {"mode", mode_name(data.mode)},
               {"forced_micro_batch", data.microbatch},
               {"pid", data.pid},
               {"host", text(data.host)},
               {"command", text(data.command)},
               {"started", data.started},
               {"seconds", seconds(data.seconds)},
               {"per_step", data.seconds_per_step() ? seconds(*data.seconds_per_step()) : 0},
               {"end", end_name(data.end)},
               {"steps", events.steps},
               {"rescues", events.rescues},
               {"refusals", events.refusals},
               {"micro_batch", events.last_region.micro_batch},
               {"batch", events.last_region.batch},
               {"regions", {{"count", regions.count}, {"runs", regions.runs}, {"halvings", regions.halvings}, {"seconds", seconds(regions.seconds)}}},
               {"categories", categories()}};
  json["ladder"] = Json::array();
  for (const auto& [rung, totals] : events.rungs)
    json["ladder"].push_back({{"rung", rung_name(rung)}, {"count", totals.count}, {"seconds", seconds(totals.seconds)}});
  json["advice"] = column(advice(data), [](const Advice& a) { return Json{{"text", text(a.text)}, {"saves", a.saves_bytes}}; });
  json["leaks"] = column(data.leaks, [](const Leak& leak) { return to_json(leak); });
  json["devices"] = column(data.devices, [](const DeviceFigures& device) { return to_json(device); });
  json["sources"] = column(data.sources, [](const SourceFigures& source) { return to_json(source); });
  json["oom_events"] = column(events.oom_events, [](const OomEvent& event) { return to_json(event); });
  json["step_samples"] = to_json(data.steps);
  json["full_batch"] = Json::array();
  for (const auto& [op, entry] : events.full_batch) json["full_batch"].push_back({{"op", text(op)}, {"bytes", entry.bytes}, {"count", entry.count}});
  json["notes"] = column(events.notes, [](const std::string& note) { return text(note); });
  return json;
}

// Inside <script>, "</script" and "<!--" mean something, whatever the JSON says; U+2028 and U+2029 end a line to some readers.
std::string for_script(const std::string& json) {
  std::string safe;
  safe.reserve(json.size() + json.size() / 16);
  for (std::size_t i = 0; i < json.size(); ++i) {
    if (json[i] == '<') {
      safe += "\\u003c";
    } else if (json.compare(i, 2, "\xE2\x80") == 0 && i + 2 < json.size() && (json[i + 2] == '\xA8' || json[i + 2] == '\xA9')) {
      safe += json[i + 2] == '\xA8' ? "\\u2028" : "\\u2029";
      i += 2;
    } else {
      safe += json[i];
    }
  }
  return safe;
}

}  // namespace

std::string report_html(const ReportData& data) {
  const std::string_view page(koila_page, static_cast<std::size_t>(koila_page_end - koila_page));
  const std::size_t mark = page.find(kDataMark);
  // A command line or an operator's name may be any bytes.
  const std::string json = for_script(to_json(data).dump(-1, ' ', false, Json::error_handler_t::replace));
  std::string text;
  text.reserve(page.size() + json.size());
  text += page.substr(0, mark);
  text += json;
  text += page.substr(mark + kDataMark.size());
  return text;
}

}  // namespace koila
