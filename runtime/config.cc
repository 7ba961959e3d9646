#include "runtime/config.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <numeric>
#include <string_view>

#include "runtime/bytes.h"
#include "runtime/edit_distance.h"

extern char** environ;

namespace koila {
namespace {

// Reads a value into the config; false when it is not of the accepted form, and then the config is as it was, or `used` says what of
// the value was taken.
using Reader = bool (*)(const std::string& value, Config& config, std::string& used);

struct Variable {
  const char* name;
  const char* form;      // what is accepted
  const char* fallback;  // what is used in place of a bad value
  Reader read;
};

bool read_flag(const std::string& value, bool& flag) {
  if (value != "0" && value != "1") return false;
  flag = value == "1";
  return true;
}

std::string trimmed(const std::string& text) {
  const std::size_t begin = text.find_first_not_of(' ');
  return begin == std::string::npos ? "" : text.substr(begin, text.find_last_not_of(' ') - begin + 1);
}

bool read_mode(const std::string& value, Config& config, std::string&) {
  const std::pair<const char*, int> modes[] = {
      {"off", KOILA_MODE_OFF}, {"track", KOILA_MODE_TRACK}, {"rescue", KOILA_MODE_RESCUE}, {"lazy", KOILA_MODE_LAZY}};
  for (const auto& [name, mode] : modes) {
    if (value != name) continue;
    config.mode = mode;
    return true;
  }
  return false;
}

bool read_microbatch(const std::string& value, Config& config, std::string&) {
  std::int64_t rows = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), rows);
  if (error != std::errc() || end != value.data() + value.size() || rows < 1) return false;
  config.microbatch = rows;
  return true;
}

// What stands between the commas, an empty text as well.
std::vector<std::string> parts_of(const std::string& value) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin <= value.size();) {
    const std::size_t end = std::min(value.find(',', begin), value.size());
    parts.push_back(trimmed(value.substr(begin, end - begin)));
    begin = end + 1;
  }
  return parts;
}

// A size or a share.
bool read_budget(const std::string& text, MemoryBudget& budget) {
  if (const auto share = parse_percent(text)) {
    budget = {MemoryBudget::Kind::kShare, 0, *share};
  } else if (const auto bytes = parse_bytes(text)) {
    budget = {MemoryBudget::Kind::kBytes, *bytes, 0};
  } else {
    return false;
  }
  return true;
}

bool read_cpu_memory(const std::string& value, Config& config, std::string&) {
  if (value != "auto") return read_budget(value, config.cpu_memory);
  config.cpu_memory = {MemoryBudget::Kind::kAuto, 0, 0};
  return true;
}

// "8GiB", "90%", "0:8GiB,1:4GiB".
bool read_device_memory(const std::string& value, Config& config, std::string&) {
  std::vector<DeviceBudget> budgets;
  for (std::string text : parts_of(value)) {
    DeviceBudget entry;
    if (const std::size_t colon = text.find(':'); colon != std::string::npos) {
      int device = -1;
      const auto [stop, error] = std::from_chars(text.data(), text.data() + colon, device);
      if (error != std::errc() || stop != text.data() + colon || device < 0 || device >= kCudaDevices) return false;
      entry.device = device;
      text = trimmed(text.substr(colon + 1));
    }
    if (!read_budget(text, entry.budget)) return false;
    for (const DeviceBudget& other : budgets) {
      if (other.device == entry.device) return false;
    }
    budgets.push_back(entry);
  }
  config.device_memory = std::move(budgets);
  return true;
}

bool read_report(const std::string& value, Config& config, std::string& used) {
  std::vector<ReportTarget> targets;
  bool all_good = true;
  std::string good;
  for (const std::string& path : value == "off" ? std::vector<std::string>() : parts_of(value)) {
    if (const auto target = parse_report_target(path)) {
      targets.push_back(*target);
      good += (good.empty() ? "" : ",") + path;
    } else {
      all_good = false;
    }
  }
  if (!all_good && targets.empty()) return false;
  if (!all_good) used = good;
  config.reports = std::move(targets);
  return all_good;
}

bool read_record_path(const std::string& value, Config& config, std::string&) {
  config.keeps_record = value != "off";
  config.record = config.keeps_record ? value : "";
  return true;
}

bool read_log(const std::string& value, Config& config, std::string&) {
  const auto level = parse_log_level(value);
  if (level) config.log_level = *level;
  return level.has_value();
}

bool read_inject(const std::string& value, Config& config, std::string&) {
  const auto spec = parse_inject(value);
  if (spec) config.inject = spec;
  return spec.has_value();
}

bool read_log_file(const std::string& value, Config& config, std::string&) {
  config.log_file = value;
  return true;
}

bool read_spill_dir(const std::string& value, Config& config, std::string&) {
  config.spill_dir = value;
  return true;
}

bool read_rules_path(const std::string& value, Config& config, std::string&) {
  config.rules = value;
  return true;
}

bool read_cache(const std::string& value, Config& config, std::string&) {
  config.cache = value;
  return true;
}

bool read_policy(const std::string& value, Config& config, std::string&) {
  if (value == "model") config.policy = KOILA_POLICY_MODEL;
  else if (value == "pow2") config.policy = KOILA_POLICY_POW2;
  else if (value == "fastest") config.policy = KOILA_POLICY_FASTEST;
  else return false;
  return true;
}

// "0,1,2". A set: the rungs are climbed in their own order, however they are written.
bool read_ladder(const std::string& value, Config& config, std::string&) {
  int rungs = 0;
  for (const std::string& rung : parts_of(value)) {
    if (rung.size() != 1 || rung[0] < '0' || rung[0] > '3') return false;
    rungs |= 1 << (rung[0] - '0');
  }
  config.ladder = rungs & KOILA_RUNGS_ALL;
  return true;
}

bool read_cupti(const std::string& value, Config& config, std::string&) { return read_flag(value, config.cupti); }
bool read_verify(const std::string& value, Config& config, std::string&) {
  if (value == "0") config.verify = KOILA_VERIFY_NOTHING;
  else if (value == "first" || value == "1") config.verify = KOILA_VERIFY_FIRST;
  else if (value == "every") config.verify = KOILA_VERIFY_EVERY;
  else return false;
  return true;
}
bool read_stacks(const std::string& value, Config& config, std::string&) { return read_flag(value, config.stacks); }
bool read_strict(const std::string& value, Config& config, std::string&) { return read_flag(value, config.strict); }

// All that parse_bytes() takes, in any case.
#define KOILA_UNITS "B, K, M, G, T, KiB, MiB, GiB, TiB of 1024; KB, MB, GB, TB of 1000"

constexpr Variable kVariables[] = {
    {"KOILA_MODE", "off, track, rescue or lazy", "rescue", read_mode},
    {"KOILA_MICROBATCH", "a number of rows from 1", "no fixed micro-batch", read_microbatch},
    {"KOILA_CPU_MEMORY", "a size with its unit such as 512MiB, 4G or 1.5GiB (units: " KOILA_UNITS "), a share such as 50%, or auto", "no budget", read_cpu_memory},
    {"KOILA_DEVICE_MEMORY", "a size with its unit such as 8GiB (units: " KOILA_UNITS "), a share such as 90%, or one of these for each device such as 0:8GiB,1:4GiB", "no budget",
     read_device_memory},
    {"KOILA_REPORT", "off, or stderr and paths that end in .txt, .json, .html, .csv or .pickle, with commas", "stderr", read_report},
    {"KOILA_RECORD", "off or a path", "a file in the temporary folder", read_record_path},
    {"KOILA_LOG", "trace, debug, info, warn, error, critical or off", "warn", read_log},
    {"KOILA_LOG_FILE", "a path", "stderr", read_log_file},
    {"KOILA_SPILL_DIR", "a folder", "the temporary folder", read_spill_dir},
    {"KOILA_RULES", "a path", "no rules", read_rules_path},
    {"KOILA_INJECT_OOM", kInjectForm, "none", read_inject},
    {"KOILA_CACHE", "a path", "no cache", read_cache},
    {"KOILA_POLICY", "model, pow2 or fastest", "model", read_policy},
    {"KOILA_LADDER", "rungs from 0 to 3 with commas such as 0,1,2", "0,1,2", read_ladder},
    {"KOILA_CUPTI", "0 or 1", "0", read_cupti},
    {"KOILA_STRICT", "0 or 1", "0", read_strict},
    {"KOILA_VERIFY", "0, first or every", "first", read_verify},
    {"KOILA_STACKS", "0 or 1", "0", read_stacks},
};

// Read by koila's scripts, and in the environment of whatever they start.
constexpr const char* kScriptVariables[] = {"KOILA_PYTHON"};

constexpr std::string_view kPrefix = "KOILA_";

std::string unknown_name(const std::string& name) {
  const auto* nearest = &kVariables[0];
  for (const Variable& variable : kVariables)
    if (edit_distance(name, variable.name) < edit_distance(name, nearest->name)) nearest = &variable;
  // What is meant is a guess: a name that has little in common with what was written would lead astray.
  const std::string written = name.substr(kPrefix.size()), near = std::string(nearest->name).substr(kPrefix.size());
  const bool alike = !written.empty() && (edit_distance(written, near) <= std::max(2, static_cast<int>(written.size()) / 3) || near.starts_with(written) || near.ends_with(written));
  return name + " is no variable of koila, and is ignored; " + (alike ? "did you mean " + std::string(nearest->name) + "?" : "koila run --help lists those that there are");
}

}  // namespace

bool ParsedConfig::has_errors() const {
  return std::any_of(problems.begin(), problems.end(), [](const ConfigProblem& p) { return p.level >= KOILA_LOG_WARN; });
}

ParsedConfig parse_config(const Environment& environment) {
  ParsedConfig parsed;
  for (const auto& [name, value] : environment) {
    if (!name.starts_with(kPrefix) || value.empty()) continue;
    if (std::find(std::begin(kScriptVariables), std::end(kScriptVariables), name) != std::end(kScriptVariables)) continue;

    const auto* variable = std::find_if(std::begin(kVariables), std::end(kVariables), [&](const Variable& v) { return name == v.name; });
    if (variable == std::end(kVariables)) {
      parsed.problems.push_back({KOILA_LOG_WARN, unknown_name(name)});
    } else if (std::string used = variable->fallback; !variable->read(value, parsed.config, used)) {
      parsed.problems.push_back({KOILA_LOG_WARN, name + "=" + value + " is not understood: want " + variable->form + "; using " + used});
    }
  }
  return parsed;
}

std::vector<VariableForm> variable_forms() {
  std::vector<VariableForm> forms;
  for (const Variable& variable : kVariables) forms.push_back({variable.name, variable.form, variable.fallback});
  return forms;
}

Environment koila_environment() {
  Environment environment;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::size_t equals = text.find('=');
    if (text.starts_with("KOILA_") && equals != std::string_view::npos)
      environment.emplace_back(text.substr(0, equals), text.substr(equals + 1));
  }
  return environment;
}

std::string expand_path(const std::string& path) {
  std::string expanded;
  for (std::size_t i = 0; i < path.size(); ++i) {
    const char next = path[i] == '%' && i + 1 < path.size() ? path[i + 1] : '\0';
    if (next == 'p') {
      expanded += std::to_string(getpid());
    } else if (next == 'h') {
      char host[256] = "";
      gethostname(host, sizeof host - 1);
      expanded += host;
    } else if (next == '%') {
      expanded += '%';
    } else {
      expanded += path[i];
      continue;
    }
    ++i;
  }
  return expanded;
}

std::optional<int> parse_log_level(const std::string& name) {
  const std::pair<const char*, int> levels[] = {
      {"trace", KOILA_LOG_TRACE}, {"debug", KOILA_LOG_DEBUG}, {"info", KOILA_LOG_INFO},         {"warn", KOILA_LOG_WARN},
      {"warning", KOILA_LOG_WARN}, {"error", KOILA_LOG_ERROR}, {"critical", KOILA_LOG_CRITICAL}, {"off", KOILA_LOG_OFF}};
  for (const auto& [level_name, level] : levels)
    if (name == level_name) return level;
  return std::nullopt;
}

bool Config::wants_snapshot() const {
  return std::any_of(reports.begin(), reports.end(), [](const ReportTarget& target) { return target.kind == ReportTarget::Kind::kPickle; });
}

std::optional<ReportTarget> parse_report_target(const std::string& path) {
  if (path == "stderr") return ReportTarget{};
  using Kind = ReportTarget::Kind;
  const std::pair<const char*, Kind> kinds[] = {
      {".txt", Kind::kText}, {".json", Kind::kJson}, {".html", Kind::kHtml}, {".csv", Kind::kCsv}, {".pickle", Kind::kPickle}};
  for (const auto& [suffix, kind] : kinds)
    if (path.ends_with(suffix)) return ReportTarget{kind, path};
  return std::nullopt;
}

}  // namespace koila
