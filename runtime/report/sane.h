// Figures that came from a file.
#ifndef KOILA_RUNTIME_REPORT_SANE_H_
#define KOILA_RUNTIME_REPORT_SANE_H_

#include "runtime/report/data.h"

namespace koila {

// Brings whatever stands in a record or a report within bounds in which it can be added up, multiplied and shown without a thought: figures of 50 bits, times
// of three thousand years, lists as long as koila ever writes them. What koila has written itself stays as it is.
void make_sane(ReportData& data);

}  // namespace koila

#endif  // KOILA_RUNTIME_REPORT_SANE_H_
