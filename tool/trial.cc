#include "tool/trial.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "runtime/record/record.h"
#include "runtime/report/phrases.h"
#include "runtime/report/report.h"
#include "tool/child.h"
#include "tool/compare.h"
#include "tool/files.h"

namespace koila::tool {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kLook = std::chrono::milliseconds(50);
constexpr auto kGrace = std::chrono::seconds(5);  // from SIGTERM to SIGKILL
constexpr std::size_t kOutputLines = 8;
// What PyTorch and Python say when koila's hooks had no part in it.
constexpr std::array kMemoryWords = {"out of memory", "OutOfMemoryError", "DefaultCPUAllocator: can't allocate memory", "MemoryError", "bad_alloc"};

volatile sig_atomic_t stopped = 0;
void on_stop(int) { stopped = 1; }

// While it lives Ctrl-C and the like are noted, and do not end this process.
class StopWatch {
 public:
  StopWatch() {
    stopped = 0;
    struct sigaction action = {};
    action.sa_handler = on_stop;
    for (std::size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &action, &before_[i]);
  }
  ~StopWatch() {
    for (std::size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &before_[i], nullptr);
  }
  StopWatch(const StopWatch&) = delete;
  StopWatch& operator=(const StopWatch&) = delete;

 private:
  static constexpr std::array kSignals = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
  std::array<struct sigaction, kSignals.size()> before_;
};

pid_t start(const TrialPlan& plan, const std::string& output) {
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child != 0) return child;
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);
  const int nowhere = open("/dev/null", O_RDWR);
  const int file = open(output.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  dup2(nowhere, STDIN_FILENO);
  dup2(file, STDOUT_FILENO);
  dup2(file, STDERR_FILENO);
  for (const auto& [name, value] : plan.environment) setenv(name.c_str(), value.c_str(), 1);
  std::vector<char*> arguments = argument_pointers(plan.command);
  execvp(arguments[0], arguments.data());
  dprintf(STDERR_FILENO, "%s: %s\n", arguments[0], std::strerror(errno));
  _exit(errno == ENOENT ? 127 : 126);
}

// The records of the program and of whatever it started; the one with the most steps, or refusals, tells the story.
std::optional<ReportData> look_at(const std::string& folder) {
  std::optional<ReportData> best;
  DIR* names = opendir(folder.c_str());
  if (names == nullptr) return best;
  const auto weight = [](const ReportData& data) { return data.events.steps + data.events.refusals; };
  while (const dirent* entry = readdir(names)) {
    const std::string name = entry->d_name;
    if (!name.ends_with(".koila")) continue;
    ReadRecord read = read_record(folder + "/" + name);
    if (read.data && (!best || weight(*read.data) > weight(*best))) best = std::move(read.data);
  }
  closedir(names);
  return best;
}

void remove_records(const std::string& folder) {
  DIR* names = opendir(folder.c_str());
  if (names == nullptr) return;
  while (const dirent* entry = readdir(names))
    if (const std::string name = entry->d_name; name.ends_with(".koila")) unlink((folder + "/" + name).c_str());
  closedir(names);
}

std::string last_lines(const std::string& text) {
  std::vector<std::string> lines = split(text, "\n");
  if (lines.size() > kOutputLines) lines.erase(lines.begin(), lines.end() - static_cast<std::ptrdiff_t>(kOutputLines));
  return join(lines, "\n");
}

bool is_about_memory(const std::string& output) {
  return std::any_of(kMemoryWords.begin(), kMemoryWords.end(), [&](const char* words) { return output.find(words) != std::string::npos; });
}

std::string ending(int status) {
  if (WIFSIGNALED(status)) return std::string("ended by signal ") + std::to_string(WTERMSIG(status)) + " (" + strsignal(WTERMSIG(status)) + ")";
  return "ended with status " + std::to_string(WEXITSTATUS(status));
}

// Ends the whole group, so that no worker is left behind.
void end(pid_t child, bool gone) {
  if (!gone) {
    kill(-child, SIGTERM);
    const auto until = Clock::now() + kGrace;
    while (!gone && Clock::now() < until) {
      gone = waitpid(child, nullptr, WNOHANG) != 0;
      if (!gone) std::this_thread::sleep_for(kLook);
    }
  }
  kill(-child, SIGKILL);
  if (!gone) waitpid(child, nullptr, 0);
}

}  // namespace

TrialResult run_trial(const TrialPlan& plan) {
  const std::string output = plan.folder + "/output";
  remove_records(plan.folder);
  const StopWatch watch;
  TrialResult result;
  const pid_t child = start(plan, output);
  if (child < 0) {
    result.why = std::string("cannot start a process: ") + std::strerror(errno);
    return result;
  }
  const auto until = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(plan.seconds));
  std::optional<ReportData> data;
  int status = 0;
  bool gone = false, late = false;
  while (true) {
    gone = waitpid(child, &status, WNOHANG) != 0;
    data = look_at(plan.folder);
    if (gone || stopped || (data && (data->events.refusals > 0 || data->events.steps >= plan.steps))) break;
    late = Clock::now() > until;
    if (late) break;
    std::this_thread::sleep_for(kLook);
  }
  end(child, gone);

  const std::string said = read_file(output).value_or("");
  result.output = last_lines(said);
  if (data) {
    result.steps = data->events.steps;
    result.rescues = data->events.rescues;
    result.micro_batch = data->events.last_region.micro_batch;
    for (const DeviceFigures& device : data->devices) result.peak_bytes = std::max(result.peak_bytes, device.peak_bytes);
    result.seconds_per_step = data->seconds_per_step();
  }
  using Kind = TrialResult::Kind;
  if (stopped) {
    result.kind = Kind::kStopped;
  } else if (data && data->events.refusals > 0) {
    result.kind = Kind::kRanOut;
    const auto& events = data->events.oom_events;
    const auto refused = std::find_if(events.begin(), events.end(), [](const OomEvent& e) { return e.outcome == KOILA_REFUSED; });
    result.why = refused != events.end() ? describe(*refused) : "refused";
  } else if (result.steps >= plan.steps) {
    result.kind = Kind::kFits;
  } else if (late) {
    result.kind = Kind::kTooSlow;
    result.why = "made " + plural(result.steps, "step") + " in " + std::to_string(static_cast<long long>(plan.seconds)) + " s";
  } else if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
    result.kind = result.steps > 0 ? Kind::kFits : Kind::kFailed;
    result.why = result.steps > 0 ? "the program ended after " + plural(result.steps, "step") : "the program ended without a step that koila saw";
  } else if (is_about_memory(said) || (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)) {
    result.kind = Kind::kRanOut;
    result.why = ending(status) + (WIFSIGNALED(status) ? ", as when the kernel's memory ran out" : ", with an out-of-memory error");
  } else {
    result.why = ending(status);
  }
  return result;
}

}  // namespace koila::tool
