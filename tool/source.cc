#include "tool/source.h"

#include <cstdlib>

#include "runtime/record/record.h"
#include "runtime/report/report.h"
#include "tool/files.h"

namespace koila::tool {

Source find_source(const std::string& word) {
  Source source;
  if (is_file(word)) {
    source.path = word;
    return source;
  }
  const bool is_pid = !word.empty() && word.size() < 10 && word.find_first_not_of("0123456789") == std::string::npos;
  if (!is_pid) {
    source.problem = is_folder(word) ? word + " is a folder: want a JSON report, a record, or a process's number" : "no file " + word;
    return source;
  }
  source.path = record_of(std::atoll(word.c_str()));
  if (!source.path.empty()) return source;
  if (is_folder("/proc/" + word)) source.problem = "process " + word + " has no record: it runs without koila, without PyTorch, or with KOILA_RECORD=off";
  else source.problem = "there is no process " + word + ", and none of that number left a record";
  return source;
}

Source read_source(const std::string& word) {
  Source source = find_source(word);
  if (source.path.empty()) return source;
  const std::string start = read_file(source.path, 64).value_or("");
  const std::size_t first = start.find_first_not_of(" \t\r\n");
  if (first != std::string::npos && start[first] == '{') {
    ParsedReport parsed = parse_report_json(read_file(source.path, kReportBytesAtMost + 1).value_or(""));
    source.data = std::move(parsed.data);
    if (!parsed.problem.empty()) source.problem = source.path + ": " + parsed.problem;
  } else {
    ReadRecord record = read_record(source.path);
    source.data = std::move(record.data);
    source.problem = record.problem;
  }
  return source;
}

}  // namespace koila::tool
