// Runs as they are named on the command line: a JSON report, a record, or a process.
#ifndef KOILA_TOOL_SOURCE_H_
#define KOILA_TOOL_SOURCE_H_

#include <optional>
#include <string>

#include "runtime/report/data.h"

namespace koila::tool {

struct Source {
  std::optional<ReportData> data;
  std::string path;     // of the file, "" when none was found
  std::string problem;  // what is wrong; with data: what of it is left out
};

// Where a run is to be read from; a problem when there is no such file or process. A number is a process, unless a file is named so.
Source find_source(const std::string& word);

// The same, read.
Source read_source(const std::string& word);

}  // namespace koila::tool

#endif  // KOILA_TOOL_SOURCE_H_
