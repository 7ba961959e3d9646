// koila doctor: why would it not work here.
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include <CLI/App.hpp>
#include <nlohmann/json.hpp>

#include "runtime/printable.h"
#include "tool/command_line.h"
#include "tool/examine.h"
#include "tool/files.h"
#include "tool/variables.h"

namespace koila::tool {
namespace {

constexpr const char* kFooter = R"(
Examples:
  koila doctor -- python train.py     would koila work for this program
  koila doctor 4711                   does it, in that process
  koila doctor                        would it for the python in PATH

Nothing of the program is run but, for a moment, its Python, which is asked for its torch. The exit status is 1 when there is a problem, 2 for a
wrong command line.)";

const char* word_of(Verdict verdict) { return verdict == Verdict::kOk ? "ok" : verdict == Verdict::kWarning ? "warning" : "problem"; }

void print_json(const Findings& findings) {
  nlohmann::ordered_json json = {{"schema", 1}, {"ok", !has_problem(findings)}, {"findings", nlohmann::ordered_json::array()}};
  for (const Finding& finding : findings) json["findings"].push_back({{"verdict", word_of(finding.verdict)}, {"what", finding.what}, {"do", finding.todo}});
  std::printf("%s\n", json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace).c_str());
}

void print(const Findings& findings, bool colour) {
  for (const Finding& finding : findings) {
    const char* word = word_of(finding.verdict);
    const char* code = finding.verdict == Verdict::kOk ? "\033[32m" : finding.verdict == Verdict::kWarning ? "\033[33m" : "\033[31m";
    std::printf("%s%-8s%s %s\n", colour ? code : "", word, colour ? "\033[0m" : "", printable(finding.what).c_str());
    if (!finding.todo.empty()) std::printf("         %s\n", printable(finding.todo).c_str());
  }
}

void add(Findings& findings, const Findings& more) { findings.insert(findings.end(), more.begin(), more.end()); }

std::string summary(const Findings& findings) {
  const auto count = [&](Verdict verdict) { return std::count_if(findings.begin(), findings.end(), [&](const Finding& f) { return f.verdict == verdict; }); };
  const auto problems = count(Verdict::kProblem);
  const auto warnings = count(Verdict::kWarning);
  if (problems == 0 && warnings == 0) return "no problem found";
  return std::to_string(problems) + (problems == 1 ? " problem, " : " problems, ") + std::to_string(warnings) + (warnings == 1 ? " warning" : " warnings");
}

}  // namespace

int doctor_command(const Words& words) {
  CLI::App app{"Says whether koila works for a program, or in a running process, and what to do where it does not.", "koila doctor"};
  app.footer(kFooter);
  std::string asked;
  Given given;
  app.add_option("--library", asked, "libkoila.so, or its folder")->type_name("PATH");
  bool json = false;
  app.add_flag("--json", json, "print the findings as JSON");
  add_variables(app, given, Shown::kNo);
  Words command;
  if (const auto status = parse(app, "koila doctor [OPTIONS] [PID | -- PROGRAM [ARGUMENTS...]]", words, &command)) return *status;

  const Library library = find_library(asked);
  Findings findings;
  const bool is_pid = command.size() == 1 && command[0].size() <= 9 && command[0].find_first_not_of("0123456789") == std::string::npos;
  if (is_pid) {
    findings = examine_process(std::stoi(command[0]), library);
  } else {
    if (command.empty()) command = {find_program({"python"}, variable("PATH")).status == 0 ? "python" : "python3"};
    const Program program = find_program(command, variable("PATH"));
    const TorchFacts torch = find_torch(program);
    Environment environment = whole_environment();
    for (const auto& [name, value] : given) {
      std::erase_if(environment, [&](const auto& entry) { return entry.first == name; });
      environment.emplace_back(name, value);
    }
    add(findings, examine_program(command, program, library));
    add(findings, examine_library(library));
    if (program.status == 0) add(findings, examine_torch(program, torch, library));
    add(findings, examine_gpu(find_gpus(), torch));
    add(findings, examine_environment(environment));
    add(findings, examine_limit(find_gpus(), torch, environment));
  }
  if (json) {
    print_json(findings);
  } else {
    print(findings, wants_colour(STDOUT_FILENO));
    std::printf("%s\n", summary(findings).c_str());
  }
  return has_problem(findings) ? kFoundProblem : kDone;
}

}  // namespace koila::tool
