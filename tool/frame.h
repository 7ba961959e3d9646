// What koila top shows of a moment. A pure function of it.
#ifndef KOILA_TOOL_FRAME_H_
#define KOILA_TOOL_FRAME_H_

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/report/data.h"

namespace koila::tool {

struct Moment {
  ReportData data;
  double steps_per_second = 0;  // lately; 0: cannot be told
  std::int64_t resident_bytes = 0;  // of the process, as the kernel counts; 0: cannot be told
};

// Lines of at most so many columns, and at most so many of them.
std::vector<std::string> frame(const Moment& moment, int columns, int rows, bool colour);

// "[####--|   ]": live, up to the peak, and the whole is the budget, or the peak where there is none.
std::string memory_bar(std::int64_t live, std::int64_t peak, std::int64_t budget, int columns);

// Steps per second over the last `seconds` that the run has samples of; 0 when it has too few.
double recent_rate(const ReportData& data, double seconds);

}  // namespace koila::tool

#endif  // KOILA_TOOL_FRAME_H_
