// koila probe: the largest batch that fits, without koila and with.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>

#include <CLI/App.hpp>
#include <nlohmann/json.hpp>

#include "runtime/bytes.h"
#include "runtime/report/phrases.h"
#include "tool/command_line.h"
#include "tool/files.h"
#include "tool/gpu.h"
#include "tool/library.h"
#include "tool/program.h"
#include "tool/search.h"
#include "tool/trial.h"
#include "tool/variables.h"

namespace koila::tool {
namespace {

constexpr const char* kFooter = R"(
Examples:
  koila probe --cpu-memory 16MiB --batch-arg '--batch {}' -- python train.py
  koila probe --device-memory 8GiB -- python train.py --batch-size {}
  koila probe --batch-env BATCH_SIZE --steps 5 -- ./train

The program is not changed: it is started again and again, each time with another batch, and ended by SIGTERM when it has made --steps steps. A
batch fits when these were made and the program got no out-of-memory error. "Without koila" is koila that rescues nothing (KOILA_LADDER=3): it
counts the steps and enforces the budget. On the CPU a budget is needed, for without one memory runs out for the whole machine.

The exit status is 1 when no batch fits or the program fails for another reason, 2 for a wrong command line.)";

struct Options {
  std::string batch_arg, batch_env, json, library;
  std::int64_t steps = 3, least = 1, most = 65536, start = 32;
  double within = 5, seconds = 600;
  bool quiet = false;
  Given given;
  Words command;
};

struct Trial {
  std::int64_t batch = 0;
  TrialResult result;
};

struct Half {
  const char* name;
  SearchResult found;
  std::vector<Trial> trials;
};

// The search cannot go on.
struct Stop : std::runtime_error {
  Stop(int exit_status, const std::string& why) : std::runtime_error(why), status(exit_status) {}
  int status;
};

constexpr const char* kHole = "{}";

std::string filled(std::string text, std::int64_t batch) {
  for (std::size_t at = text.find(kHole); at != std::string::npos; at = text.find(kHole, at)) text.replace(at, 2, std::to_string(batch));
  return text;
}

bool has_hole(const Words& words) { return std::any_of(words.begin(), words.end(), [](const std::string& w) { return w.find(kHole) != std::string::npos; }); }

Words command_for(const Options& options, std::int64_t batch) {
  Words words = options.command;
  const Words more = split(options.batch_arg, " ");
  words.insert(words.end(), more.begin(), more.end());
  for (std::string& word : words) word = filled(word, batch);
  return words;
}

// A folder of its own, which goes with all that is in it.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    const std::string base = variable("TMPDIR");
    path_ = (base.empty() ? "/tmp" : base) + "/koila-probe-XXXXXX";
    if (mkdtemp(path_.data()) == nullptr) throw Stop(kFoundProblem, "cannot make a folder in " + folder_of(path_));
  }
  ~TemporaryFolder() {
    try {
      std::error_code ignored;
      std::filesystem::remove_all(path_, ignored);
    } catch (...) {
    }
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

const char* outcome_name(TrialResult::Kind kind) {
  switch (kind) {
    case TrialResult::Kind::kFits: return "fits";
    case TrialResult::Kind::kRanOut: return "out of memory";
    case TrialResult::Kind::kTooSlow: return "too slow";
    case TrialResult::Kind::kStopped: return "stopped";
    default: return "failed";
  }
}

std::string trying(std::int64_t batch) { return "  trying " + plural(batch, "row") + ": "; }

void say_trial(const Trial& trial) {
  const TrialResult& result = trial.result;
  std::string line = trying(trial.batch) + outcome_name(result.kind);
  if (result.peak_bytes > 0) line += ", peak " + format_bytes(result.peak_bytes);
  if (result.kind == TrialResult::Kind::kFits && result.seconds_per_step) {
    char text[48];
    std::snprintf(text, sizeof text, ", %.3f s a step", *result.seconds_per_step);
    line += text;
  }
  if (result.kind == TrialResult::Kind::kFits && result.micro_batch > 0) line += ", micro-batches of " + plural(result.micro_batch, "row");
  if (!result.why.empty()) line += " (" + result.why + ")";
  if (isatty(STDERR_FILENO) != 0) std::fputs("\r\033[K", stderr);
  say(line);
}

Half search(const char* name, const Options& options, const Environment& environment, std::int64_t start) {
  const TemporaryFolder folder;
  Half half{name, {}, {}};
  if (!options.quiet) say(std::string(name) + ":");
  const auto try_one = [&](std::int64_t batch) {
    TrialPlan plan;
    plan.command = command_for(options, batch);
    plan.environment = environment;
    plan.environment.emplace_back("KOILA_RECORD", folder.path() + "/%p.koila");
    if (!options.batch_env.empty()) plan.environment.emplace_back(options.batch_env, std::to_string(batch));
    plan.folder = folder.path();
    plan.steps = options.steps;
    plan.seconds = options.seconds;
    if (!options.quiet && isatty(STDERR_FILENO) != 0) std::fprintf(stderr, "koila: %s...", trying(batch).c_str());
    const Trial trial{batch, run_trial(plan)};
    half.trials.push_back(trial);
    if (!options.quiet) say_trial(trial);
    using Kind = TrialResult::Kind;
    if (trial.result.kind == Kind::kStopped) throw Stop(130, "stopped");
    if (trial.result.kind == Kind::kFailed)
      throw Stop(kFoundProblem, "with a batch of " + std::to_string(batch) + " the program fails, and not for want of memory: " + trial.result.why +
                                    (trial.result.output.empty() ? "" : "\n" + trial.result.output));
    return trial.result.kind == Kind::kFits;
  };
  half.found = find_largest({options.least, options.most, start, options.within / 100}, try_one);
  return half;
}

std::string result_of(const Half& half, const Options& options) {
  if (half.found.fits == 0) return "none from " + std::to_string(options.least) + " on";
  const auto refused = std::find_if(half.trials.begin(), half.trials.end(), [&](const Trial& t) { return t.batch == half.found.does_not; });
  std::string text = std::to_string(half.found.fits);
  if (half.found.does_not == 0) text += " (no larger one was tried: --max)";
  else text += " (" + std::to_string(half.found.does_not) + (refused->result.kind == TrialResult::Kind::kTooSlow ? " is too slow" : " does not fit") + ")";
  return text;
}

// The largest batch as a command; that without koila where koila's is no larger. "" where none fits.
std::string recommended(const Half& without, const Half& with, const Options& options) {
  const bool koila = with.found.fits > without.found.fits;
  const std::int64_t batch = koila ? with.found.fits : without.found.fits;
  if (batch == 0) return "";
  std::string line = options.batch_env.empty() ? "" : options.batch_env + "=" + std::to_string(batch) + " ";
  if (koila) {
    line += "koila run";
    for (const auto& [name, value] : options.given) line += " " + shell_words({option_name(name) + "=" + value});
    line += " -- ";
  }
  return line + shell_words(command_for(options, batch));
}

// The half with koila has to rescue, or there is nothing to compare. "" when it does.
std::string wrong_with_mode(const Environment& environment) {
  const Config config = parse_config(environment).config;
  if (config.mode == KOILA_MODE_OFF || config.mode == KOILA_MODE_TRACK)
    return std::string("KOILA_MODE=") + (config.mode == KOILA_MODE_OFF ? "off" : "track") + " (--mode) leaves nothing to probe: without koila's rescue is what probe tries by itself";
  if ((config.ladder & (KOILA_RUNG_SPLIT | KOILA_RUNG_OFFLOAD)) == 0)
    return "KOILA_LADDER (--ladder) without rung 1 or 2 leaves nothing to probe: without koila's rescue is what probe tries by itself";
  return "";
}

nlohmann::ordered_json to_json(const Half& half) {
  nlohmann::ordered_json json = {{"largest", half.found.fits}, {"smallest_that_does_not_fit", half.found.does_not}};
  json["trials"] = nlohmann::ordered_json::array();
  for (const Trial& trial : half.trials) {
    const TrialResult& r = trial.result;
    json["trials"].push_back({{"batch", trial.batch}, {"outcome", outcome_name(r.kind)}, {"why", r.why}, {"steps", r.steps}, {"rescues", r.rescues},
                              {"micro_batch", r.micro_batch}, {"peak_bytes", r.peak_bytes}});
    json["trials"].back()["seconds_per_step"] = r.seconds_per_step ? nlohmann::ordered_json(*r.seconds_per_step) : nlohmann::ordered_json(nullptr);
  }
  return json;
}

// What the options lack, or contradict; "" when nothing.
std::string wrong_with(const Options& options, const Environment& environment) {
  const int ways = (options.batch_arg.empty() ? 0 : 1) + (options.batch_env.empty() ? 0 : 1) + (has_hole(options.command) ? 1 : 0);
  if (options.command.empty()) return "which program? koila probe --batch-arg '--batch-size {}' -- python train.py";
  if (ways != 1) return "how does the program take its batch? Want one of --batch-arg '--batch-size {}', --batch-env NAME, or {} in its command";
  if (!options.batch_arg.empty() && options.batch_arg.find(kHole) == std::string::npos) return "--batch-arg " + options.batch_arg + " has no {} for the batch";
  if (options.least < 1 || options.most < options.least) return "want 1 <= --min <= --max";
  if (options.start < 1) return "--start takes a number from 1";
  if (options.steps < 1) return "--steps takes a number from 1";
  if (options.within < 0 || options.within > 100) return "--within takes a percentage from 0 to 100";
  if (!(options.seconds > 0 && options.seconds < 1e6)) return "--timeout takes seconds";
  if (const std::string wrong = wrong_with_mode(environment); !wrong.empty()) return wrong;
  const auto set = [&](const char* name) {
    return std::any_of(environment.begin(), environment.end(), [&](const auto& entry) { return entry.first == name && !entry.second.empty(); });
  };
  if (!set("KOILA_CPU_MEMORY") && !set("KOILA_DEVICE_MEMORY") && find_gpus().models.empty())
    return "a budget is needed where there is no GPU: --cpu-memory 2GiB";
  return "";
}

void tell(const Half& without, const Half& with, const Options& options) {
  std::printf("largest batch without koila: %s\nlargest batch with koila:    %s\n", result_of(without, options).c_str(), result_of(with, options).c_str());
  std::printf("tried for %s each, to within %g%%; a longer run may need more\n", plural(options.steps, "step").c_str(), options.within);
  if (const std::string line = recommended(without, with, options); !line.empty()) std::printf("run: %s\n", line.c_str());
}

int probe(const Options& options, Environment environment) {
  const auto set = [&](const std::string& name, const std::string& value) {
    std::erase_if(environment, [&](const auto& entry) { return entry.first == name; });
    environment.emplace_back(name, value);
  };
  const Library library = find_library(options.library);
  if (const std::string problem = library.problem(); !problem.empty()) return fail(problem + "; --library PATH names it");
  set("LD_PRELOAD", preload_with(library.path, variable("LD_PRELOAD")));
  set("KOILA_REPORT", "off");

  Environment plain = environment;
  std::erase_if(plain, [](const auto& entry) { return entry.first == "KOILA_MODE" || entry.first == "KOILA_LADDER" || entry.first == "KOILA_MICROBATCH"; });
  plain.emplace_back("KOILA_MODE", "rescue");
  plain.emplace_back("KOILA_LADDER", "3");

  const Half without = search("without koila", options, plain, std::clamp(options.start, options.least, options.most));
  const Half with = search("with koila", options, environment, std::max<std::int64_t>(without.found.fits * 2, options.least));

  if (options.json != "-") tell(without, with, options);
  if (!options.json.empty()) {
    nlohmann::ordered_json json = {{"schema", 1},       {"command", options.command},    {"steps", options.steps}, {"min", options.least},
                                   {"max", options.most}, {"within_percent", options.within}, {"without", to_json(without)}, {"with", to_json(with)}};
    json["recommended"] = recommended(without, with, options);
    const std::string text = json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
    if (options.json == "-") std::fputs(text.c_str(), stdout);
    else if (const std::string problem = write_whole(options.json, text); !problem.empty()) {
      fail(problem);
      return kFoundProblem;
    }
  }
  return without.found.fits == 0 && with.found.fits == 0 ? kFoundProblem : kDone;
}

}  // namespace

int probe_command(const Words& words) {
  CLI::App app{"Finds the largest batch with which a program runs, without koila and with.", "koila probe"};
  app.footer(kFooter);
  Options options;
  app.add_option("--batch-arg", options.batch_arg, "words to add to the command, with {} for the batch")->type_name("WORDS");
  app.add_option("--batch-env", options.batch_env, "a variable of the program's environment to set to the batch")->type_name("NAME");
  app.add_option("--steps", options.steps, "steps to make with each batch")->type_name("N")->capture_default_str();
  app.add_option("--min", options.least, "the smallest batch to try")->type_name("ROWS")->capture_default_str();
  app.add_option("--max", options.most, "the largest batch to try")->type_name("ROWS")->capture_default_str();
  app.add_option("--start", options.start, "the batch to begin with; from there it is doubled or halved")->type_name("ROWS")->capture_default_str();
  app.add_option("--within", options.within, "how close to come to the largest, in percent; 0: to the row")->type_name("PERCENT")->capture_default_str();
  app.add_option("--timeout", options.seconds, "seconds after which a batch is too slow")->type_name("SECONDS")->capture_default_str();
  app.add_option("--json", options.json, "write every trial and the result there; - for stdout, and nothing else then")->type_name("OUT");
  app.add_flag("-q,--quiet", options.quiet, "do not tell of each trial");
  app.add_option("--library", options.library, "libkoila.so, or its folder")->type_name("PATH");
  add_variables(app, options.given, Shown::kNo);
  if (const auto status = parse(app, "koila probe [OPTIONS] -- PROGRAM [ARGUMENTS...]", words, &options.command)) return *status;

  const CheckedVariables checked = check_variables(options.given, koila_environment());
  for (const std::string& error : checked.errors) fail(error);
  if (!checked.errors.empty()) return kWrongUse;
  if (const std::string wrong = wrong_with(options, checked.environment); !wrong.empty()) return fail(wrong);
  const Program program = find_program(options.command, variable("PATH"));
  if (program.status != 0) {
    fail(options.command[0] + (program.status == kNotFound ? ": command not found" : ": cannot be executed"));
    return program.status;
  }
  try {
    return probe(options, checked.environment);
  } catch (const Stop& stop) {
    // The program's last lines stand below, each as it was.
    const std::vector<std::string> lines = split(stop.what(), "\n");
    fail(lines.front());
    for (std::size_t i = 1; i < lines.size(); ++i) say("  " + lines[i]);
    return stop.status;
  }
}

}  // namespace koila::tool
