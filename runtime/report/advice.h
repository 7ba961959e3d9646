// What a person could do next, going by what a run showed.
#ifndef KOILA_RUNTIME_REPORT_ADVICE_H_
#define KOILA_RUNTIME_REPORT_ADVICE_H_

#include <vector>

#include "runtime/report/data.h"

namespace koila {

// Pure. The best first. Empty when there is nothing to do.
std::vector<Advice> advice(const ReportData& data);

}  // namespace koila

#endif  // KOILA_RUNTIME_REPORT_ADVICE_H_
