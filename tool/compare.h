// Runs side by side. Pure functions.
#ifndef KOILA_TOOL_COMPARE_H_
#define KOILA_TOOL_COMPARE_H_

#include <optional>
#include <string>
#include <vector>

#include "runtime/report/data.h"

namespace koila::tool {

struct NamedRun {
  std::string name;
  ReportData data;
};

enum class Unit { kBytes, kCount, kSeconds };

// A figure of each run; nothing where a run has none.
struct CompareRow {
  std::string name;  // "cpu: peak"
  Unit unit = Unit::kCount;
  std::vector<std::optional<double>> values;

  // Of run `i` against the first, in percent; nothing where there is nothing to divide by.
  std::optional<double> percent(std::size_t i) const;
};

// Something that one of two runs has, or has more of.
struct Change {
  std::string what;  // "cpu: activations of aten::relu (train.py:31)"
  std::int64_t before = 0;
  std::int64_t after = 0;
};

struct Comparison {
  std::vector<std::string> names;
  std::vector<CompareRow> rows;
  std::vector<Change> holders;       // of what held the peak, by how much it changed; against the last run
  std::vector<Change> full_batch;    // operators at full batch, that only one of first and last run has
  std::vector<std::string> differs;  // "mode: track, rescue": what makes the runs hard to compare, or is the point
  std::vector<std::vector<std::string>> refusals;  // of each run, as the report tells them
};

Comparison compare(const std::vector<NamedRun>& runs);

std::string compare_text(const Comparison& comparison, bool colour);
std::string compare_json(const Comparison& comparison);
std::string compare_csv(const Comparison& comparison);

}  // namespace koila::tool

#endif  // KOILA_TOOL_COMPARE_H_
