// The report: where the memory went, what was rescued or refused, and what to try next. Pure functions over a snapshot, and a writer.
//
// The JSON has "schema": 1; bytes are integers, rows too, seconds are numbers. Fields are only ever added within a schema.
#ifndef KOILA_RUNTIME_REPORT_REPORT_H_
#define KOILA_RUNTIME_REPORT_REPORT_H_

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

// "rescued: out of memory in aten::linear (forward) on cpu: wanted 32.0 MiB ...": the line of the log and of the text report.
std::string describe(const OomEvent& event);

std::string report_text(const ReportData& data);
std::string report_json(const ReportData& data);
// One page that needs nothing else, neither files nor a network: below 5 MB for the bounds of data.h.
std::string report_html(const ReportData& data);

// What a person could do next, one sentence; "" when there is nothing to do.
std::string next_thing_to_try(const ReportData& data);

// Writes whole or not at all (a file beside it that is then renamed). Answers with what went wrong, "" when nothing.
std::string write_report(const ReportTarget& target, const ReportData& data);

}  // namespace koila

#endif  // KOILA_RUNTIME_REPORT_REPORT_H_
