#include "tool/compare.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <set>
#include <type_traits>

#include <nlohmann/json.hpp>

#include "runtime/bytes.h"
#include "runtime/printable.h"
#include "runtime/report/report.h"
#include "tool/files.h"

namespace koila::tool {
namespace {

constexpr std::size_t kShownHolders = 10;
constexpr std::size_t kShownRefusals = 3;

const char* unit_name(Unit unit) {
  switch (unit) {
    case Unit::kBytes: return "bytes";
    case Unit::kSeconds: return "seconds";
    default: return "count";
  }
}

std::string format(double value, Unit unit) {
  if (unit == Unit::kBytes) return format_bytes(static_cast<std::int64_t>(value));
  char text[48];
  if (unit == Unit::kCount) std::snprintf(text, sizeof text, "%lld", static_cast<long long>(value));
  else if (value < 0.1) std::snprintf(text, sizeof text, "%.2f ms", value * 1e3);
  else std::snprintf(text, sizeof text, "%.2f s", value);
  return text;
}

const DeviceFigures* device_of(const ReportData& data, int device) {
  const auto found = std::find_if(data.devices.begin(), data.devices.end(), [&](const DeviceFigures& d) { return d.device == device; });
  return found == data.devices.end() ? nullptr : &*found;
}

class Table {
 public:
  explicit Table(const std::vector<NamedRun>& runs) : runs_(runs) {}

  // A row of what `of` answers for each run's data; none where it is nothing or 0 for all.
  template <class F>
  void add(const std::string& name, Unit unit, F&& of) {
    CompareRow row{name, unit, {}};
    for (const NamedRun& run : runs_) row.values.push_back(of(run.data));
    if (std::any_of(row.values.begin(), row.values.end(), [](const auto& value) { return value && *value != 0; })) rows.push_back(std::move(row));
  }

  template <class F>
  void add_of_device(int device, const std::string& name, F&& of) {
    add(device_name(device) + ": " + name, Unit::kBytes, [&](const ReportData& data) -> std::optional<double> {
      const DeviceFigures* figures = device_of(data, device);
      if (figures == nullptr) return std::nullopt;
      const auto value = of(*figures);
      if constexpr (std::is_same_v<decltype(value), const std::optional<double>>) return value;
      else return static_cast<double>(value);
    });
  }

  std::vector<CompareRow> rows;

 private:
  const std::vector<NamedRun>& runs_;
};

std::optional<double> positive(std::int64_t value) {
  if (value <= 0) return std::nullopt;
  return static_cast<double>(value);
}

std::vector<Change> by_size(const std::map<std::string, Change>& changes) {
  std::vector<Change> sorted;
  for (const auto& [what, change] : changes)
    if (change.before != change.after) sorted.push_back(change);
  std::stable_sort(sorted.begin(), sorted.end(), [](const Change& a, const Change& b) { return std::llabs(a.after - a.before) > std::llabs(b.after - b.before); });
  return sorted;
}

std::vector<Change> compare_holders(const ReportData& before, const ReportData& after) {
  std::map<std::string, Change> changes;
  const auto add = [&](const ReportData& data, std::int64_t Change::*side) {
    for (const DeviceFigures& device : data.devices) {
      for (const Holder& holder : device.holders) {
        std::string what = device_name(device.device) + ": " + category_name(holder.category);
        if (!holder.op.empty()) what += " of " + holder.op;
        if (!holder.where.empty()) what += " (" + holder.where.substr(0, holder.where.find('\n')) + ")";
        Change& change = changes[what];
        change.what = what;
        change.*side += holder.bytes;
      }
    }
  };
  add(before, &Change::before);
  add(after, &Change::after);
  return by_size(changes);
}

std::vector<Change> compare_full_batch(const ReportData& before, const ReportData& after) {
  std::map<std::string, Change> changes;
  for (const auto& [op, entry] : before.events.full_batch)
    if (!after.events.full_batch.contains(op)) changes[op] = {op, entry.bytes, 0};
  for (const auto& [op, entry] : after.events.full_batch)
    if (!before.events.full_batch.contains(op)) changes[op] = {op, 0, entry.bytes};
  return by_size(changes);
}

// A line where not all runs say the same.
template <class F>
void add_difference(const std::vector<NamedRun>& runs, const char* name, F&& of, std::vector<std::string>& lines) {
  std::vector<std::string> said;
  for (const NamedRun& run : runs) said.push_back(of(run.data));
  if (std::set<std::string>(said.begin(), said.end()).size() < 2) return;
  for (std::string& text : said)
    if (text.empty()) text = "(unknown)";
  lines.push_back(std::string(name) + ": " + join(said, "  |  "));
}

std::string signed_percent(double percent) {
  char text[32];
  std::snprintf(text, sizeof text, "%+.1f%%", percent);
  return text;
}

std::string signed_bytes(std::int64_t bytes) { return (bytes < 0 ? "-" : "+") + format_bytes(std::llabs(bytes)); }

std::string padded(const std::string& text, std::size_t width, bool right) {
  const std::string space(text.size() < width ? width - text.size() : 0, ' ');
  return right ? space + text : text + space;
}

std::string cell(const CompareRow& row, std::size_t i) {
  if (!row.values[i]) return "-";
  std::string text = format(*row.values[i], row.unit);
  if (i > 0)
    if (const auto percent = row.percent(i)) text += " " + padded("(" + signed_percent(*percent) + ")", 9, true);
  return text;
}

}  // namespace

std::optional<double> CompareRow::percent(std::size_t i) const {
  if (!values[0] || !values[i] || *values[0] == 0) return std::nullopt;
  return (*values[i] / *values[0] - 1) * 100;
}

Comparison compare(const std::vector<NamedRun>& runs) {
  Comparison comparison;
  for (const NamedRun& run : runs) comparison.names.push_back(run.name);

  Table table(runs);
  const auto count = [](std::int64_t value) { return std::optional<double>(static_cast<double>(value)); };
  table.add("steps", Unit::kCount, [&](const ReportData& d) { return count(d.events.steps); });
  table.add("seconds per step", Unit::kSeconds, [](const ReportData& d) { return d.seconds_per_step(); });
  table.add("seconds in all", Unit::kSeconds, [](const ReportData& d) { return std::optional<double>(d.seconds); });
  table.add("rescues", Unit::kCount, [&](const ReportData& d) { return count(d.events.rescues); });
  table.add("refusals", Unit::kCount, [&](const ReportData& d) { return count(d.events.refusals); });
  table.add("micro-batch, rows", Unit::kCount, [](const ReportData& d) { return positive(d.events.last_region.micro_batch); });
  table.add("batch, rows", Unit::kCount, [](const ReportData& d) { return positive(d.events.last_region.batch); });
  table.add("seconds in micro-batches", Unit::kSeconds, [](const ReportData& d) { return d.events.region_totals.count > 0 ? std::optional<double>(d.events.region_totals.seconds) : std::nullopt; });

  std::set<int> devices;
  for (const NamedRun& run : runs)
    for (const DeviceFigures& device : run.data.devices) devices.insert(device.device);
  for (const int device : devices) {
    table.add_of_device(device, "peak", [](const DeviceFigures& d) { return d.peak_bytes; });
    table.add_of_device(device, "budget", [](const DeviceFigures& d) { return positive(d.budget_bytes); });
    table.add_of_device(device, "live at the end", [](const DeviceFigures& d) { return d.live_bytes; });
    table.add_of_device(device, "tensors, peak", [](const DeviceFigures& d) { return d.tensor_peak_bytes; });
    for (int category = 0; category < KOILA_CATEGORIES; ++category)
      table.add_of_device(device, std::string("peak, ") + category_name(category), [&](const DeviceFigures& d) { return d.peak_by_category[category]; });
    table.add_of_device(device, "kept outside, peak", [](const DeviceFigures& d) { return d.outside_peak_bytes; });
    table.add_of_device(device, "untracked", [](const DeviceFigures& d) { return d.untracked_bytes; });
  }
  comparison.rows = std::move(table.rows);

  if (runs.size() > 1) {
    comparison.holders = compare_holders(runs.front().data, runs.back().data);
    comparison.full_batch = compare_full_batch(runs.front().data, runs.back().data);
  }
  add_difference(runs, "mode", [](const ReportData& d) { return std::string(mode_name(d.mode)); }, comparison.differs);
  add_difference(runs, "torch", [](const ReportData& d) { return d.torch_version; }, comparison.differs);
  add_difference(runs, "command", [](const ReportData& d) { return d.command; }, comparison.differs);
  add_difference(runs, "host", [](const ReportData& d) { return d.host; }, comparison.differs);
  add_difference(runs, "end", [](const ReportData& d) { return std::string(end_name(d.end)); }, comparison.differs);
  for (const NamedRun& run : runs) {
    comparison.refusals.emplace_back();
    for (const OomEvent& event : run.data.events.oom_events)
      if (event.outcome == KOILA_REFUSED) comparison.refusals.back().push_back(describe(event));
  }
  return comparison;
}

namespace {

// Names and reasons come from files: in a terminal none of them may do more than be read.
Comparison printable_parts(Comparison comparison) {
  const auto clean = [](std::string& text) { text = printable(text); };
  const auto clean_all = [&](std::vector<std::string>& texts) { std::for_each(texts.begin(), texts.end(), clean); };
  clean_all(comparison.names);
  clean_all(comparison.differs);
  for (CompareRow& row : comparison.rows) clean(row.name);
  for (std::vector<Change>* changes : {&comparison.holders, &comparison.full_batch})
    for (Change& change : *changes) clean(change.what);
  for (std::vector<std::string>& lines : comparison.refusals) clean_all(lines);
  return comparison;
}

}  // namespace

std::string compare_text(const Comparison& of, bool colour) {
  const Comparison comparison = printable_parts(of);
  const std::size_t runs = comparison.names.size();
  std::size_t first = 0;
  std::vector<std::size_t> widths;
  for (const CompareRow& row : comparison.rows) first = std::max(first, row.name.size());
  for (std::size_t i = 0; i < runs; ++i) {
    widths.push_back(comparison.names[i].size());
    for (const CompareRow& row : comparison.rows) widths[i] = std::max(widths[i], cell(row, i).size());
  }
  std::string text;
  const auto bold = [&](const std::string& s) { return colour ? "\033[1m" + s + "\033[0m" : s; };
  std::string head = padded("", first, false);
  for (std::size_t i = 0; i < runs; ++i) head += "  " + padded(comparison.names[i], widths[i], true);
  text += bold(head) + "\n";
  for (const CompareRow& row : comparison.rows) {
    text += padded(row.name, first, false);
    for (std::size_t i = 0; i < runs; ++i) {
      const std::string shown = padded(cell(row, i), widths[i], true);
      const auto percent = i > 0 ? row.percent(i) : std::nullopt;
      const bool marked = colour && percent && row.unit != Unit::kCount && (*percent > 5 || *percent < -5);
      text += "  " + (marked ? (*percent > 0 ? "\033[31m" : "\033[32m") + shown + "\033[0m" : shown);
    }
    text += "\n";
  }
  const auto section = [&](const std::string& title) { text += "\n" + bold(title) + "\n"; };

  if (!comparison.differs.empty()) section("not the same");
  for (const std::string& line : comparison.differs) text += "  " + line + "\n";

  if (!comparison.holders.empty()) section("what held the peak, " + comparison.names.front() + " to " + comparison.names.back());
  for (std::size_t i = 0; i < std::min(comparison.holders.size(), kShownHolders); ++i) {
    const Change& change = comparison.holders[i];
    const char* word = change.before == 0 ? "new " : change.after == 0 ? "gone" : "    ";
    text += "  " + std::string(word) + " " + padded(signed_bytes(change.after - change.before), 11, true) + "  " + change.what + "\n";
  }
  if (comparison.holders.size() > kShownHolders) text += "  and " + std::to_string(comparison.holders.size() - kShownHolders) + " more\n";

  if (!comparison.full_batch.empty()) section("operators at full batch");
  for (const Change& change : comparison.full_batch)
    text += std::string("  ") + (change.before == 0 ? "new  " : "gone ") + change.what + " (" + format_bytes(std::max(change.before, change.after)) + ")\n";

  if (std::any_of(comparison.refusals.begin(), comparison.refusals.end(), [](const auto& lines) { return !lines.empty(); })) section("refusals");
  for (std::size_t i = 0; i < runs; ++i) {
    const auto& lines = comparison.refusals[i];
    for (std::size_t k = 0; k < std::min(lines.size(), kShownRefusals); ++k) text += "  " + comparison.names[i] + ": " + lines[k] + "\n";
    if (lines.size() > kShownRefusals) text += "  " + comparison.names[i] + ": and " + std::to_string(lines.size() - kShownRefusals) + " more\n";
  }
  return text;
}

std::string compare_json(const Comparison& comparison) {
  using Json = nlohmann::ordered_json;
  Json json = {{"schema", 1}, {"runs", comparison.names}, {"rows", Json::array()}};
  for (const CompareRow& row : comparison.rows) {
    Json values = Json::array(), percents = Json::array();
    for (std::size_t i = 0; i < row.values.size(); ++i) {
      if (!row.values[i]) values.push_back(nullptr);
      else if (row.unit == Unit::kSeconds) values.push_back(*row.values[i]);
      else values.push_back(static_cast<std::int64_t>(*row.values[i]));
      const auto percent = row.percent(i);
      percents.push_back(percent ? Json(*percent) : Json(nullptr));
    }
    json["rows"].push_back({{"name", row.name}, {"unit", unit_name(row.unit)}, {"values", values}, {"percent", percents}});
  }
  const auto changes = [](const std::vector<Change>& from) {
    Json list = Json::array();
    for (const Change& change : from) list.push_back({{"what", change.what}, {"before_bytes", change.before}, {"after_bytes", change.after}});
    return list;
  };
  json["holders"] = changes(comparison.holders);
  json["full_batch_ops"] = changes(comparison.full_batch);
  json["refusals"] = comparison.refusals;
  json["differs"] = comparison.differs;
  return without_controls(json.dump(2, ' ', false, Json::error_handler_t::replace)) + "\n";
}

std::string compare_csv(const Comparison& comparison) {
  // A spreadsheet takes what begins so for a formula, quoted or not.
  const auto quoted = [](const std::string& from) {
    const std::string text = printable(from);
    std::string inside = text.empty() || std::string("=+-@").find(text.front()) == std::string::npos ? "" : "'";
    for (const char c : text) inside += c == '"' ? std::string("\"\"") : std::string(1, c);
    return "\"" + inside + "\"";
  };
  std::string text = "figure,unit";
  for (const std::string& name : comparison.names) text += "," + quoted(name);
  text += "\n";
  for (const CompareRow& row : comparison.rows) {
    text += quoted(row.name) + "," + unit_name(row.unit);
    for (const auto& value : row.values) {
      char number[48] = "";
      if (value) std::snprintf(number, sizeof number, row.unit == Unit::kSeconds ? "%.6f" : "%.0f", *value);
      text += std::string(",") + number;
    }
    text += "\n";
  }
  return text;
}

}  // namespace koila::tool
