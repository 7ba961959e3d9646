// Lines of text for a terminal: wrapped, coloured, and cut to a screen by how much each matters.
#ifndef KOILA_RUNTIME_REPORT_PAGE_H_
#define KOILA_RUNTIME_REPORT_PAGE_H_

#include <string>
#include <vector>

#include "runtime/report/report.h"

namespace koila {

enum class Tone { kPlain, kTitle, kGood, kBad, kNote };

class Page {
 public:
  // `rank`: what a page that is too long loses first, the highest number first, and of like ones the last. 0: never.
  void add(const std::string& line, int rank, Tone tone = Tone::kPlain, int indent = 1);

  std::string text(const TextStyle& style) const;

 private:
  struct Entry {
    std::string line;
    int rank;
    Tone tone;
    int indent;
  };
  std::vector<Entry> entries_;
};

}  // namespace koila

#endif  // KOILA_RUNTIME_REPORT_PAGE_H_
