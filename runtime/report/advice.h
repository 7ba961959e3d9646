// What a person could do next, going by what a run showed.
#ifndef KOILA_RUNTIME_REPORT_ADVICE_H_
#define KOILA_RUNTIME_REPORT_ADVICE_H_

#include <vector>

#include "runtime/report/data.h"

namespace koila {

// Pure. The best first: what adds up without end; what a refusal asks for; what would spare rescues in every step; then what makes the peak
// lower, the most bytes first; then what makes the next run start better. Nothing that the program does already, and nothing that
// would make the peak lower by less than a twentieth. Empty when there is nothing to do.
std::vector<Advice> advice(const ReportData& data);

}  // namespace koila

#endif  // KOILA_RUNTIME_REPORT_ADVICE_H_
