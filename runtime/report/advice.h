// What a person could do next about the memory of a run.
#ifndef KOILA_RUNTIME_REPORT_ADVICE_H_
#define KOILA_RUNTIME_REPORT_ADVICE_H_

#include <vector>

#include "runtime/report/data.h"

namespace koila {

// The best first.
std::vector<Advice> advice(const ReportData& data);

}  // namespace koila

#endif  // KOILA_RUNTIME_REPORT_ADVICE_H_
