// The configuration, from the environment. A pure function reads it: no file is opened and nothing is printed here.
#ifndef KOILA_RUNTIME_CONFIG_H_
#define KOILA_RUNTIME_CONFIG_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/abi.h"
#include "runtime/inject.h"

namespace koila {

// A budget as it was written; what `auto` and a share come to depends on the machine (memory_limit.h).
struct MemoryBudget {
  enum class Kind { kNone, kBytes, kShare, kAuto };
  Kind kind = Kind::kNone;
  std::int64_t bytes = 0;  // kBytes
  double share = 0;        // kShare: of the machine's memory or the container's limit, the smaller; 0 to 1
};

// A budget of one CUDA device, or of each that has none of its own.
struct DeviceBudget {
  std::optional<int> device;
  MemoryBudget budget;  // kBytes, or kShare of the device's memory
};

struct ReportTarget {
  enum class Kind { kStderr, kText, kJson, kHtml, kCsv, kPickle };
  Kind kind = Kind::kStderr;
  std::string path;  // with %p and %h as written; empty for kStderr
};

struct Config {
  int mode = KOILA_MODE_RESCUE;
  std::int64_t microbatch = 0;  // rows; 0: not forced
  MemoryBudget cpu_memory;
  std::vector<DeviceBudget> device_memory;
  std::vector<ReportTarget> reports = {ReportTarget{}};
  int log_level = KOILA_LOG_WARN;
  std::string log_file;   // with %p and %h as written; empty: stderr
  std::string spill_dir;  // empty: the folder for temporary files
  std::string rules;      // a file of placement rules; empty: none
  bool keeps_record = true;
  std::string record;     // the file of the run's record, with %p and %h as written; empty: one in the folder of records
  std::string cache;      // a file of learned micro-batch sizes, with %p and %h as written; empty: none
  int policy = KOILA_POLICY_MODEL;
  int ladder = KOILA_RUNGS_ALL;
  std::optional<InjectSpec> inject;
  bool cupti = false;  // ask CUPTI for memory that no hook sees
  bool strict = false;
  int verify = KOILA_VERIFY_FIRST;
  bool stacks = false;  // find the source line of every tensor

  // A report is asked for that lists every tensor's coming and going.
  bool wants_snapshot() const;
};

// Something to say about a variable.
struct ConfigProblem {
  int level = KOILA_LOG_WARN;
  std::string text;            // one line: name, value, accepted form, value used
};

struct ParsedConfig {
  Config config;
  std::vector<ConfigProblem> problems;

  // Whether a value or a name was wrong, which under KOILA_STRICT keeps koila out.
  bool has_errors() const;
};

using Environment = std::vector<std::pair<std::string, std::string>>;

// Looks at the names that start with KOILA_. An empty value counts as not set.
ParsedConfig parse_config(const Environment& environment);

// What is accepted for a variable, and what stands in for a value that is not: "off, track, rescue or lazy", "rescue".
struct VariableForm {
  const char* name;
  const char* form;
  const char* fallback;
};
std::vector<VariableForm> variable_forms();

// This process's environment, KOILA_* only, in its order.
Environment koila_environment();

// `path` with %p (process id), %h (host name) and %% replaced.
std::string expand_path(const std::string& path);

// A log level by its name; nothing when there is no such level.
std::optional<int> parse_log_level(const std::string& name);

// A report target by its suffix or as `stderr`; nothing when the suffix is of no form there is.
std::optional<ReportTarget> parse_report_target(const std::string& path);

}  // namespace koila

#endif  // KOILA_RUNTIME_CONFIG_H_
