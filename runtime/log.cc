#include "runtime/log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>

#include "runtime/abi.h"
#include "runtime/config.h"
#include "runtime/printable.h"
#include "runtime/quiet_write.h"

namespace koila::log {
namespace {

struct Log {
  int level = KOILA_LOG_OFF;
  std::string path;  // "": stderr
};

// Never freed: a thread may log while the process exits, or while a forked child starts its own.
std::atomic<const Log*> current{nullptr};

constexpr std::array kLevels = {"trace", "debug", "info", "warning", "error", "critical", "off"};
const char* level_name(int level) { return level >= 0 && level < static_cast<int>(kLevels.size()) ? kLevels[static_cast<std::size_t>(level)] : "unknown"; }

// Asked for once: localtime() takes a lock that the child of a fork may find held for ever.
std::chrono::seconds offset_from_utc() {
  static const std::chrono::seconds offset = [] {
    const std::time_t now = std::time(nullptr);
    std::tm local = {};
    return std::chrono::seconds(localtime_r(&now, &local) != nullptr ? local.tm_gmtoff : 0);
  }();
  return offset;
}

std::string dated(int level, const std::string& message) {
  using namespace std::chrono;
  const auto now = floor<milliseconds>(system_clock::now() + offset_from_utc());
  const auto day = floor<days>(now);
  const year_month_day date(day);
  const hh_mm_ss time(now - day);
  char text[96];
  std::snprintf(text, sizeof text, "%04d-%02u-%02u %02d:%02d:%02d.%03d %d %s ", static_cast<int>(date.year()), static_cast<unsigned>(date.month()),
                static_cast<unsigned>(date.day()), static_cast<int>(time.hours().count()), static_cast<int>(time.minutes().count()),
                static_cast<int>(time.seconds().count()), static_cast<int>(time.subseconds().count()), static_cast<int>(getpid()), level_name(level));
  return text + message + "\n";
}

// A link, or a file, that somebody else has put into a folder like /tmp, where it leads or belongs to whom he likes: as the kernel's protected_symlinks and
// protected_regular have it.
bool is_planted(const std::string& path) {
  struct stat status = {}, folder = {};
  if (lstat(path.c_str(), &status) != 0 || status.st_uid == geteuid()) return false;
  const std::size_t slash = path.rfind('/');
  if (stat(slash == std::string::npos ? "." : path.substr(0, slash + 1).c_str(), &folder) != 0) return false;
  const bool is_shared = (folder.st_mode & S_ISVTX) != 0 && (folder.st_mode & (S_IWGRP | S_IWOTH)) != 0;
  return is_shared && status.st_uid != folder.st_uid;
}

// A pipe that nobody reads would keep the program waiting. -1 with errno.
int open_to_append(const std::string& path) {
  if (is_planted(path)) {
    errno = EACCES;
    return -1;
  }
  return quiet_open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_NONBLOCK, 0600);
}

void append(const std::string& path, const std::string& text) {
  const int before = errno;
  if (const int file = open_to_append(path); file >= 0) {
    write_all(file, text);
    close(file);
  }
  errno = before;
}

}  // namespace

void open(int level, const std::string& path) {
  try {
    auto* opened = new Log{level, path.empty() ? "" : expand_path(path)};
    std::string problem;
    if (!opened->path.empty()) {
      offset_from_utc();
      const int file = open_to_append(opened->path);
      if (file < 0) problem = "cannot write KOILA_LOG_FILE=" + path + ": " + std::strerror(errno) + "; logging to stderr";
      else close(file);
    }
    if (!problem.empty()) opened->path.clear();
    current.store(opened, std::memory_order_release);
    if (!problem.empty()) write(KOILA_LOG_WARN, problem);
  } catch (...) {
    // Out of memory for a log: go on without one.
  }
}

void write(int level, const std::string& message) {
  if (!enabled(level)) return;
  const Log& log = *current.load(std::memory_order_acquire);
  try {
    const std::string line = printable(message);
    if (log.path.empty()) StandardError::write("koila: " + line + "\n");
    else append(log.path, dated(level, line));
  } catch (...) {
    // Out of memory for a line.
  }
}

bool enabled(int level) {
  const Log* log = current.load(std::memory_order_acquire);
  return log != nullptr && level >= log->level && level < KOILA_LOG_OFF;
}

}  // namespace koila::log
