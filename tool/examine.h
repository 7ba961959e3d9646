// Why koila would not work for a program, or does not in a running one: what `koila doctor` says, and `koila run` in short.
#ifndef KOILA_TOOL_EXAMINE_H_
#define KOILA_TOOL_EXAMINE_H_

#include <string>
#include <utility>
#include <vector>

#include "runtime/config.h"
#include "tool/gpu.h"
#include "tool/library.h"
#include "tool/program.h"
#include "tool/python.h"

namespace koila::tool {

enum class Verdict { kOk, kWarning, kProblem };

struct Finding {
  Verdict verdict = Verdict::kOk;
  std::string what;  // one sentence without its full stop
  std::string todo;  // "" where there is nothing to do
};
using Findings = std::vector<Finding>;

bool has_problem(const Findings& findings);

// The command itself: that it can be run, and that a preload reaches what runs in the end.
Findings examine_program(const std::vector<std::string>& command, const Program& program, const Library& library);

// libkoila.so, and whether its adapter is for the program's torch.
Findings examine_library(const Library& library);
Findings examine_torch(const Program& program, const TorchFacts& torch, const Library& library);

Findings examine_gpu(const GpuFacts& gpu, const TorchFacts& torch);

// Whether there is a limit for koila to act on: the memory of a GPU, or a budget.
Findings examine_limit(const GpuFacts& gpu, const TorchFacts& torch, const Environment& environment);

// What else is in the environment: other preloads, profilers, koila's own variables and what they name.
Findings examine_environment(const Environment& environment);

// A process that runs.
Findings examine_process(int pid, const Library& library);

// This process's environment, all of it.
Environment whole_environment();
// "" when it is not set.
std::string value_in(const Environment& environment, const std::string& name);

}  // namespace koila::tool

#endif  // KOILA_TOOL_EXAMINE_H_
