#include <algorithm>
#include <charconv>
#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "runtime/bytes.h"
#include "runtime/json_limits.h"
#include "runtime/report/report.h"
#include "runtime/report/sane.h"

namespace koila {
namespace {

using Json = nlohmann::json;

constexpr int kSchema = 1;
constexpr JsonLimits kLimits = {.depth = 16, .parts = 500'000};

// What is wrong with a report, and where; caught by parse_report_json.
struct Problem : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A value of the report and its place, such as "devices.cpu.holders[3].bytes".
class Node {
 public:
  Node(const Json& json, std::string place) : json_(json), place_(std::move(place)) {}

  [[noreturn]] void fail(const std::string& expected) const {
    std::string found = json_.dump(-1, ' ', false, Json::error_handler_t::replace);
    if (found.size() > 60) found = found.substr(0, 57) + "...";
    throw Problem((place_.empty() ? "the report" : place_) + " is " + found + ", expected " + expected);
  }

  bool has(const char* key) const { return object().json_.contains(key); }
  Node operator[](const char* key) const {
    if (!has(key)) throw Problem((place_.empty() ? "the report" : place_) + " has no " + key);
    return {json_[key], place_.empty() ? key : place_ + "." + key};
  }

  // Calls f(key, node) or f(node) for each.
  template <class F>
  void each_member(F&& f) const {
    for (const auto& [key, child] : object().json_.items()) f(key, Node(child, place_ + "." + key));
  }
  template <class F>
  void each_element(F&& f) const {
    if (!json_.is_array()) fail("a list");
    for (std::size_t i = 0; i < json_.size(); ++i) f(Node(json_[i], place_ + "[" + std::to_string(i) + "]"));
  }

  bool is_null() const { return json_.is_null(); }
  std::size_t size() const {
    if (!json_.is_array()) fail("a list");
    return json_.size();
  }

  std::int64_t integer() const {
    if (!json_.is_number_integer()) fail("an integer");
    if (json_.is_number_unsigned() && json_.get<std::uint64_t>() > std::numeric_limits<std::int64_t>::max()) fail("an integer of 63 bits");
    return json_.get<std::int64_t>();
  }
  double number() const {
    if (!json_.is_number()) fail("a number");
    return json_.get<double>();
  }
  std::string text() const {
    if (!json_.is_string()) fail("a text");
    return json_.get<std::string>();
  }

  // The first of [begin, end) that is called so.
  template <class Name>
  int named(int begin, int end, Name&& name) const {
    const std::string text = this->text();
    std::string known;
    for (int i = begin; i < end; ++i) {
      if (text == name(i)) return i;
      known += (known.empty() ? "" : ", ") + std::string(name(i));
    }
    fail("one of " + known);
  }

 private:
  const Node& object() const {
    if (!json_.is_object()) fail("an object");
    return *this;
  }

  const Json& json_;
  std::string place_;
};

// A field that an older report may lack keeps its default.
void read(const Node& node, const char* key, std::int64_t& into) {
  if (node.has(key)) into = node[key].integer();
}
void read(const Node& node, const char* key, double& into) {
  if (node.has(key)) into = node[key].number();
}
void read(const Node& node, const char* key, std::string& into) {
  if (node.has(key)) into = node[key].text();
}
template <class T, class Read>
void read_list(const Node& node, const char* key, std::vector<T>& into, Read&& read_one) {
  if (node.has(key)) node[key].each_element([&](const Node& element) { into.push_back(read_one(element)); });
}

int device_of(const Node& node, const std::string& name) {
  for (const int place : {KOILA_CPU, KOILA_PINNED, KOILA_MANAGED})
    if (name == device_name(place)) return place;
  int device = -1;
  if (name.starts_with("cuda:")) {
    const auto [end, error] = std::from_chars(name.data() + 5, name.data() + name.size(), device);
    if (error != std::errc() || end != name.data() + name.size()) device = -1;
  }
  if (device < 0 || device >= KOILA_CUDA_DEVICES) node.fail("a device: cpu, pinned, managed, or cuda:0 to cuda:" + std::to_string(KOILA_CUDA_DEVICES - 1));
  return device;
}
int device_of(const Node& node) { return device_of(node, node.text()); }

int category_of(const Node& node) { return node.named(0, KOILA_CATEGORIES, category_key); }

CategoryBytes categories_of(const Node& node) {
  CategoryBytes bytes = {};
  for (int category = 0; category < KOILA_CATEGORIES; ++category) read(node, category_key(category), bytes[category]);
  return bytes;
}

OomEvent oom_of(const Node& node) {
  OomEvent event;
  event.device = device_of(node["device"]);
  event.phase = node["phase"].named(KOILA_FORWARD, KOILA_NO_GRAD + 1, phase_name);
  event.outcome = node["outcome"].named(KOILA_RESCUED, KOILA_REFUSED + 1, [](int outcome) { return outcome == KOILA_RESCUED ? "rescued" : "refused"; });
  const int rung = node["rung"].named(0, 4, [](int i) { return rung_name(i == 3 ? 0 : 1 << i); });
  event.rung = rung == 3 ? 0 : 1 << rung;
  read(node, "op", event.op);
  read(node, "requested_bytes", event.requested_bytes);
  read(node, "live_bytes", event.live_bytes);
  read(node, "budget_bytes", event.budget_bytes);
  read(node, "reason", event.reason);
  read(node, "micro_batch", event.micro_batch);
  read(node, "batch", event.batch);
  read(node, "seconds", event.seconds);
  read(node, "count", event.count);
  read(node, "at", event.at);
  read(node, "step", event.step);
  return event;
}

koila_region_event region_of(const Node& node) {
  koila_region_event region = {};
  region.device = device_of(node["device"]);
  read(node, "batch", region.batch);
  read(node, "micro_batch", region.micro_batch);
  read(node, "runs", region.runs);
  read(node, "forward_only", region.forward_only);
  read(node, "halvings", region.halvings);
  read(node, "operators", region.operators);
  read(node, "seconds", region.seconds);
  return region;
}

Holder holder_of(const Node& node) {
  Holder holder;
  holder.category = category_of(node["category"]);
  read(node, "op", holder.op);
  read(node, "where", holder.where);
  read(node, "bytes", holder.bytes);
  read(node, "count", holder.count);
  read(node, "step", holder.step);
  return holder;
}

// A column of a table: `set` is called with each row and its value. The first column says how many rows there are.
template <class Row, class Set>
void read_column(const Node& table, const char* name, std::vector<Row>& rows, bool first, Set&& set) {
  const Node column = table[name];
  if (first) rows.resize(column.size());
  else if (column.size() != rows.size()) throw Problem(std::string("the lists beside ") + name + " have " + std::to_string(rows.size()) + " entries, and it has " + std::to_string(column.size()));
  std::size_t i = 0;
  column.each_element([&](const Node& element) { set(rows[i++], element); });
}

std::vector<Sample> timeline_of(const Node& table) {
  std::vector<Sample> rows;
  read_column(table, "seconds", rows, true, [](Sample& row, const Node& value) { row.seconds = value.number(); });
  read_column(table, "live_bytes", rows, false, [](Sample& row, const Node& value) { row.live_bytes = value.integer(); });
  const Node categories = table["by_category"];
  for (int category = 0; category < KOILA_CATEGORIES; ++category) {
    if (!categories.has(category_key(category))) continue;
    read_column(categories, category_key(category), rows, false, [&](Sample& row, const Node& value) { row.by_category[category] = value.integer(); });
  }
  return rows;
}

std::vector<StepSample> steps_of(const Node& table) {
  std::vector<StepSample> rows;
  read_column(table, "seconds", rows, true, [](StepSample& row, const Node& value) { row.seconds = value.number(); });
  read_column(table, "device", rows, false, [](StepSample& row, const Node& value) { row.device = device_of(value); });
  const std::pair<const char*, std::int64_t StepSample::*> columns[] = {
      {"step", &StepSample::step},   {"live_bytes", &StepSample::live_bytes},   {"peak_bytes", &StepSample::peak_bytes},
      {"batch", &StepSample::batch}, {"micro_batch", &StepSample::micro_batch}, {"rescues", &StepSample::rescues}};
  for (const auto& [name, member] : columns)
    read_column(table, name, rows, false, [member = member](StepSample& row, const Node& value) { row.*member = value.integer(); });
  return rows;
}

DeviceFigures device_figures_of(const Node& node, int device) {
  DeviceFigures figures;
  figures.device = device;
  read(node, "peak_bytes", figures.peak_bytes);
  read(node, "live_bytes", figures.live_bytes);
  read(node, "budget_bytes", figures.budget_bytes);
  read(node, "allocations", figures.allocations);
  read(node, "frees", figures.frees);
  read(node, "outside_bytes", figures.outside_bytes);
  read(node, "outside_peak_bytes", figures.outside_peak_bytes);
  read(node, "outside_written_bytes", figures.outside_written_bytes);
  read(node, "peak_seconds", figures.peak_seconds);
  read(node, "peak_step", figures.peak_step);
  if (node.has("live_by_category")) figures.live_by_category = categories_of(node["live_by_category"]);
  if (node.has("peak_by_category")) figures.peak_by_category = categories_of(node["peak_by_category"]);
  read_list(node, "holders", figures.holders, holder_of);
  if (node.has("timeline")) figures.timeline = timeline_of(node["timeline"]);
  read(node, "failed_allocations", figures.failed_allocations);
  read(node, "tensor_bytes", figures.tensor_bytes);
  read(node, "tensor_peak_bytes", figures.tensor_peak_bytes);
  read(node, "used_bytes", figures.used_bytes);
  read(node, "untracked_bytes", figures.untracked_bytes);
  if (node.has("sizes")) {
    figures.sizes.resize(kSizeClasses);
    node["sizes"].each_element([&](const Node& element) {
      const std::int64_t from = element["from_bytes"].integer();
      int size_class = 0;
      while (size_class < kSizeClasses && std::int64_t{1} << size_class != from) ++size_class;
      if (size_class == kSizeClasses) element["from_bytes"].fail("a power of two below 2^" + std::to_string(kSizeClasses));
      figures.sizes[static_cast<std::size_t>(size_class)] = element["count"].integer();
    });
  }
  return figures;
}

SourceFigures source_of(const Node& node) {
  SourceFigures source;
  source.place = device_of(node["device"]);
  source.kind = static_cast<MemoryKind>(node["kind"].named(0, kMemoryKinds, [](int kind) { return memory_kind_name(static_cast<MemoryKind>(kind)); }));
  read(node, "library", source.library);
  read(node, "live_bytes", source.live_bytes);
  read(node, "peak_bytes", source.peak_bytes);
  read(node, "allocations", source.allocations);
  read(node, "frees", source.frees);
  return source;
}

Leak leak_of(const Node& node) {
  Leak leak;
  leak.device = device_of(node["device"]);
  leak.category = category_of(node["category"]);
  read(node, "op", leak.op);
  read(node, "where", leak.where);
  read(node, "holder", leak.holder);
  read(node, "bytes", leak.bytes);
  read(node, "bytes_per_step", leak.bytes_per_step);
  read(node, "first_step", leak.first_step);
  read(node, "graph_nodes", leak.graph_nodes);
  return leak;
}

ProgramFacts facts_of(const Node& node) {
  ProgramFacts facts;
  read(node, "autocast", facts.autocast);
  read(node, "half_parameters_bytes", facts.half_parameters_bytes);
  read(node, "checkpoints", facts.checkpoints);
  read(node, "kept_gradients", facts.kept_gradients);
  read(node, "kept_gradients_bytes", facts.kept_gradients_bytes);
  read(node, "graph_in_evaluation", facts.graph_in_evaluation);
  read(node, "graph_in_evaluation_bytes", facts.graph_in_evaluation_bytes);
  read(node, "foreach_bytes", facts.foreach_bytes);
  read(node, "fused_optimizer", facts.fused_optimizer);
  read(node, "expandable_segments", facts.expandable_segments);
  read(node, "fragmented_bytes", facts.fragmented_bytes);
  read(node, "size_cache", facts.size_cache);
  return facts;
}

void read_events(const Node& root, EventList& events) {
  read(root, "steps", events.steps);
  read(root, "rescues", events.rescues);
  read(root, "refused", events.refusals);
  if (root.has("ladder")) {
    root["ladder"].each_member([&](const std::string& name, const Node& node) {
      for (const int rung : {0, static_cast<int>(KOILA_RUNG_RETRY), static_cast<int>(KOILA_RUNG_SPLIT), static_cast<int>(KOILA_RUNG_OFFLOAD)}) {
        if (name != rung_name(rung)) continue;
        RungTotals& totals = events.rungs[rung];
        read(node, "count", totals.count);
        read(node, "seconds", totals.seconds);
      }
    });
  }
  read_list(root, "oom_events", events.oom_events, oom_of);
  if (root.has("regions_total")) {
    const Node totals = root["regions_total"];
    read(totals, "count", events.region_totals.count);
    read(totals, "runs", events.region_totals.runs);
    read(totals, "forward_only", events.region_totals.forward_only);
    read(totals, "halvings", events.region_totals.halvings);
    read(totals, "seconds", events.region_totals.seconds);
  }
  read_list(root, "regions", events.regions, region_of);
  if (root.has("last_region") && !root["last_region"].is_null()) events.last_region = region_of(root["last_region"]);
  else if (!events.regions.empty()) events.last_region = events.regions.back();
  if (root.has("full_batch_ops")) {
    root["full_batch_ops"].each_element([&](const Node& node) {
      FullBatchOp& op = events.full_batch[node["op"].text()];
      read(node, "bytes", op.bytes);
      read(node, "count", op.count);
    });
  }
  read_list(root, "notes", events.notes, [](const Node& node) { return node.text(); });
}

ReportData data_of(const Node& root) {
  if (!root.has("schema") || !root.has("koila_version")) throw Problem("this is no report of koila: it has no schema and koila_version");
  if (const std::int64_t schema = root["schema"].integer(); schema != kSchema)
    throw Problem("the report has schema " + std::to_string(schema) + ", written by koila " + root["koila_version"].text() + "; this koila (" KOILA_VERSION +
                  ") reads schema " + std::to_string(kSchema));

  ReportData data;
  data.end = RunEnd::kExited;  // an older koila wrote at exit alone
  read(root, "torch_version", data.torch_version);
  read(root, "pid", data.pid);
  read(root, "host", data.host);
  read(root, "command", data.command);
  read(root, "started", data.started);
  read(root, "seconds", data.seconds);
  if (root.has("end")) data.end = static_cast<RunEnd>(root["end"].named(0, 3, [](int end) { return end_name(static_cast<RunEnd>(end)); }));
  data.mode = root["mode"].named(KOILA_MODE_OFF, KOILA_MODE_LAZY + 1, mode_name);
  read(root, "forced_micro_batch", data.microbatch);
  root["devices"].each_member([&](const std::string& name, const Node& node) { data.devices.push_back(device_figures_of(node, device_of(node, name))); });
  std::sort(data.devices.begin(), data.devices.end(), [](const DeviceFigures& a, const DeviceFigures& b) { return a.device < b.device; });
  read_list(root, "sources", data.sources, source_of);
  read_events(root, data.events);
  if (root.has("step_samples")) data.steps = steps_of(root["step_samples"]);
  read_list(root, "leaks", data.leaks, leak_of);
  if (root.has("facts")) data.facts = facts_of(root["facts"]);
  make_sane(data);
  return data;
}

}  // namespace

ParsedReport parse_report_json(const std::string& text) {
  try {
    if (text.size() > kReportBytesAtMost) return {std::nullopt, "this is no report of koila: larger than " + format_bytes(kReportBytesAtMost)};
    if (!is_within(kLimits, text)) return {std::nullopt, "this is no report of koila: it has too many parts, or parts within each other"};
    return {data_of(Node(Json::parse(text), "")), ""};
  } catch (const Json::parse_error& error) {
    const std::string what = error.what();  // "[json.exception.parse_error.101] parse error at line 1, column 5: ..."
    const std::size_t end = what.find("] ");
    return {std::nullopt, "this is no JSON: " + (end == std::string::npos ? what : what.substr(end + 2))};
  } catch (const std::exception& error) {
    return {std::nullopt, error.what()};
  }
}

}  // namespace koila
