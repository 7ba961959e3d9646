#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "runtime/printable.h"
#include "runtime/report/advice.h"
#include "runtime/report/remedy.h"
#include "runtime/report/report.h"

namespace koila {
namespace {

using Json = nlohmann::ordered_json;

// Microseconds are enough, and take fewer digits. What is no number would be null.
double seconds_of(double seconds) { return std::isfinite(seconds) ? std::round(seconds * 1e6) / 1e6 : 0; }

Json by_category(const CategoryBytes& bytes) {
  Json json;
  for (int category = 0; category < KOILA_CATEGORIES; ++category) json[category_key(category)] = bytes[category];
  return json;
}

Json to_json(const OomEvent& event) {
  return {{"device", device_name(event.device)},
          {"phase", phase_name(event.phase)},
          {"op", event.op},
          {"requested_bytes", event.requested_bytes},
          {"live_bytes", event.live_bytes},
          {"budget_bytes", event.budget_bytes},
          {"outcome", event.outcome == KOILA_RESCUED ? "rescued" : "refused"},
          {"reason", event.reason},
          {"do", event.outcome == KOILA_RESCUED ? "" : remedy(event.reason)},
          {"micro_batch", event.micro_batch},
          {"batch", event.batch},
          {"rung", rung_name(event.outcome == KOILA_RESCUED ? event.rung : 0)},
          {"seconds", seconds_of(event.seconds)},
          {"count", event.count},
          {"at", seconds_of(event.at)},
          {"step", event.step}};
}

Json to_json(const koila_region_event& region) {
  return {{"device", device_name(region.device)}, {"batch", region.batch},         {"micro_batch", region.micro_batch},
          {"runs", region.runs},                  {"forward_only", region.forward_only}, {"halvings", region.halvings},
          {"operators", region.operators},        {"seconds", seconds_of(region.seconds)}};
}

Json to_json(const Holder& holder) {
  return {{"category", category_key(holder.category)}, {"op", holder.op},       {"where", holder.where},
          {"bytes", holder.bytes},                     {"count", holder.count}, {"step", holder.step}};
}

// By columns: a name for each of thousands of samples would be most of the file.
Json to_json(const std::vector<Sample>& timeline) {
  Json json = {{"seconds", Json::array()}, {"live_bytes", Json::array()}, {"by_category", Json::object()}};
  for (int category = 0; category < KOILA_CATEGORIES; ++category) json["by_category"][category_key(category)] = Json::array();
  for (const Sample& sample : timeline) {
    json["seconds"].push_back(seconds_of(sample.seconds));
    json["live_bytes"].push_back(sample.live_bytes);
    for (int category = 0; category < KOILA_CATEGORIES; ++category) json["by_category"][category_key(category)].push_back(sample.by_category[category]);
  }
  return json;
}

Json to_json(const std::vector<StepSample>& steps) {
  Json json;
  for (const char* name : {"seconds", "step", "device", "live_bytes", "peak_bytes", "batch", "micro_batch", "rescues"}) json[name] = Json::array();
  for (const StepSample& step : steps) {
    json["seconds"].push_back(seconds_of(step.seconds));
    json["step"].push_back(step.step);
    json["device"].push_back(device_name(step.device));
    json["live_bytes"].push_back(step.live_bytes);
    json["peak_bytes"].push_back(step.peak_bytes);
    json["batch"].push_back(step.batch);
    json["micro_batch"].push_back(step.micro_batch);
    json["rescues"].push_back(step.rescues);
  }
  return json;
}

Json to_json(const DeviceFigures& device) {
  Json json = {{"peak_bytes", device.peak_bytes},
               {"live_bytes", device.live_bytes},
               {"budget_bytes", device.budget_bytes},
               {"allocations", device.allocations},
               {"frees", device.frees},
               {"outside_bytes", device.outside_bytes},
               {"outside_peak_bytes", device.outside_peak_bytes},
               {"outside_written_bytes", device.outside_written_bytes}};
  if (device.device >= KOILA_CPU) {
    json["peak_seconds"] = seconds_of(device.peak_seconds);
    json["peak_step"] = device.peak_step;
    json["live_by_category"] = by_category(device.live_by_category);
    json["peak_by_category"] = by_category(device.peak_by_category);
    json["holders"] = Json::array();
    for (const Holder& holder : device.holders) json["holders"].push_back(to_json(holder));
    json["timeline"] = to_json(device.timeline);
  }
  if (device.device == KOILA_CPU) return json;
  json["failed_allocations"] = device.failed_allocations;
  if (device.device >= 0) {
    json["tensor_bytes"] = device.tensor_bytes;
    json["tensor_peak_bytes"] = device.tensor_peak_bytes;
    json["used_bytes"] = device.used_bytes;
    json["untracked_bytes"] = device.untracked_bytes;
  }
  json["sizes"] = Json::array();
  for (std::size_t i = 0; i < device.sizes.size(); ++i)
    if (device.sizes[i] > 0) json["sizes"].push_back({{"from_bytes", std::int64_t{1} << i}, {"count", device.sizes[i]}});
  return json;
}

Json to_json(const SourceFigures& source) {
  return {{"device", device_name(source.place)},  {"kind", memory_kind_name(source.kind)}, {"library", source.library},
          {"live_bytes", source.live_bytes},      {"peak_bytes", source.peak_bytes},       {"allocations", source.allocations},
          {"frees", source.frees}};
}

Json to_json(const Leak& leak) {
  return {{"device", device_name(leak.device)},
          {"category", category_key(leak.category)},
          {"op", leak.op},
          {"where", leak.where},
          {"holder", leak.holder},
          {"bytes", leak.bytes},
          {"bytes_per_step", leak.bytes_per_step},
          {"first_step", leak.first_step},
          {"graph_nodes", leak.graph_nodes}};
}

Json to_json(const ProgramFacts& facts) {
  return {{"autocast", facts.autocast},
          {"half_parameters_bytes", facts.half_parameters_bytes},
          {"checkpoints", facts.checkpoints},
          {"kept_gradients", facts.kept_gradients},
          {"kept_gradients_bytes", facts.kept_gradients_bytes},
          {"graph_in_evaluation", facts.graph_in_evaluation},
          {"graph_in_evaluation_bytes", facts.graph_in_evaluation_bytes},
          {"foreach_bytes", facts.foreach_bytes},
          {"fused_optimizer", facts.fused_optimizer},
          {"expandable_segments", facts.expandable_segments},
          {"fragmented_bytes", facts.fragmented_bytes},
          {"size_cache", facts.size_cache}};
}

// A command line or an operator's name may be any bytes.
std::string dumped(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

// Indented, but for lists and objects with nothing in them that has parts: those are a line each.
void print(const Json& json, const std::string& indent, std::string& text) {
  const bool flat = std::none_of(json.begin(), json.end(), [](const Json& child) { return child.is_structured(); });
  if (!json.is_structured() || flat) {
    text += dumped(json);
    return;
  }
  text += json.is_object() ? "{" : "[";
  const char* comma = "";
  for (const auto& [key, child] : json.items()) {
    text += comma + ("\n" + indent) + "  ";
    if (json.is_object()) text += dumped(key) + ": ";
    print(child, indent + "  ", text);
    comma = ",";
  }
  text += "\n" + indent + (json.is_object() ? "}" : "]");
}

}  // namespace

std::string report_json(const ReportData& data) {
  const EventList& events = data.events;
  Json json = {{"schema", 1},
               {"koila_version", KOILA_VERSION},
               {"torch_version", data.torch_version},
               {"pid", data.pid},
               {"host", data.host},
               {"command", data.command},
               {"started", seconds_of(data.started)},
               {"seconds", seconds_of(data.seconds)},
               {"seconds_per_step", nullptr},
               {"end", end_name(data.end)},
               {"mode", mode_name(data.mode)},
               {"forced_micro_batch", data.microbatch},
               {"steps", events.steps},
               {"rescues", events.rescues},
               {"refused", events.refusals}};
  if (const auto each = data.seconds_per_step()) json["seconds_per_step"] = seconds_of(*each);

  json["devices"] = Json::object();
  for (const DeviceFigures& device : data.devices) json["devices"][device_name(device.device)] = to_json(device);
  json["sources"] = Json::array();
  for (const SourceFigures& source : data.sources) json["sources"].push_back(to_json(source));

  json["ladder"] = Json::object();
  for (const auto& [rung, totals] : events.rungs)
    json["ladder"][rung_name(rung)] = {{"count", totals.count}, {"seconds", seconds_of(totals.seconds)}};

  json["oom_events"] = Json::array();
  json["refusals"] = Json::array();
  for (const OomEvent& event : events.oom_events) {
    json["oom_events"].push_back(to_json(event));
    if (event.outcome == KOILA_REFUSED) json["refusals"].push_back(to_json(event));
  }

  json["micro_batch"] = events.last_region.micro_batch;
  json["regions_total"] = {{"count", events.region_totals.count},
                           {"runs", events.region_totals.runs},
                           {"forward_only", events.region_totals.forward_only},
                           {"halvings", events.region_totals.halvings},
                           {"seconds", seconds_of(events.region_totals.seconds)}};
  json["last_region"] = events.region_totals.count > 0 ? to_json(events.last_region) : Json();
  json["regions"] = Json::array();
  for (const koila_region_event& region : events.regions) json["regions"].push_back(to_json(region));
  json["step_samples"] = to_json(data.steps);

  json["full_batch_ops"] = Json::array();
  for (const auto& [op, entry] : events.full_batch)
    json["full_batch_ops"].push_back({{"op", op}, {"bytes", entry.bytes}, {"count", entry.count}});
  json["leaks"] = Json::array();
  for (const Leak& leak : data.leaks) json["leaks"].push_back(to_json(leak));
  json["facts"] = to_json(data.facts);
  json["notes"] = events.notes;
  json["advice"] = Json::array();
  for (const Advice& entry : advice(data)) json["advice"].push_back({{"text", entry.text}, {"saves_bytes", entry.saves_bytes}});
  json["next"] = next_thing_to_try(data);

  std::string text;
  print(json, "", text);
  return without_controls(std::move(text)) + "\n";
}

}  // namespace koila
