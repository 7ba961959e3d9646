// Runs training programs (program.h), each in a child of its own, as tests/e2e/job.py does for Python: one request a line on stdin, one answer on stdout.
//
//     job serve
//     job NAME [OPTIONS]         one of them here, to its end as a program ends: destructors, statics, exit handlers
//     job --list
//
// A request: name, optimizer, steps, first step of the limits, rows, dtype, budget in bytes, injection or "-", path of the result, seconds; with spaces in between.
// The answer: signal, exit status, whether it had to be killed. The result is lines of text, then "end" and the arrays' bytes in the order of their
// lines (programs.py reads it); stderr goes to the result's path with ".log", koila's report to it with ".json".

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <sstream>
#include <thread>

#include "program.h"

namespace {

struct Request {
  std::string name;
  Settings settings;
  std::string dtype = "float64";
  int steps = 3, limit_from = 1;
  int64_t budget = 0;
  std::string inject = "-", out;
  int seconds = 60;
};

constexpr int kCpu = -1;

template <class F>
F* koila_function(const char* name) {
  return reinterpret_cast<F*>(dlsym(RTLD_DEFAULT, name));
}

int64_t figure(const char* name) {
  auto* const read = koila_function<int64_t(int)>(name);
  return read != nullptr ? read(kCpu) : 0;
}

void limit(int64_t budget, const std::string& inject) {
  auto* const set_budget = koila_function<int(int, int64_t)>("koila_set_budget");
  auto* const set_inject = koila_function<int(const char*)>("koila_set_inject");
  if (set_budget == nullptr && budget == 0 && inject == "-") return;
  TORCH_CHECK(set_budget != nullptr && set_budget(kCpu, budget) == 0 && set_inject(inject == "-" ? "" : inject.c_str()) == 0, "limits need koila");
}

struct Result {
  std::string outcome = "ok", message;
  int step = 0;
  int64_t peak = 0, requests = 0;
  std::vector<int64_t> allocations, live;
  Record record;
};

Result run(const Request& request) {
  torch::manual_seed(0);
  torch::set_default_dtype(c10::scalarTypeToTypeMeta(request.settings.dtype));
  const auto program = programs().at(request.name)(request.settings);
  program->optimizer();
  Result result;
  int64_t start = 0;
  try {
    for (int step = 1; step <= request.steps; ++step) {
      if (step == request.limit_from) {
        limit(request.budget, request.inject);
        start = figure("koila_allocations");
        if (auto* const reset = koila_function<void(int)>("koila_reset_peak")) reset(kCpu);
      }
      result.record.step = step;
      program->step(result.record);
      if (step < request.limit_from) continue;
      result.allocations.push_back(figure("koila_allocations") - start);
      result.live.push_back(figure("koila_live_bytes"));
    }
    program->finish(result.record);
  } catch (const c10::OutOfMemoryError& error) {
    result.outcome = "oom";
    result.message = error.what_without_backtrace();
  } catch (const std::exception& error) {
    result.outcome = "error";
    result.message = error.what();
  }
  result.step = result.record.step;
  result.peak = figure("koila_peak_bytes");
  result.requests = figure("koila_allocations") - start;
  limit(0, "-");
  result.record.state(program->model(), program->optimizer());
  result.record.arrays["final/generator"] = at::detail::getDefaultCPUGenerator().get_state();
  return result;
}

void write(const Result& result, const std::string& path) {
  std::ofstream file(path, std::ios::binary);
  file << result.outcome << '\n' << result.message.substr(0, result.message.find('\n')) << '\n' << result.step << ' ' << result.peak << ' ' << result.requests << '\n';
  for (const auto* list : {&result.allocations, &result.live}) {
    for (int64_t n : *list) file << n << ' ';
    file << '\n';
  }
  for (const auto& [name, array] : result.record.arrays) {
    file << name << ' ' << array.dtype << ' ' << array.bytes.size();
    for (int64_t n : array.sizes) file << ' ' << n;
    file << '\n';
  }
  file << "end\n";
  for (const auto& [name, array] : result.record.arrays) file << array.bytes;
  TORCH_CHECK(file.flush(), "cannot write ", path);
}

[[noreturn]] void child(const Request& request) {
  const int log = open((request.out + ".log").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  dup2(log, STDERR_FILENO);
  dup2(log, STDOUT_FILENO);
  int status = 0;
  try {
    write(run(request), request.out);
    if (auto* const report = koila_function<int(const char*)>("koila_write_report")) report((request.out + ".json").c_str());
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    status = 3;
  }
  std::cerr.flush();
  _exit(status);
}

// "signal exit killed" of a child that may take so long.
std::string wait_for(pid_t pid, int seconds) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::seconds(seconds);
  auto pause = std::chrono::microseconds(500);
  int status = 0;
  bool killed = false;
  while (waitpid(pid, &status, WNOHANG) == 0) {
    if (Clock::now() > end) {
      killed = true;
      kill(pid, SIGKILL);
      waitpid(pid, &status, 0);
      break;
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 3 / 2, std::chrono::microseconds(20000));
  }
  std::ostringstream said;
  said << (WIFSIGNALED(status) ? WTERMSIG(status) : 0) << ' ' << (WIFEXITED(status) ? WEXITSTATUS(status) : 0) << ' ' << killed;
  return said.str();
}

torch::Dtype dtype_of(const std::string& name) {
  TORCH_CHECK(name == "float32" || name == "float64", "no dtype ", name);
  return name == "float32" ? torch::kFloat32 : torch::kFloat64;
}

void serve() {
  std::string line;
  while (std::getline(std::cin, line)) {
    Request request;
    std::istringstream words(line);
    words >> request.name >> request.settings.optimizer >> request.steps >> request.limit_from >> request.settings.rows >> request.dtype >> request.budget >> request.inject >> request.out >> request.seconds;
    TORCH_CHECK(words && programs().count(request.name) != 0, "no such request: ", line);
    request.settings.dtype = dtype_of(request.dtype);
    const pid_t pid = fork();
    if (pid == 0) child(request);
    std::cout << wait_for(pid, request.seconds) << std::endl;
  }
}

int here(int argc, char** argv) {
  Request request;
  request.name = argv[1];
  for (int i = 2; i + 1 < argc; i += 2) {
    const std::string option = argv[i], value = argv[i + 1];
    if (option == "--optimizer") request.settings.optimizer = value;
    else if (option == "--steps") request.steps = std::stoi(value);
    else if (option == "--limit-from") request.limit_from = std::stoi(value);
    else if (option == "--rows") request.settings.rows = std::stoll(value);
    else if (option == "--dtype") request.settings.dtype = dtype_of(value);
    else if (option == "--budget") request.budget = std::stoll(value);
    else if (option == "--inject") request.inject = value;
    else TORCH_CHECK(false, "no option ", option);
  }
  TORCH_CHECK(programs().count(request.name) != 0, "no program ", request.name);
  const Result result = run(request);
  std::cout << result.outcome << ' ' << result.message.substr(0, result.message.find('\n')) << std::endl;
  for (const auto& [name, array] : result.record.arrays) {
    if (array.dtype == "float64" && array.sizes.empty()) std::printf("%s %.17g\n", name.c_str(), *reinterpret_cast<const double*>(array.bytes.data()));
  }
  return result.outcome == "ok" ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string first = argc > 1 ? argv[1] : "--list";
  if (first == "--list") {
    for (const auto& [name, make] : programs()) std::cout << name << '\n';
  } else if (first == "serve") {
    serve();
  } else {
    return here(argc, argv);
  }
}
