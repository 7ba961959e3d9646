#include "runtime/quiet_write.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>

namespace koila {
namespace {

// See Note [No signal of koila's].
class WithoutSignals {
 public:
  WithoutSignals() {
    sigset_t signals;
    sigemptyset(&signals);
    for (const int number : {SIGPIPE, SIGXFSZ, SIGTTOU}) sigaddset(&signals, number);
    sigpending(&pending_before_);
    is_blocked_ = pthread_sigmask(SIG_BLOCK, &signals, &mask_before_) == 0;
  }
  ~WithoutSignals() {
    if (is_blocked_) pthread_sigmask(SIG_SETMASK, &mask_before_, nullptr);
  }
  WithoutSignals(const WithoutSignals&) = delete;
  WithoutSignals& operator=(const WithoutSignals&) = delete;

  // What the call has raised is told by its error. One that was pending before is the program's.
  void take(int error) {
    const int number = error == EPIPE ? SIGPIPE : error == EFBIG ? SIGXFSZ : 0;
    if (number == 0 || !is_blocked_ || sigismember(&pending_before_, number) == 1) return;
    sigset_t one;
    sigemptyset(&one);
    sigaddset(&one, number);
    const timespec at_once = {};
    while (sigtimedwait(&one, nullptr, &at_once) < 0 && errno == EINTR) {
    }
  }

 private:
  sigset_t pending_before_;
  sigset_t mask_before_;
  bool is_blocked_ = false;
};

// For calls that say -1 and errno.
template <class Call>
auto quietly(Call call) {
  int error = 0;
  decltype(call()) result;
  {
    WithoutSignals guard;
    result = call();
    error = errno;
    if (result < 0) guard.take(error);
  }
  errno = error;
  return result;
}

struct Identity {
  std::atomic<bool> known{false};
  std::atomic<bool> is_open{false};
  std::atomic<dev_t> device{0};
  std::atomic<ino_t> inode{0};
};
Identity at_start;

// Whoever does not take a line within that time is not waited for again, until somebody has taken one.
constexpr int kPatienceMilliseconds = 1000;
std::atomic<bool> is_stuck{false};

// One write of so many bytes at most does not wait where a pipe says that it takes any.
constexpr std::size_t kAtOnce = PIPE_BUF;

bool takes_more(int file) {
  pollfd wait = {file, POLLOUT, 0};
  const int milliseconds = is_stuck.load(std::memory_order_relaxed) ? 0 : kPatienceMilliseconds;
  int ready = 0;
  for (int tries = 0; tries < 20; ++tries) {
    ready = poll(&wait, 1, milliseconds);
    if (ready >= 0 || errno != EINTR) break;
  }
  is_stuck.store(ready == 0, std::memory_order_relaxed);
  return ready > 0;
}

}  // namespace

ssize_t quiet_write(int file, const void* data, std::size_t bytes) {
  return quietly([&] { return ::write(file, data, bytes); });
}

int quiet_ftruncate(int file, off_t bytes) {
  return quietly([&] { return ::ftruncate(file, bytes); });
}

int quiet_fallocate(int file, off_t from, off_t bytes) {
  WithoutSignals guard;
  const int error = ::posix_fallocate(file, from, bytes);
  guard.take(error);
  return error;
}

bool write_all(int file, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = quiet_write(file, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n == 0) errno = EIO;
    if (n <= 0) return false;
    text.remove_prefix(static_cast<std::size_t>(n));
  }
  return true;
}

int quiet_open(const char* path, int flags, mode_t mode) {
  const int file = ::open(path, flags | O_CLOEXEC | O_NOCTTY, mode);
  if (file < 0 || file > STDERR_FILENO) return file;
  const int above = fcntl(file, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  const int error = errno;
  ::close(file);
  errno = error;
  return above;
}

void StandardError::remember() {
  struct stat status = {};
  const int error = errno;
  const bool is_open = fstat(STDERR_FILENO, &status) == 0;
  errno = error;
  at_start.device.store(status.st_dev);
  at_start.inode.store(status.st_ino);
  at_start.is_open.store(is_open);
  at_start.known.store(true, std::memory_order_release);
}

namespace {

// Whether what has taken the place of the first stderr is one in turn (a pipe of Jupyter's, a log that stdout goes to as well), and no file of the program's that got the number 2 by chance.
bool is_meant_for_messages(const struct stat& status) {
  if (!S_ISREG(status.st_mode)) return true;
  if (const int flags = fcntl(STDERR_FILENO, F_GETFL); flags >= 0 && (flags & O_APPEND) != 0) return true;
  struct stat out = {};
  return fstat(STDOUT_FILENO, &out) == 0 && out.st_dev == status.st_dev && out.st_ino == status.st_ino;
}

}  // namespace

bool StandardError::is_there() {
  if (!at_start.known.load(std::memory_order_acquire)) remember();
  if (!at_start.is_open.load()) return false;
  struct stat status = {};
  const int error = errno;
  bool is_there = fstat(STDERR_FILENO, &status) == 0;
  const bool is_same = is_there && status.st_dev == at_start.device.load() && status.st_ino == at_start.inode.load();
  is_there = is_same || (is_there && is_meant_for_messages(status));
  errno = error;
  return is_there;
}

void StandardError::write(std::string_view text) {
  if (!is_there()) return;
  const int error = errno;
  while (!text.empty() && takes_more(STDERR_FILENO)) {
    const ssize_t n = quiet_write(STDERR_FILENO, text.data(), std::min(text.size(), kAtOnce));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    text.remove_prefix(static_cast<std::size_t>(n));
  }
  errno = error;
}

}  // namespace koila
