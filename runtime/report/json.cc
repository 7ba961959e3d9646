#include <nlohmann/json.hpp>

#include "runtime/report/report.h"

namespace koila {
namespace {

using Json = nlohmann::ordered_json;

Json to_json(const OomEvent& event) {
  return {{"device", device_name(event.device)},
          {"phase", phase_name(event.phase)},
          {"op", event.op},
          {"requested_bytes", event.requested_bytes},
          {"live_bytes", event.live_bytes},
          {"budget_bytes", event.budget_bytes},
          {"outcome", event.outcome == KOILA_RESCUED ? "rescued" : "refused"},
          {"reason", event.reason},
          {"micro_batch", event.micro_batch},
          {"batch", event.batch},
          {"rung", rung_name(event.outcome == KOILA_RESCUED ? event.rung : 0)},
          {"seconds", event.seconds},
          {"count", event.count}};
}

Json to_json(const koila_region_event& region) {
  return {{"device", device_name(region.device)}, {"batch", region.batch},         {"micro_batch", region.micro_batch},
          {"runs", region.runs},                  {"forward_only", region.forward_only}, {"halvings", region.halvings},
          {"operators", region.operators},        {"seconds", region.seconds}};
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

}  // namespace

std::string report_json(const ReportData& data) {
  const EventList& events = data.events;
  Json json = {{"schema", 1},
               {"koila_version", KOILA_VERSION},
               {"torch_version", data.torch_version},
               {"pid", data.pid},
               {"host", data.host},
               {"command", data.command},
               {"mode", mode_name(data.mode)},
               {"forced_micro_batch", data.microbatch},
               {"steps", events.steps},
               {"rescues", events.rescues}};

  json["devices"] = Json::object();
  for (const DeviceFigures& device : data.devices) json["devices"][device_name(device.device)] = to_json(device);
  json["sources"] = Json::array();
  for (const SourceFigures& source : data.sources) json["sources"].push_back(to_json(source));

  json["ladder"] = Json::object();
  for (const auto& [rung, totals] : events.rungs) json["ladder"][rung_name(rung)] = {{"count", totals.count}, {"seconds", totals.seconds}};

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
                           {"seconds", events.region_totals.seconds}};
  json["regions"] = Json::array();
  for (const koila_region_event& region : events.regions) json["regions"].push_back(to_json(region));

  json["full_batch_ops"] = Json::array();
  for (const auto& [op, entry] : events.full_batch)
    json["full_batch_ops"].push_back({{"op", op}, {"bytes", entry.bytes}, {"count", entry.count}});
  json["notes"] = events.notes;
  json["next"] = next_thing_to_try(data);

  // A command line or an operator's name may be any bytes.
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace koila
