// The report: where the memory went, what was rescued or refused, and what to try next. Pure functions over a snapshot, and a writer.
//
// The JSON has "schema": 1; bytes are integers, rows too, seconds are numbers. Fields are only ever added within a schema.
#ifndef KOILA_RUNTIME_REPORT_H_
#define KOILA_RUNTIME_REPORT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/config.h"
#include "runtime/events.h"

namespace koila {

struct DeviceFigures {
  int device = KOILA_CPU;
  std::int64_t live_bytes = 0;
  std::int64_t peak_bytes = 0;
  std::int64_t budget_bytes = 0;
  std::int64_t allocations = 0;
  std::int64_t frees = 0;
};

struct ReportData {
  int mode = KOILA_MODE_RESCUE;
  std::int64_t microbatch = 0;  // forced rows; 0: none
  std::int64_t pid = 0;
  std::string host;
  std::string command;  // of the process, as far as it is known
  std::string torch_version;
  std::vector<DeviceFigures> devices;  // those with allocations, or a budget
  EventList events;

  // Whether there is more to tell than that the process ran: a step, an out-of-memory, or a budget.
  bool is_worth_a_line() const;
};

// "cpu", "cuda:0".
std::string device_name(int device);
const char* phase_name(int phase);
const char* mode_name(int mode);

// "rescued: out of memory in aten::linear (forward) on cpu: wanted 32.0 MiB ...": the line of the log and of the text report.
std::string describe(const OomEvent& event);

std::string report_text(const ReportData& data);
std::string report_json(const ReportData& data);

// What a person could do next, one sentence; "" when there is nothing to do.
std::string next_thing_to_try(const ReportData& data);

// Writes whole or not at all (a file beside it that is then renamed). Answers with what went wrong, "" when nothing.
std::string write_report(const ReportTarget& target, const ReportData& data);

}  // namespace koila

#endif  // KOILA_RUNTIME_REPORT_H_
