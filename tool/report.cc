// koila report: a run's report from a JSON file, a record or a process, in any form; or several runs side by side.
#include <unistd.h>

#include <cstdio>
#include <ctime>
#include <set>

#include <CLI/App.hpp>

#include "runtime/printable.h"
#include "runtime/record/record.h"
#include "runtime/report/phrases.h"
#include "runtime/report/report.h"
#include "tool/command_line.h"
#include "tool/compare.h"
#include "tool/files.h"
#include "tool/screen.h"
#include "tool/source.h"

namespace koila::tool {
namespace {

constexpr const char* kFooter = R"(
Each RUN is a JSON report (KOILA_REPORT=run.json), a record (KOILA_RECORD=run.koila; of a running, ended, killed or crashed process), or the number
of a process. Without one, the records on this machine are listed.

Examples:
  koila report run.json
  koila report 4711 --html run.html
  koila report before.json after.json

OUT may be - for stdout. The exit status is 1 when a run cannot be read, 2 for a wrong command line.)";

int list_records() {
  const std::vector<FoundRecord> records = find_records();
  if (const std::string problem = record_folder_problem(); !problem.empty()) say(problem + "; its records are not looked at");
  if (records.empty()) {
    std::printf("no records in %s: no process runs under koila, and none was cut off\n", printable(record_folder()).c_str());
    return kDone;
  }
  for (const FoundRecord& record : records) {
    const ReadRecord read = read_record(record.path);
    char when[32] = "";
    std::string what = read.problem;
    if (read.data) {
      const std::time_t started = static_cast<std::time_t>(read.data->started);
      std::tm local = {};
      if (localtime_r(&started, &local) != nullptr) std::strftime(when, sizeof when, "%Y-%m-%d %H:%M:%S", &local);
      what = plural(read.data->events.steps, "step") + ", " + plural(read.data->events.rescues, "rescue") + "  " + read.data->command;
    }
    std::printf("%-8lld %-8s %-20s %s\n         %s\n", static_cast<long long>(record.pid), record.alive ? "running" : "cut off", when, printable(what).c_str(),
                printable(record.path).c_str());
  }
  return kDone;
}

struct Outputs {
  std::string html, json, csv, pickle;
  bool any() const { return !html.empty() || !json.empty() || !csv.empty() || !pickle.empty(); }
};

int write_all(const std::vector<std::pair<std::string, std::string>>& texts) {
  int status = kDone;
  for (const auto& [path, text] : texts) {
    const std::string problem = write_whole(path, text);
    if (problem.empty()) continue;
    fail(problem);
    status = kFoundProblem;
  }
  return status;
}

int report_one(const ReportData& data, const Outputs& out, bool all) {
  std::vector<std::pair<std::string, std::string>> texts;
  if (!out.html.empty()) texts.emplace_back(out.html, report_html(data));
  if (!out.json.empty()) texts.emplace_back(out.json, report_json(data));
  if (!out.csv.empty()) texts.emplace_back(out.csv, report_csv(data));
  if (!out.pickle.empty()) texts.emplace_back(out.pickle, report_pickle(data));
  if (texts.empty()) texts.emplace_back("-", (all ? report_long_text : report_text)(data, style_of(STDOUT_FILENO)));
  return write_all(texts);
}

int report_several(const std::vector<NamedRun>& runs, const Outputs& out) {
  const Comparison comparison = compare(runs);
  std::vector<std::pair<std::string, std::string>> texts;
  if (!out.json.empty()) texts.emplace_back(out.json, compare_json(comparison));
  if (!out.csv.empty()) texts.emplace_back(out.csv, compare_csv(comparison));
  if (texts.empty()) texts.emplace_back("-", compare_text(comparison, wants_colour(STDOUT_FILENO)));
  return write_all(texts);
}

}  // namespace

int report_command(const Words& words) {
  CLI::App app{"Tells where the memory of a run went, or what differs between runs.", "koila report"};
  app.footer(kFooter);
  Words named;
  Outputs out;
  bool all = false;
  app.add_flag("-v,--verbose", all, "every figure in the text: allocations, passes, each out-of-memory");
  app.add_option("RUN", named, "JSON reports, records or process numbers")->type_name("");
  app.add_option("--html", out.html, "write a page for the browser")->type_name("OUT");
  app.add_option("--json", out.json, "write JSON (docs/report.md)")->type_name("OUT");
  app.add_option("--csv", out.csv, "write a table: the time series of one run, or the figures of several")->type_name("OUT");
  app.add_option("--pickle", out.pickle, "write a snapshot for PyTorch's memory viewer")->type_name("OUT");
  if (const auto status = parse(app, "koila report [OPTIONS] [RUN...]", words)) return *status;
  if (named.empty()) return out.any() ? fail("which run? koila report RUN --html OUT") : list_records();
  if (named.size() > 1 && !(out.html + out.pickle).empty()) return fail("--html and --pickle are of one run; several are compared as text, --json or --csv");

  // By the file's name, unless two have the same.
  std::set<std::string> short_names;
  for (const std::string& word : named) short_names.insert(name_of(word));
  std::vector<NamedRun> runs;
  for (const std::string& word : named) {
    Source source = read_source(word);
    if (!source.problem.empty()) say(source.problem);
    if (!source.data) return kFoundProblem;
    runs.push_back({short_names.size() == named.size() ? name_of(word) : word, std::move(*source.data)});
  }
  return runs.size() == 1 ? report_one(runs[0].data, out, all) : report_several(runs, out);
}

}  // namespace koila::tool
