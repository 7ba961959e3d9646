#include "runtime/size_cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

#include "runtime/printable.h"
#include "runtime/quiet_write.h"
#include "runtime/size_cache_text.h"
#include "runtime/whole_file.h"

namespace koila {
namespace {

constexpr int kLockTries = 40;
constexpr useconds_t kLockPause = 5000;

std::string about(const std::string& path) {
  return "the cache " + printable(path) + " (KOILA_CACHE) ";
}

// Short enough for a string that takes no memory.
std::string no_memory() { return "out of memory"; }

std::string because(int error) { return std::string(": ") + std::strerror(error); }

struct Loaded {
  CacheText contents;
  std::optional<struct stat> status;  // none: it is not there
};

// A pipe or a terminal would keep the program waiting.
Loaded load(const std::string& path) {
  const int file = quiet_open(path.c_str(), O_RDONLY | O_NONBLOCK);
  if (file < 0 && errno == ENOENT) return {};
  const auto failed = [](const std::string& problem) { return Loaded{{{}, problem, false}, std::nullopt}; };
  if (file < 0) return failed("cannot be read" + because(errno) + "; name another file");
  std::string text, problem;
  struct stat status = {};
  if (fstat(file, &status) != 0) problem = "cannot be read" + because(errno) + "; name another file";
  else if (!S_ISREG(status.st_mode)) problem = "is not a regular file; name another";
  const auto too_large = [] { return std::string("is larger than 4 MiB").append(kCacheLeftAlone); };
  if (problem.empty() && static_cast<std::uint64_t>(status.st_size) > kCacheFileBytes) problem = too_large();
  char buffer[1 << 14];
  while (problem.empty()) {
    const ssize_t n = read(file, buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) problem = "cannot be read" + because(errno) + "; name another file";
    if (n <= 0) break;
    text.append(buffer, static_cast<std::size_t>(n));
    if (text.size() > kCacheFileBytes) problem = too_large();
  }
  close(file);
  if (!problem.empty()) return failed(problem);
  return {parse_size_cache(text), status};
}

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash + 1);
}

// Held by one at a time, among threads as among processes.
class FileLock {
 public:
  explicit FileLock(const std::string& path) {
    for (int i = 0; i < kLockTries; ++i) {
      if (i > 0) usleep(kLockPause);
      file_ = open_to_lock(path);
      if (file_ < 0) error_ = errno;
      if (file_ < 0) return;
      const int error = flock(file_, LOCK_EX | LOCK_NB) != 0 ? errno : 0;
      if (error == 0 && is_still_at(path)) return;
      close(std::exchange(file_, -1));
      if (error != 0 && error != EWOULDBLOCK && error != EINTR) error_ = error;
      if (error_ != 0) return;
    }
  }
  // Unlocked by name: a child forked meanwhile has the file open too, and closing it here would not do.
  ~FileLock() {
    if (file_ < 0) return;
    flock(file_, LOCK_UN);
    close(file_);
  }
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

  bool held() const { return file_ >= 0; }
  int error() const { return error_; }  // 0: others held it

 private:
  // Somebody else's lock need not be writable, and in a folder like /tmp must not be asked for with O_CREAT.
  static int open_to_lock(const std::string& path) {
    constexpr int kFlags = O_RDONLY | O_NONBLOCK | O_NOFOLLOW;
    const int file = quiet_open(path.c_str(), kFlags);
    return file < 0 && errno == ENOENT ? quiet_open(path.c_str(), kFlags | O_CREAT, 0666) : file;
  }

  // Somebody may have deleted the one that was opened, and others lock a new one.
  bool is_still_at(const std::string& path) const {
    struct stat mine = {}, there = {};
    return fstat(file_, &mine) == 0 && stat(path.c_str(), &there) == 0 && mine.st_ino == there.st_ino && mine.st_dev == there.st_dev;
  }

  int file_ = -1;
  int error_ = 0;
};

// What a link leads to, for the file is to be replaced and not the link; nothing for a link that leads nowhere.
std::optional<std::string> without_links(const std::string& path) {
  char* real = realpath(path.c_str(), nullptr);
  struct stat status = {};
  if (real == nullptr && lstat(path.c_str(), &status) == 0 && S_ISLNK(status.st_mode)) return std::nullopt;  // no link: another process made it just now
  const std::string found = real != nullptr ? real : path;
  std::free(real);
  return found;
}

SizeCacheWritten put_into_file(const std::string& path, const std::string& torch_version, const std::vector<CachedStep>& steps) {
  const auto failed = [&](const std::string& problem) { return SizeCacheWritten{about(path) + problem, false}; };
  SizeCacheWritten written;
  std::vector<CacheEntry> ours;
  for (const CachedStep& step : steps) {
    try {
      ours.push_back(as_it_will_be_read(torch_version, step));
    } catch (const MalformedStep& problem) {
      written.problem = about(path) + "goes without a step: " + problem.text;
    }
  }
  if (ours.empty()) return written;

  const auto target = without_links(path);
  if (!target) return failed("is a link that leads nowhere; name another file");
  // Before the lock as well: nothing is made beside a file of somebody else's.
  if (const Loaded before = load(*target); !before.contents.ours) return failed(before.contents.problem);
  const FileLock lock(*target + ".lock");
  if (!lock.held() && lock.error() == 0) return {about(path) + "is being written by others; left for later", true};
  if (!lock.held()) return failed("cannot be locked (with a file beside it that ends in .lock)" + because(lock.error()));

  Loaded loaded = load(*target);
  if (!loaded.contents.ours) return failed(loaded.contents.problem);
  if (loaded.status && faccessat(AT_FDCWD, target->c_str(), W_OK, AT_EACCESS) != 0) return failed("cannot be written" + because(errno));
  std::vector<CacheEntry>& entries = loaded.contents.entries;
  for (CacheEntry& entry : ours) put_step(entries, std::move(entry));
  put_in_order(entries);
  const struct stat* before = loaded.status ? &*loaded.status : nullptr;
  if (const int error = write_shared_file(*target, size_cache_text(entries), before)) return failed("cannot be written: " + file_problem(error));
  return written;
}

}  // namespace

SizeCacheFile read_size_cache(const std::string& path, const std::string& torch_version) {
  SizeCacheFile file;
  try {
    Loaded loaded = load(path);
    std::vector<CacheEntry>& entries = loaded.contents.entries;
    put_in_order(entries);
    for (CacheEntry& entry : entries)
      if (entry.torch == torch_version) file.steps.push_back(std::move(entry.step));
    file.ours = loaded.contents.ours;
    if (!loaded.contents.problem.empty()) file.problem = about(path) + loaded.contents.problem;
    if (file.ours && !loaded.status && access(folder_of(path).c_str(), F_OK) != 0) file.problem = about(path) + "cannot be made: its folder is not there";
  } catch (const std::exception&) {
    return {{}, no_memory(), false};
  }
  return file;
}

SizeCacheWritten write_size_cache(const std::string& path, const std::string& torch_version, const std::vector<CachedStep>& steps) {
  try {
    return put_into_file(path, torch_version, steps);
  } catch (const std::exception&) {
    return {no_memory(), false};
  }
}

std::int64_t coarse(std::int64_t available) {
  if (available < 16) return std::max<std::int64_t>(available, 0);
  const int below = std::bit_width(static_cast<std::uint64_t>(available)) - 4;
  return available >> below << below;
}

}  // namespace koila
