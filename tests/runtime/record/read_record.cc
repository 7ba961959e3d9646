// For the tests in Python: what a record says, as JSON. Without a path, where the records are that find_records() finds.
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>

#include "runtime/record/record.h"

namespace {

using Json = nlohmann::json;

const char* name_of(koila::RunEnd end) {
  return end == koila::RunEnd::kExited ? "exited" : end == koila::RunEnd::kRunning ? "running" : "cut off";
}

Json to_json(const koila::ReadRecord& read) {
  Json json = {{"problem", read.problem}};
  if (!read.data) return json;
  const koila::ReportData& data = *read.data;
  json.update({{"pid", data.pid}, {"end", name_of(data.end)}, {"seconds", data.seconds}, {"command", data.command}, {"torch", data.torch_version},
               {"steps", data.events.steps}, {"rescues", data.events.rescues}, {"refusals", data.events.refusals},
               {"regions", data.events.regions.size()}, {"notes", data.events.notes}});
  json["devices"] = json["events"] = json["step_list"] = Json::array();
  for (const koila::DeviceFigures& device : data.devices) {
    Json timeline = Json::array();
    for (const koila::Sample& sample : device.timeline) timeline.push_back({sample.seconds, sample.live_bytes});
    json["devices"].push_back({{"device", device.device}, {"live", device.live_bytes}, {"peak", device.peak_bytes}, {"budget", device.budget_bytes},
                               {"timeline", timeline}});
  }
  for (const koila::OomEvent& event : data.events.oom_events) {
    json["events"].push_back({{"op", event.op}, {"reason", event.reason}, {"requested", event.requested_bytes}, {"outcome", event.outcome},
                              {"batch", event.batch}, {"micro_batch", event.micro_batch}, {"count", event.count}, {"at", event.at}, {"step", event.step},
                              {"phase", event.phase}});
  }
  for (const koila::StepSample& step : data.steps) {
    json["step_list"].push_back({{"step", step.step}, {"seconds", step.seconds}, {"peak", step.peak_bytes}, {"live", step.live_bytes},
                                 {"batch", step.batch}, {"micro_batch", step.micro_batch}, {"rescues", step.rescues}});
  }
  return json;
}

}  // namespace

int main(int count, char** arguments) {
  Json json = Json::array();
  if (count > 1) json = to_json(koila::read_record(arguments[1]));
  else
    for (const koila::FoundRecord& found : koila::find_records()) json.push_back({{"path", found.path}, {"pid", found.pid}, {"alive", found.alive}});
  std::puts(json.dump(1, ' ', false, Json::error_handler_t::replace).c_str());
}
