// koila run: sets the preload and the variables, says what it found, and becomes the program.
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include <CLI/App.hpp>

#include "tool/child.h"
#include "tool/command_line.h"
#include "tool/examine.h"
#include "tool/files.h"
#include "tool/variables.h"

namespace koila::tool {
namespace {

constexpr const char* kFooter = R"(
Examples:
  koila run -- python train.py
  koila run --cpu-memory 2G --report stderr,run.json -- python train.py --epochs 3
  koila run --mode track --stacks -- python train.py

The exit status is the program's own. Before it runs: 2 for a wrong option or value, 126 for a program that cannot be executed, 127 for one that is
not found.)";

void say_findings(const Findings& findings, bool all) {
  for (const Finding& finding : findings) {
    if (finding.verdict == Verdict::kOk && all) say(finding.what);
    if (finding.verdict != Verdict::kOk) say("warning: " + finding.what + (finding.todo.empty() ? "" : "; " + finding.todo));
  }
}

void say_what_is_there(const Words& command, const Program& program, const Library& library, const Environment& environment) {
  const TorchFacts torch = program.carrier.empty() ? find_torch(program) : TorchFacts();
  say_findings(examine_program(command, program, library), false);
  if (program.carrier.empty()) say_findings(examine_torch(program, torch, library), true);
  say_findings(examine_library(library), true);
  if (!torch.folder.empty()) say_findings(examine_gpu(find_gpus(), torch), true);
  say_findings(examine_environment(environment), true);
  say_findings(examine_limit(find_gpus(), torch, environment), true);
}

// A script in the place of its interpreter.
std::string about_scripts(const std::string& name) {
  return name.ends_with(".py") && access(name.c_str(), R_OK) == 0 ? "; for a script that is python's: koila run -- python " + name : "";
}

}  // namespace

int run_command(const Words& words) {
  CLI::App app{"Runs a program under koila: sets LD_PRELOAD and koila's variables, says what it found, and becomes the program.", "koila run"};
  app.footer(kFooter);
  Given given;
  std::string asked;
  bool quiet = false;
  app.add_flag("-q,--quiet", quiet, "say nothing before the program runs");
  app.add_option("--library", asked, "libkoila.so, or its folder")->type_name("PATH");
  add_variables(app, given, Shown::kYes);
  Words command;
  if (const auto status = parse(app, "koila run [OPTIONS] [--] PROGRAM [ARGUMENTS...]", words, &command)) return *status;
  if (command.empty()) return fail("which program? koila run [OPTIONS] -- python train.py");

  const CheckedVariables checked = check_variables(given, koila_environment());
  for (const std::string& error : checked.errors) fail(error);
  if (!checked.errors.empty()) return kWrongUse;
  const Library library = find_library(asked);
  if (const std::string problem = library.problem(); !problem.empty()) return fail(problem + "; --library PATH names it");

  const Program program = find_program(command, variable("PATH"));
  if (program.status == kNotFound) {
    say(command[0] + ": command not found" + about_scripts(command[0]));
    return kNotFound;
  }
  for (const auto& [name, value] : checked.environment) setenv(name.c_str(), value.c_str(), 1);
  if (!quiet && program.status == 0) say_what_is_there(command, program, library, whole_environment());
  setenv("LD_PRELOAD", preload_with(library.path, variable("LD_PRELOAD")).c_str(), 1);

  std::vector<char*> arguments = argument_pointers(command);
  execvp(arguments[0], arguments.data());
  const int error = errno;
  say(command[0] + ": " + std::strerror(error) + (error == EACCES ? about_scripts(command[0]) : ""));
  return error == ENOENT ? kNotFound : kCannotExecute;
}

}  // namespace koila::tool
