// Writes the pages of the invented runs into a folder, for tests/report and for looking at them: html_samples FOLDER
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "runtime/report/report.h"
#include "tests/runtime/report/sample_runs.h"

int main(int argc, char** argv) {
  if (argc != 2 || !std::filesystem::is_directory(argv[1])) {
    std::fprintf(stderr, "html_samples: expected a folder that exists, as the one argument\n");
    return 2;
  }
  const std::pair<const char*, koila::ReportData> runs[] = {
      {"rescued", koila::samples::rescued()}, {"plain", koila::samples::plain()},     {"nothing", koila::samples::nothing()}, {"refused", koila::samples::refused()},
      {"cuda", koila::samples::cuda()},       {"hostile", koila::samples::hostile()}, {"full", koila::samples::full()},
  };
  for (const auto& [name, data] : runs) {
    const auto before = std::chrono::steady_clock::now();
    const std::string page = koila::report_html(data);
    const std::string path = std::string(argv[1]) + "/" + name + ".html";
    std::ofstream file(path, std::ios::binary);
    file << page;
    file.close();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - before;
    std::printf("%s: %.1f kB in %.3f s\n", path.c_str(), static_cast<double>(page.size()) / 1e3, took.count());
    if (!file) return 1;
  }
  return 0;
}
