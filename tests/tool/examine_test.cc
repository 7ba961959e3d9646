#include "tool/examine.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/tool/folder.h"

namespace koila::tool {
namespace {

// The verdict on what a sentence says; fails the test where none says it.
Verdict verdict_of(const Findings& findings, const std::string& part) {
  const auto found = std::find_if(findings.begin(), findings.end(), [&](const Finding& f) { return f.what.find(part) != std::string::npos; });
  if (found != findings.end()) return found->verdict;
  std::string all;
  for (const Finding& finding : findings) all += "\n" + finding.what;
  ADD_FAILURE() << "nothing says " << part << " in:" << all;
  return Verdict::kOk;
}

TorchFacts torch_of(const std::string& version, const std::string& cuda = "") {
  TorchFacts torch;
  torch.asked = true;
  torch.python = "3.11.7";
  torch.folder = "/site-packages/torch";
  torch.version = version;
  torch.cuda = cuda;
  return torch;
}

Library library_for(const std::string& version) {
  Library library;
  library.path = "/lib/libkoila.so";
  library.adapters = {{"/lib/libkoila_torch.so", version}};
  return library;
}

Program python() {
  Program program;
  program.path = program.python = program.binary = "/usr/bin/python3";
  return program;
}

TEST(Examine, AdapterForTheTorchThatRuns) {
  EXPECT_FALSE(has_problem(examine_torch(python(), torch_of("2.13.0+cu130"), library_for("2.13.0+cpu"))));
  const Findings other = examine_torch(python(), torch_of("2.11.0"), library_for("2.13.0+cpu"));
  EXPECT_EQ(verdict_of(other, "torch 2.11.0, and the adapter is for torch 2.13.0+cpu"), Verdict::kProblem);
  EXPECT_EQ(verdict_of(examine_torch(python(), torch_of(""), library_for("2.13.0")), "does not say its version"), Verdict::kProblem);
}

TEST(Examine, OneAdapterOfSeveralOrNone) {
  Library library = library_for("2.12.1");
  library.adapters.push_back({"/lib/torch-2.13.0/libkoila_torch.so", "2.13.0"});
  library.adapters.push_back({"/lib/torch-2.15.0/libkoila_torch.so", "2.15.0"});
  EXPECT_EQ(verdict_of(examine_torch(python(), torch_of("2.13.0+cu130"), library), "which takes the adapter /lib/torch-2.13.0/libkoila_torch.so"), Verdict::kOk);
  const Findings none = examine_torch(python(), torch_of("2.14.0"), library);
  EXPECT_EQ(verdict_of(none, "torch 2.14.0, and the adapters are for torch 2.12.1, 2.13.0 and 2.15.0: koila would stay out"), Verdict::kProblem);
  library.path = "/proc/self/exe";
  EXPECT_EQ(verdict_of(examine_library(library), "whose adapters are for torch 2.12.1, 2.13.0 and 2.15.0"), Verdict::kOk);
}

// What it advises must not bring another project: koila is taken on PyPI.
TEST(Examine, TheCureForAnotherTorchIsKoilasOwnSource) {
  const Findings other = examine_torch(python(), torch_of("2.11.0"), library_for("2.13.0+cpu"));
  EXPECT_NE(other[0].todo.find("-m pip install ."), std::string::npos) << other[0].todo;
  EXPECT_EQ(other[0].todo.find("pip install koila"), std::string::npos) << other[0].todo;
}

TEST(Examine, ACpuWithoutABudgetHasNoLimitToActOn) {
  const TorchFacts torch = torch_of("2.13.0+cpu");
  GpuFacts gpu;
  EXPECT_EQ(verdict_of(examine_limit(gpu, torch, {}), "no budget is set"), Verdict::kWarning);
  EXPECT_NE(examine_limit(gpu, torch, {})[0].todo.find("--cpu-memory auto"), std::string::npos);
  EXPECT_TRUE(examine_limit(gpu, torch, {{"KOILA_CPU_MEMORY", "auto"}}).empty());
  EXPECT_TRUE(examine_limit(gpu, torch, {{"KOILA_MICROBATCH", "8"}}).empty());
  EXPECT_TRUE(examine_limit(gpu, {}, {}).empty()) << "no torch: there is another finding for that";
  gpu.models = {"NVIDIA H100"};
  EXPECT_EQ(examine_limit(gpu, torch, {}).size(), 1U) << "this torch cannot use it";
  EXPECT_TRUE(examine_limit(gpu, torch_of("2.13.0+cu130", "13.0"), {}).empty());
}

// docker is a static program with no LD_PRELOAD to hand on, and sudo has setuid: neither is to be linked or copied.
TEST(Examine, OfWhatCarriesAProgramElsewhereOnlyThatIsSaid) {
  Program docker = python();
  docker.carrier = "docker";
  docker.path = docker.binary = "/proc/self/exe";
  const Findings findings = examine_program({"docker", "run", "image"}, docker, library_for("2.13.0"));
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].what, "docker does not hand LD_PRELOAD on to what it starts");
  EXPECT_NE(findings[0].todo.find("koila run -- PROGRAM"), std::string::npos);
}

TEST(Examine, NoTorch) {
  TorchFacts none;
  none.asked = true;
  none.python = "3.11.7";
  EXPECT_EQ(verdict_of(examine_torch(python(), none, library_for("2.13.0")), "has no torch"), Verdict::kProblem);
  EXPECT_EQ(verdict_of(examine_torch(python(), {}, library_for("2.13.0")), "did not answer"), Verdict::kWarning);
  Program shell;
  shell.path = shell.binary = "/bin/sh";
  TorchFacts of_shell;
  of_shell.asked = true;
  EXPECT_EQ(verdict_of(examine_torch(shell, of_shell, library_for("2.13.0")), "koila waits"), Verdict::kOk);
}

TEST(Examine, Library) {
  EXPECT_EQ(verdict_of(examine_library({}), "was not found"), Verdict::kProblem);
  Library library;
  library.path = "/proc/self/exe";
  EXPECT_EQ(verdict_of(examine_library(library), "no adapter beside it"), Verdict::kProblem);
  library.adapters = {{"/lib/libkoila_torch.so", "2.13.0"}};
  EXPECT_FALSE(has_problem(examine_library(library)));
}

TEST(Examine, ProgramsThatAPreloadDoesNotReach) {
  Program program;
  program.path = program.binary = "/usr/bin/sudo";
  program.carrier = "sudo";
  const Findings carried = examine_program({"sudo", "-E", "python"}, program, {});
  EXPECT_EQ(verdict_of(carried, "sudo does not hand LD_PRELOAD on"), Verdict::kProblem);
  EXPECT_EQ(carried[0].todo, "put koila behind it: sudo ... koila run -- PROGRAM");
  program = {};
  program.status = 127;
  EXPECT_EQ(verdict_of(examine_program({"x"}, program, {}), "x: command not found"), Verdict::kProblem);
  program.path = program.binary = "/bin/ls";
  program.status = 0;
  EXPECT_FALSE(has_problem(examine_program({"x"}, program, {})));
}

TEST(Examine, Gpu) {
  GpuFacts none;
  EXPECT_EQ(verdict_of(examine_gpu(none, torch_of("2.13.0")), "no NVIDIA GPU"), Verdict::kOk);
  EXPECT_EQ(verdict_of(examine_gpu(none, torch_of("2.13.0", "13.0")), "this torch is for CUDA 13.0"), Verdict::kWarning);
  GpuFacts one;
  one.models = {"NVIDIA H100"};
  one.driver = "580.1";
  EXPECT_EQ(verdict_of(examine_gpu(one, torch_of("2.13.0", "13.0")), "libcuda.so.1"), Verdict::kProblem);
  one.has_libcuda = true;
  EXPECT_EQ(verdict_of(examine_gpu(one, torch_of("2.13.0", "13.0")), "1 x NVIDIA H100, driver 580.1"), Verdict::kOk);
  EXPECT_EQ(verdict_of(examine_gpu(one, torch_of("2.13.0")), "built without CUDA"), Verdict::kWarning);
}

TEST(Examine, GpusByTheDriversFiles) {
  Folder folder;
  EXPECT_TRUE(find_gpus(folder.path("")).models.empty());
  folder.file("proc/driver/nvidia/gpus/0000:01:00.0/information", "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   170\n");
  folder.file("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\n");
  folder.file("dev/nvidia0", "");
  folder.file("dev/nvidiactl", "");
  const GpuFacts facts = find_gpus(folder.path(""));
  EXPECT_EQ(facts.models, std::vector<std::string>{"NVIDIA H100 80GB HBM3"});
  EXPECT_EQ(facts.driver, "535.104.05");
  EXPECT_FALSE(facts.has_libcuda);
  folder.file("usr/lib/x86_64-linux-gnu/libcuda.so.1", "");
  EXPECT_TRUE(find_gpus(folder.path("")).has_libcuda);
}

TEST(Examine, Environment) {
  EXPECT_TRUE(examine_environment({{"PATH", "/bin"}}).empty());
  EXPECT_EQ(verdict_of(examine_environment({{"KOILA_CPU_MEMORY", "200"}}), "KOILA_CPU_MEMORY=200"), Verdict::kProblem);
  EXPECT_EQ(verdict_of(examine_environment({{"KOILA_MODE", "off"}}), "koila does nothing"), Verdict::kWarning);
  EXPECT_EQ(verdict_of(examine_environment({{"KOILA_REPORT", "/no/such/folder/a.json"}}), "nothing can be written in /no/such/folder"), Verdict::kWarning);
  EXPECT_EQ(verdict_of(examine_environment({{"LD_PRELOAD", "/no/such.so"}}), "which is not there"), Verdict::kWarning);
  EXPECT_EQ(verdict_of(examine_environment({{"CUDA_INJECTION64_PATH", "/x"}}), "a profiler is attached"), Verdict::kWarning);
  Folder folder;
  const std::string rules = folder.file("my.rules", "nonsense\n");
  EXPECT_EQ(verdict_of(examine_environment({{"KOILA_RULES", rules}}), "my.rules:1"), Verdict::kProblem);
  EXPECT_FALSE(has_problem(examine_environment({{"KOILA_MODE", "rescue"}, {"KOILA_CPU_MEMORY", "1GiB"}})));
}

TEST(Examine, ProcessesWithoutKoila) {
  EXPECT_EQ(verdict_of(examine_process(getpid(), {}), "koila is not loaded in process"), Verdict::kProblem);
  EXPECT_EQ(verdict_of(examine_process(999'999'999, {}), "there is no process"), Verdict::kProblem);
}

}  // namespace
}  // namespace koila::tool
