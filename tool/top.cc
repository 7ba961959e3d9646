// koila top: a process's memory, live.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <thread>

#include <CLI/App.hpp>

#include "runtime/record/record.h"
#include "tool/command_line.h"
#include "tool/files.h"
#include "tool/frame.h"
#include "tool/screen.h"
#include "tool/source.h"

namespace koila::tool {
namespace {

constexpr const char* kFooter = R"(
Examples:
  koila top             the one process that runs under koila
  koila top 4711
  koila top --wait      the same, and waits until one does
  koila top --once      one frame, for scripts

q or Ctrl-C ends it. It reads the process's record (KOILA_RECORD), which is written anyway: the process does not notice. The exit status is 1 when
there is nothing to show, 2 for a wrong command line.)";

constexpr double kRateOver = 10;  // seconds

// Opened once: the last state can still be read when the process has ended and its record is removed.
class OpenRecord {
 public:
  explicit OpenRecord(const std::string& path) : file_(open(path.c_str(), O_RDONLY | O_CLOEXEC)), path_(path) {}
  ~OpenRecord() {
    if (file_ >= 0) close(file_);
  }
  OpenRecord(const OpenRecord&) = delete;
  OpenRecord& operator=(const OpenRecord&) = delete;

  ReadRecord read() const {
    ReadRecord record = read_record(file_ >= 0 ? "/proc/self/fd/" + std::to_string(file_) : path_);
    return record;
  }

 private:
  int file_;
  std::string path_;
};

// Second field of statm, in pages.
std::int64_t resident_of(std::int64_t pid) {
  const auto fields = split(read_file("/proc/" + std::to_string(pid) + "/statm").value_or(""), " ");
  return fields.size() > 1 ? std::atoll(fields[1].c_str()) * sysconf(_SC_PAGESIZE) : 0;
}

Moment moment_of(ReportData data) {
  Moment moment;
  moment.steps_per_second = recent_rate(data, kRateOver);
  if (data.end == RunEnd::kRunning) moment.resident_bytes = resident_of(data.pid);
  moment.data = std::move(data);
  return moment;
}

void print(const Moment& moment, bool colour) {
  for (const std::string& line : frame(moment, terminal_size().columns, 1000, colour)) std::printf("%s\n", line.c_str());
}

// The process that runs, when there is one; else what there is to choose from is said.
std::string only_record() {
  std::vector<FoundRecord> alive;
  for (const FoundRecord& record : find_records())
    if (record.alive) alive.push_back(record);
  if (alive.size() == 1) return alive[0].path;
  if (alive.empty()) {
    say("no process runs under koila here (its record may lie elsewhere: koila top PID or FILE)");
    return "";
  }
  say("which one? koila top PID");
  for (const FoundRecord& record : alive) {
    const ReadRecord read = read_record(record.path);
    say("  " + std::to_string(record.pid) + "  " + (read.data ? read.data->command : read.problem));
  }
  return "";
}

// Until a process runs under koila; Ctrl-C ends it, as it would any program.
void wait_for_process() {
  const auto runs = [] {
    const std::vector<FoundRecord> records = find_records();
    return std::any_of(records.begin(), records.end(), [](const FoundRecord& record) { return record.alive; });
  };
  if (runs()) return;
  say("waiting for a process under koila");
  while (!runs()) std::this_thread::sleep_for(std::chrono::milliseconds(200));
}

int watch(const OpenRecord& record, Moment moment, double interval) {
  {
    Screen screen;
    while (true) {
      const TerminalSize size = terminal_size();
      screen.draw(frame(moment, size.columns, size.rows, wants_colour(STDOUT_FILENO)));
      if (moment.data.end != RunEnd::kRunning) break;
      const Screen::Event event = screen.wait(interval);
      if (event == Screen::Event::kQuit) return kDone;
      if (event == Screen::Event::kResize) continue;
      if (ReadRecord read = record.read(); read.data) moment = moment_of(std::move(*read.data));
      else if (!is_folder("/proc/" + std::to_string(moment.data.pid))) moment.data.end = RunEnd::kCutOff;  // the file is no more what it was
    }
  }
  print(moment, wants_colour(STDOUT_FILENO));
  return kDone;
}

}  // namespace

int top_command(const Words& words) {
  CLI::App app{"Shows a process's memory while it runs: live bytes, peak and budget of each device, steps, rescues.", "koila top"};
  app.footer(kFooter);
  std::string named;
  double interval = 1;
  bool once = false, wait = false;
  app.add_option("RUN", named, "a process's number, or a record; without it the one process that runs")->type_name("");
  app.add_option("--interval", interval, "seconds between looks")->type_name("SECONDS")->capture_default_str();
  app.add_flag("--wait", wait, "where no process runs under koila yet, wait for one");
  app.add_flag("--once", once, "print one frame and end; so it is where stdout is no terminal");
  if (const auto status = parse(app, "koila top [OPTIONS] [PID | FILE]", words)) return *status;
  if (!(interval >= 0.05 && interval <= 3600)) return fail("--interval takes seconds from 0.05 to 3600");

  Source source;
  if (wait && named.empty()) wait_for_process();
  source.path = named.empty() ? only_record() : "";
  if (!named.empty()) source = find_source(named);
  if (!source.problem.empty()) say(source.problem);
  if (source.path.empty()) return kFoundProblem;

  const OpenRecord record(source.path);
  ReadRecord read = record.read();
  if (!read.data) {
    // A JSON report is of a run that is over, and has a last frame as well.
    source = read_source(source.path);
    if (!source.data) say(source.problem);
    if (!source.data) return kFoundProblem;
    read.data = std::move(source.data);
    once = true;
  }
  Moment moment = moment_of(std::move(*read.data));
  if (!once && isatty(STDOUT_FILENO) != 0) return watch(record, std::move(moment), interval);
  print(moment, wants_colour(STDOUT_FILENO));
  return kDone;
}

}  // namespace koila::tool
