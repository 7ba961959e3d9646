// The report: where the memory went, what was rescued or refused, and what to try next. Pure functions over a snapshot, and a writer.
//
// Each form is described in docs/report.md, the JSON in docs/report.schema.json too.
#ifndef KOILA_RUNTIME_REPORT_REPORT_H_
#define KOILA_RUNTIME_REPORT_REPORT_H_

#include <optional>
#include <string>

#include "runtime/config.h"
#include "runtime/report/data.h"

namespace koila {

// "cpu", "cuda:0".
std::string device_name(int device);
const char* phase_name(int phase);
const char* rung_name(int rung);  // "retry", "micro-batches", "offload"; "refuse" for 0
const char* mode_name(int mode);
const char* category_name(int category);  // "parameters", "optimizer state"
const char* category_key(int category);   // the same as a name in files: "optimizer_state"
const char* end_name(RunEnd end);         // "exited", "running", "cut off"

// "rescued: out of memory in aten::linear (forward) on cpu: wanted 32.0 MiB ...": the line of the log and of the text report.
std::string describe(const OomEvent& event);

constexpr int kTextColumns = 120;  // where no terminal says how wide it is
constexpr int kTextLines = 24;     // a screen: what is told last gives way

struct TextStyle {
  bool colour = false;
  int columns = 0;  // longer lines are wrapped; 0: kTextColumns
};

// For what goes to a file descriptor: colours and a width of its own where it is a terminal. NO_COLOR and TERM=dumb are heeded.
TextStyle style_of(int descriptor);

// A dozen lines, at most kTextLines, each of which begins with "koila: ". Only refusals are never cut short, nor left out if they are the first of all.
std::string report_text(const ReportData& data, const TextStyle& style = {});
// The same with every figure: counts, passes, each out-of-memory.
std::string report_long_text(const ReportData& data, const TextStyle& style = {});

// All but `blocks` and `trace`.
std::string report_json(const ReportData& data);
// One page that needs nothing else, neither files nor a network: below 5 MB for the bounds of data.h.
std::string report_html(const ReportData& data);

// A report that was read back: what is wrong with it is said in one line, with the place.
struct ParsedReport {
  std::optional<ReportData> data;
  std::string problem;  // "" when there is data
};

constexpr std::size_t kReportBytesAtMost = 16 << 20;

// Reads what report_json wrote, be it by an older koila of the same schema. Never throws. What is no report may be of any size and depth.
ParsedReport parse_report_json(const std::string& text);

// A time series: a line of names, then a row for each sample of each device.
std::string report_csv(const ReportData& data);

// A snapshot as torch.cuda.memory._snapshot() makes it, pickled: for torch.cuda._memory_viz and PyTorch's viewer.
std::string report_pickle(const ReportData& data);

// The first advice there is (runtime/report/advice.h), one sentence; "" when there is nothing to do.
std::string next_thing_to_try(const ReportData& data);

// Writes whole or not at all (a file beside it that is then renamed). Answers with what went wrong, "" when nothing.
std::string write_report(const ReportTarget& target, const ReportData& data);

}  // namespace koila

#endif  // KOILA_RUNTIME_REPORT_REPORT_H_
