// Writes the samples in every form into a folder, for the tests in Python.
#include <cstdio>

#include "samples.h"

int main(int argc, char** argv) {
  using koila::ReportTarget;
  if (argc != 2) return 2;
  const std::pair<const char*, koila::ReportData> samples[] = {{"empty", koila::ReportData{}},
                                                               {"full", koila::full_report()},
                                                               {"longest", koila::longest_report()},
                                                               {"traced", koila::traced_report()},
                                                               {"longest_trace", koila::longest_trace()}};
  for (const auto& [name, data] : samples) {
    for (const char* suffix : {".txt", ".json", ".csv", ".pickle"}) {
      const std::string problem = koila::write_report(*koila::parse_report_target(argv[1] + std::string("/") + name + suffix), data);
      if (!problem.empty()) return std::fprintf(stderr, "%s\n", problem.c_str()), 1;
    }
  }
  return 0;
}
