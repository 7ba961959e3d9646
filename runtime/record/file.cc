#include "runtime/record/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "runtime/quiet_write.h"
#include "runtime/whole_file.h"

namespace koila::record {
namespace {

bool is_beyond_the_limit(std::size_t bytes) {
  rlimit limit = {};
  return getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && bytes > limit.rlim_cur;
}

// An errno; 0 when there is room.
int allocate(int file, std::size_t from, std::size_t bytes) {
  if (is_beyond_the_limit(from + bytes)) return EFBIG;
  int error = 0;
  // A program that is profiled gets a signal every few milliseconds.
  for (int tries = 0; tries < 20; ++tries) {
    error = quiet_fallocate(file, static_cast<off_t>(from), static_cast<off_t>(bytes));
    if (error != EINTR) break;
  }
  return error;
}

}  // namespace

std::unique_ptr<File> File::create(const std::string& path, std::size_t bytes, std::size_t most, std::string& problem) {
  std::unique_ptr<File> made(new File);
  made->final_ = path;
  made->most_ = std::min(most, kPieceBytes * kMostPieces);
  const PartialFile partial = make_partial(path);
  const int file = partial.file;
  if (file < 0) {
    problem = file_problem(partial.error);
    return nullptr;
  }
  made->path_ = partial.path;
  struct stat status = {};
  int error = is_beyond_the_limit(bytes) ? EFBIG : 0;
  if (error == 0 && (fstat(file, &status) != 0 || quiet_ftruncate(file, static_cast<off_t>(bytes)) != 0)) error = errno;
  if (error == 0) error = allocate(file, 0, kPieceBytes);
  if (error == 0) {
    void* data = mmap(nullptr, made->most_, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (data == MAP_FAILED) error = errno;
    else made->data_ = static_cast<char*>(data);
  }
  close(file);
  if (error != 0) {
    unlink(made->path_.c_str());
    problem = file_problem(error);
    return nullptr;
  }
  made->device_ = status.st_dev;
  made->inode_ = status.st_ino;
  made->bytes_ = bytes;
  made->has_room_[0].store(true, std::memory_order_relaxed);
  return made;
}

bool File::publish(std::string& problem) {
  if (const int error = rename_partial(path_, final_); error != 0) {
    problem = file_problem(error);
    return false;
  }
  path_ = final_;
  return true;
}

void File::remove() {
  struct stat status = {};
  if (lstat(path_.c_str(), &status) == 0 && status.st_dev == device_ && status.st_ino == inode_) unlink(path_.c_str());
}

int File::reopen() const {
  const int file = quiet_open(path_.c_str(), O_RDWR | O_NOFOLLOW | O_NONBLOCK);
  if (file < 0) return -1;
  struct stat status = {};
  if (fstat(file, &status) == 0 && status.st_dev == device_ && status.st_ino == inode_) return file;
  close(file);
  errno = ENOENT;
  return -1;
}

bool File::has_room(const void* at, std::size_t bytes) {
  const std::size_t from = static_cast<std::size_t>(static_cast<const char*>(at) - data_);
  const std::size_t first = from / kPieceBytes, last = (from + bytes - 1) / kPieceBytes;
  for (std::size_t piece = first; piece <= last; ++piece) {
    if (!has_room_[piece].load(std::memory_order_acquire)) return !is_full() && make_room(first, last);
  }
  return true;
}

bool File::make_room(std::size_t first, std::size_t last) {
  const int before = errno;
  const std::lock_guard lock(mutex_);
  bool made = true;
  const int file = reopen();
  for (std::size_t piece = first; made && piece <= last; ++piece) {
    if (has_room_[piece].load(std::memory_order_relaxed)) continue;
    made = file >= 0 && (piece + 1) * kPieceBytes <= bytes_ && allocate(file, piece * kPieceBytes, kPieceBytes) == 0;
    has_room_[piece].store(made, std::memory_order_release);
  }
  if (file >= 0) close(file);
  if (!made) full_.store(true, std::memory_order_relaxed);
  errno = before;
  return made;
}

bool File::grow(std::size_t bytes) {
  const int before = errno;
  const std::lock_guard lock(mutex_);
  if (bytes > most_ || is_full()) return false;
  const int file = reopen();
  const bool grown = file >= 0 && !is_beyond_the_limit(bytes) && quiet_ftruncate(file, static_cast<off_t>(bytes)) == 0;
  if (grown) bytes_ = bytes;
  else full_.store(true, std::memory_order_relaxed);
  if (file >= 0) close(file);
  errno = before;
  return grown;
}

}  // namespace koila::record
