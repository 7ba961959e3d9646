#include "tool/examine.h"

#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>

#include "runtime/record/record.h"
#include "runtime/rule_text.h"
#include "runtime/surroundings.h"
#include "runtime/torch_release.h"
#include "tool/elf_file.h"
#include "tool/files.h"

extern char** environ;

namespace koila::tool {
namespace {

// An error text that every copy of CUDA's runtime holds, be its symbols stripped or not.
constexpr const char* kCudartText = "CUDA driver version is insufficient for CUDA runtime version";

Finding ok(const std::string& what) { return {Verdict::kOk, what, ""}; }
Finding warning(const std::string& what, const std::string& todo) { return {Verdict::kWarning, what, todo}; }
Finding problem(const std::string& what, const std::string& todo) { return {Verdict::kProblem, what, todo}; }

// The loader takes no preload for a program that gains rights when it starts.
bool gains_rights(const std::string& path) {
  struct stat status;
  if (stat(path.c_str(), &status) != 0) return false;
  if ((status.st_mode & S_ISUID) != 0 && status.st_uid != getuid()) return true;
  if ((status.st_mode & S_ISGID) != 0 && (status.st_mode & S_IXGRP) != 0 && status.st_gid != getgid()) return true;
  return getuid() != 0 && getxattr(path.c_str(), "security.capability", nullptr, 0) > 0;
}

bool has_static_cudart(const std::string& path, const ElfFacts& facts) {
  const bool dynamic = std::any_of(facts.needed.begin(), facts.needed.end(), [](const std::string& n) { return n.starts_with("libcudart"); });
  return !dynamic && (defines_any(path, {"cudaMalloc"}, true) || contains(path, kCudartText));
}

std::string in_front(const std::vector<std::string>& command, const Program& program) {
  const auto at = std::find_if(command.begin(), command.end(), [&](const std::string& word) { return name_of(word) == program.carrier; });
  const auto from = at == command.end() ? command.begin() : at;
  return "put koila behind it: " + shell_words({from, std::min(command.end(), from + 1)}) + " ... koila run -- PROGRAM";
}

void examine_binary(const std::string& path, const Library& library, Findings& findings) {
  const auto facts = read_elf(path);
  if (!facts) return;
  const auto own = library.path.empty() ? std::nullopt : read_elf(library.path);
  if (own && (facts->bits != own->bits || facts->machine != own->machine)) {
    findings.push_back(problem(path + " is a program of " + std::to_string(facts->bits) + " bits for " +
                                   (facts->machine == own->machine ? "the same" : "another") + " machine; libkoila.so is of " + std::to_string(own->bits),
                               "run it with a " + std::to_string(own->bits) + "-bit Python or program, or build koila for it"));
    return;
  }
  if (!facts->is_dynamic || facts->loader.empty()) {
    findings.push_back(problem(path + " is statically linked: no loader runs that could preload koila", "link it dynamically"));
    return;
  }
  if (facts->loader.find("ld-musl") != std::string::npos)
    findings.push_back(problem(path + " runs on musl (" + facts->loader + "); libkoila.so needs glibc", "use an image with glibc, such as Debian's"));
  if (gains_rights(path))
    findings.push_back(problem(path + " gains rights when it starts (setuid, setgid or capabilities), and so the loader takes no preload",
                               "run a copy of it without them"));
  if (has_static_cudart(path, *facts))
    findings.push_back(problem(path + " has CUDA's runtime linked in statically: what it gets from CUDA is not seen, and no budget holds for it",
                               "link it with -cudart shared"));
}

std::string whose_adapters(const std::vector<Adapter>& adapters) {
  return (adapters.size() > 1 ? "adapters are for torch " : "adapter is for torch ") + releases_of(adapters);
}

Finding mismatch(const std::string& running, const std::vector<Adapter>& adapters) {
  return problem("the program runs torch " + running + ", and the " + whose_adapters(adapters) + ": koila would stay out",
                 "build koila for it, in koila's source folder: KOILA_PYTHON=<its python> scripts/setup, or <its python> -m pip install .");
}

std::vector<std::string> mapped_files(int pid) {
  std::vector<std::string> files;
  for (const std::string& line : split(read_file("/proc/" + std::to_string(pid) + "/maps").value_or(""), "\n")) {
    const std::size_t at = line.find('/');
    if (at == std::string::npos) continue;
    const std::string path = line.substr(at);
    if (files.empty() || files.back() != path) files.push_back(path);
  }
  std::sort(files.begin(), files.end());
  files.erase(std::unique(files.begin(), files.end()), files.end());
  return files;
}

std::string named(const std::vector<std::string>& files, const std::string& name) {
  const auto found = std::find_if(files.begin(), files.end(), [&](const std::string& file) {
    const std::string own = name_of(file);
    return own == name || own == name + " (deleted)";
  });
  return found == files.end() ? "" : *found;
}

Environment environment_of(int pid) {
  Environment environment;
  for (const std::string& entry : split(read_file("/proc/" + std::to_string(pid) + "/environ").value_or(""), std::string_view("\0", 1)))
    if (const std::size_t equals = entry.find('='); equals != std::string::npos) environment.emplace_back(entry.substr(0, equals), entry.substr(equals + 1));
  return environment;
}

Environment koila_only(const Environment& environment) {
  Environment own;
  for (const auto& [name, value] : environment)
    if (name.starts_with("KOILA_")) own.emplace_back(name, value);
  return own;
}

void examine_folder_of(const std::string& name, const std::string& path, Findings& findings) {
  const std::string folder = folder_of(absolute_path(path));
  if (access(folder.c_str(), W_OK | X_OK) != 0)
    findings.push_back(warning(name + "=" + path + ": nothing can be written in " + folder, "name a folder that exists and can be written"));
}

void examine_variables(const Environment& environment, Findings& findings) {
  const Environment own = koila_only(environment);
  const ParsedConfig parsed = parse_config(own);
  for (const ConfigProblem& p : parsed.problems)
    if (p.level >= KOILA_LOG_WARN) findings.push_back(problem(p.text, "correct it, or unset it"));
  const Config& config = parsed.config;
  if (config.mode == KOILA_MODE_OFF) findings.push_back(warning("KOILA_MODE=off: koila does nothing", "unset it, or KOILA_MODE=rescue"));
  if (config.mode == KOILA_MODE_TRACK) findings.push_back(warning("KOILA_MODE=track: koila counts, and rescues nothing", "KOILA_MODE=rescue"));
  if (config.ladder == 0) findings.push_back(warning("KOILA_LADDER=3: every out-of-memory is refused", "KOILA_LADDER=0,1,2"));
  if (config.inject) findings.push_back(warning("KOILA_INJECT_OOM makes allocations fail that would fit", "unset it"));
  if (!config.spill_dir.empty() && (!is_folder(config.spill_dir) || access(config.spill_dir.c_str(), W_OK | X_OK) != 0))
    findings.push_back(warning("KOILA_SPILL_DIR=" + config.spill_dir + " is not a folder that can be written", "name one that is"));
  if (!config.rules.empty())
    for (const std::string& error : read_rules(config.rules).errors) findings.push_back(problem(error, "correct the rule (docs/rules.md)"));
  for (const ReportTarget& target : config.reports)
    if (!target.path.empty()) examine_folder_of("KOILA_REPORT", target.path, findings);
  if (!config.log_file.empty()) examine_folder_of("KOILA_LOG_FILE", config.log_file, findings);
  if (!config.cache.empty()) examine_folder_of("KOILA_CACHE", config.cache, findings);
  if (!config.record.empty()) examine_folder_of("KOILA_RECORD", config.record, findings);
  if (!own.empty() && !has_problem(findings)) {
    std::vector<std::string> words;
    for (const auto& [name, value] : own) words.push_back(name + "=" + value);
    findings.push_back(ok(join(words, " ")));
  }
}

}  // namespace

bool has_problem(const Findings& findings) {
  return std::any_of(findings.begin(), findings.end(), [](const Finding& f) { return f.verdict == Verdict::kProblem; });
}

Environment whole_environment() {
  Environment environment;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string text = *entry;
    if (const std::size_t equals = text.find('='); equals != std::string::npos) environment.emplace_back(text.substr(0, equals), text.substr(equals + 1));
  }
  return environment;
}

std::string value_in(const Environment& environment, const std::string& name) {
  const auto found = std::find_if(environment.begin(), environment.end(), [&](const auto& entry) { return entry.first == name; });
  return found == environment.end() ? "" : found->second;
}

Findings examine_program(const std::vector<std::string>& command, const Program& program, const Library& library) {
  Findings findings;
  if (program.status == 127) return {problem(command[0] + ": command not found", "check its name, and PATH")};
  if (program.status == 126) return {problem(program.path + " cannot be executed", "chmod +x it, or name its interpreter: python " + program.path)};
  // What such a program is itself does not matter: koila belongs behind it.
  if (!program.carrier.empty()) return {problem(program.carrier + " does not hand LD_PRELOAD on to what it starts", in_front(command, program))};
  if (!program.binary.empty()) examine_binary(program.binary, library, findings);
  if (program.binary != program.path && gains_rights(program.path))
    findings.push_back(problem(program.path + " gains rights when it starts", "run a copy of it without them"));
  if (findings.empty()) findings.push_back(ok(program.path + (program.binary != program.path && !program.binary.empty() ? ", run by " + program.binary : "")));
  return findings;
}

Findings examine_library(const Library& library) {
  if (const std::string bad = library.problem(); !bad.empty())
    return {problem(bad, library.path.empty() ? "--library PATH, or build it with scripts/setup" : "put koila somewhere else, or --library PATH")};
  if (library.adapters.empty())
    return {problem(library.path + " has no adapter beside it (libkoila_torch.so and libkoila_torch.version)", "build it with scripts/setup")};
  return {ok(library.path + ", whose " + whose_adapters(library.adapters))};
}

Findings examine_torch(const Program& program, const TorchFacts& torch, const Library& library) {
  Findings findings;
  const std::string who = torch.python.empty() ? name_of(program.path) : "Python " + torch.python;
  if (!torch.asked) {
    if (!program.python.empty())
      findings.push_back(warning(program.python + " did not answer when it was asked for its torch", "see whether it runs at all: " + program.python + " -V"));
    else if (program.status == 0) findings.push_back(ok(name_of(program.path) + ": koila waits for a program with PyTorch that it starts"));
    return findings;
  }
  if (torch.folder.empty()) {
    if (!program.python.empty()) findings.push_back(problem(who + " (" + program.python + ") has no torch", "use the Python that your program uses"));
    else findings.push_back(ok(who + " is not linked with libtorch: koila waits for a program with PyTorch that it starts"));
    return findings;
  }
  if (torch.version.empty()) {
    findings.push_back(problem("the torch in " + torch.folder + " does not say its version (version.py, build-version): koila would stay out",
                               "use a release of PyTorch"));
  } else if (const Adapter* adapter = adapter_for(library.adapters, torch.version); adapter != nullptr || library.adapters.empty()) {
    const std::string taken = library.adapters.size() > 1 ? ", which takes the adapter " + adapter->path : "";
    findings.push_back(ok(who + " with torch " + torch.version + " (" + torch.folder + ")" + taken));
  } else {
    findings.push_back(mismatch(torch.version, library.adapters));
  }
  if (!torch.rocm.empty()) findings.push_back(warning("this torch is for AMD's ROCm, which koila does not follow", "only CPU tensors are rescued"));
  const std::string c10_cuda = torch.folder + "/lib/libc10_cuda.so";
  if (const auto facts = read_elf(c10_cuda); facts && has_static_cudart(c10_cuda, *facts))
    findings.push_back(problem("this torch has CUDA's runtime linked in statically: what it gets from CUDA is not seen", "use a build with libcudart.so"));
  return findings;
}

Findings examine_gpu(const GpuFacts& gpu, const TorchFacts& torch) {
  const bool any = !gpu.models.empty();
  if (!torch.cuda.empty() && any && !gpu.has_libcuda)
    return {problem("there is a GPU, and CUDA's driver library (libcuda.so.1) was not found", "install the driver; in a container: --gpus all")};
  if (any) {
    std::string what = std::to_string(gpu.models.size()) + " x " + gpu.models[0] + (gpu.driver.empty() ? "" : ", driver " + gpu.driver);
    if (torch.asked && !torch.folder.empty() && torch.cuda.empty() && torch.rocm.empty() && !torch.python.empty())
      return {warning(what + ", and this torch is built without CUDA", "install a CUDA build of torch")};
    if (const char* visible = std::getenv("CUDA_VISIBLE_DEVICES"); visible != nullptr && (*visible == '\0' || std::string(visible) == "-1"))
      return {warning(what + ", hidden by CUDA_VISIBLE_DEVICES", "unset it")};
    return {ok(what)};
  }
  if (!torch.cuda.empty()) return {warning("no NVIDIA GPU was found, and this torch is for CUDA " + torch.cuda, "none, if the program runs on the CPU")};
  return {ok("no NVIDIA GPU: CPU tensors")};
}

Findings examine_limit(const GpuFacts& gpu, const TorchFacts& torch, const Environment& environment) {
  if (torch.folder.empty() || (!gpu.models.empty() && !torch.cuda.empty())) return {};
  const Config config = parse_config(koila_only(environment)).config;
  if (config.mode == KOILA_MODE_OFF || config.cpu_memory.kind != MemoryBudget::Kind::kNone || config.microbatch > 0) return {};
  return {warning("the program computes on the CPU, and no budget is set: koila acts when a budget is reached, and so never here",
                  "--cpu-memory auto (KOILA_CPU_MEMORY=auto: nine tenths of what is free for the process), or a size such as 8GiB")};
}

Findings examine_environment(const Environment& environment) {
  Findings findings;
  if (value_in(environment, "KOILA_RECORD").empty()) {
    if (const std::string bad = prepare_record_folder(); !bad.empty())
      findings.push_back(warning("no record can be kept: " + bad, "set TMPDIR to a folder that can be written, or KOILA_RECORD"));
    else if (const std::string usual = record_folder_problem(); !usual.empty())
      findings.push_back(warning(usual + "; records are kept in " + record_folder(), "find out whose it is and remove it, or set TMPDIR to a folder of your own"));
  }
  for (const std::string& entry : split(value_in(environment, "LD_PRELOAD"), " :")) {
    if (name_of(entry) == "libkoila.so") continue;
    if (entry.find('/') != std::string::npos && !is_file(entry))
      findings.push_back(warning("LD_PRELOAD names " + entry + ", which is not there", "the loader says so for each program; take it out"));
    else if (defines_any(entry, {"cudaMalloc", "cuMemAlloc_v2", "cudaFree"}, false))
      findings.push_back(warning("LD_PRELOAD names " + entry + ", which hooks CUDA's allocations as well",
                                 "koila comes first and calls it; what it allocates for itself is not seen"));
    else if (name_of(entry).starts_with("libtorch"))
      findings.push_back(warning("LD_PRELOAD names " + entry, "koila has to come before torch's libraries, as koila run puts it"));
  }
  for (const auto& [name, value] : environment) {
    const bool profiler = name == "CUDA_INJECTION64_PATH" || name.starts_with("NSYS_PROFILING") || name.starts_with("QUADD_INJECTION") ||
                          name.starts_with("NV_NSIGHT_INJECTION");
    if (!profiler || value.empty()) continue;
    const bool wants_cupti = value_in(environment, "KOILA_CUPTI") == "1";
    findings.push_back(warning("a profiler is attached (" + name + ")",
                               wants_cupti ? "KOILA_CUPTI=1 gives way to it, for CUPTI serves one at a time" : "nothing, unless you set KOILA_CUPTI=1"));
    break;
  }
  examine_variables(environment, findings);
  return findings;
}

Findings examine_process(int pid, const Library& library) {
  const std::string folder = "/proc/" + std::to_string(pid);
  if (!is_folder(folder)) return {problem("there is no process " + std::to_string(pid), "see ps")};
  const std::vector<std::string> files = mapped_files(pid);
  if (files.empty()) return {problem("the memory map of process " + std::to_string(pid) + " cannot be read", "run koila doctor as its user, or as root")};

  Findings findings;
  const std::string koila = named(files, "libkoila.so");
  const std::string adapter = named(files, "libkoila_torch.so");
  const std::string torch = named(files, "libtorch_cpu.so");
  const Environment environment = environment_of(pid);
  const std::string running = torch.empty() ? "" : torch_of_package(folder_of(folder_of(torch)));
  if (koila.empty()) {
    const std::string preload = value_in(environment, "LD_PRELOAD");
    const std::string binary = real_path(folder + "/exe");
    findings.push_back(problem("koila is not loaded in process " + std::to_string(pid) + " (" + binary + ")",
                               preload.find("libkoila.so") == std::string::npos
                                   ? "it cannot be added to a process that runs: start it again with koila run"
                                   : "LD_PRELOAD=" + preload + " was set for it, and the loader did not take it; see what it said on stderr"));
    examine_binary(binary, library, findings);
    return findings;
  }
  findings.push_back(ok(koila + " is loaded"));
  if (koila.ends_with(" (deleted)"))
    findings.push_back(warning("the file of libkoila.so was replaced since the process started", "the process goes on with the old one"));
  if (torch.empty()) {
    findings.push_back(ok("PyTorch is not loaded, or not yet"));
  } else if (!adapter.empty()) {
    findings.push_back(ok("its adapter " + adapter + " is loaded for torch " + running));
  } else {
    const std::vector<Adapter> adapters = adapters_in(folder_of(koila));
    if (value_in(environment, "KOILA_MODE") == "off") findings.push_back(problem("KOILA_MODE=off: koila stays out", "start it again without"));
    else if (adapters.empty()) findings.push_back(problem("there is no adapter beside " + koila, "build it with scripts/setup"));
    else if (adapter_for(adapters, running) == nullptr) findings.push_back(mismatch(running.empty() ? "of unknown version" : running, adapters));
    else findings.push_back(problem("PyTorch is loaded and koila's adapter is not", "see the program's stderr for the line \"koila stays out\""));
  }
  examine_variables(environment, findings);
  return findings;
}

}  // namespace koila::tool
