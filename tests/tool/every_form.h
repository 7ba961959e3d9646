// What has to hold for whatever was read from a file.
#ifndef KOILA_TESTS_TOOL_EVERY_FORM_H_
#define KOILA_TESTS_TOOL_EVERY_FORM_H_

#include <string>

#include "runtime/report/report.h"
#include "tool/compare.h"
#include "tool/frame.h"

namespace koila::tool {

// Whether a terminal would take it for text.
inline bool is_plain(const std::string& text) {
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    if ((c < 0x20 && c != '\n') || c == 0x7f) return false;
    if (c == 0xc2 && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xa0) return false;
    if (c < 0xa0 && c >= 0x80 && (i == 0 || static_cast<unsigned char>(text[i - 1]) < 0x80)) return false;
  }
  return true;
}

// Makes every form of a report, and compares it with others. "" when all is well, else what is not.
inline std::string problem_of_forms(const ReportData& data, const std::string& name) {
  if (!is_plain(report_text(data))) return "the text is not plain";
  const std::string json = report_json(data);
  if (!is_plain(json)) return "the JSON is not plain";
  if (const ParsedReport parsed = parse_report_json(json); !parsed.data) return "koila does not read its own JSON: " + parsed.problem;
  const std::string html = report_html(data);
  // The page's own scripts and styles, and its data: whatever that holds, it ends none of them and begins none.
  const std::string empty = report_html({});
  const auto count = [](const std::string& text, const char* what) {
    std::size_t n = 0;
    for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++n;
    return n;
  };
  for (const char* what : {"<", "</script", "<!--"})
    if (count(html, what) != count(empty, what)) return std::string("the page has another number of ") + what;
  if (report_csv(data).empty() || report_pickle(data).empty()) return "a form is empty";
  const Comparison comparison = compare({{name, data}, {"=1+2", data}, {"other", ReportData()}});
  if (!is_plain(compare_text(comparison, false))) return "the comparison's text is not plain";
  if (!is_plain(compare_json(comparison))) return "the comparison's JSON is not plain";
  const std::string csv = compare_csv(comparison);
  if (!is_plain(csv)) return "the comparison's table is not plain";
  for (const char* formula : {",\"=", ",\"+", ",\"-", ",\"@", "\n\"=", "\n\"+", "\n\"-", "\n\"@"})
    if (csv.find(formula) != std::string::npos) return "a cell of the comparison's table is a formula";
  Moment moment;
  moment.data = data;
  for (const std::string& line : frame(moment, 80, 1000, false))
    if (!is_plain(line)) return "a line of koila top is not plain";
  return "";
}

}  // namespace koila::tool

#endif  // KOILA_TESTS_TOOL_EVERY_FORM_H_
