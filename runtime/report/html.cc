#include "runtime/report/report.h"

namespace koila {

std::string report_html(const ReportData& data) { return "<!doctype html><pre>" + report_text(data) + "</pre>\n"; }

}  // namespace koila
