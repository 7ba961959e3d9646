// The file behind a record: mapped shared, so that what was written is the kernel's to keep when the process is killed.
//
// A page that is written to without room on the disk would be a SIGBUS, and a file beyond RLIMIT_FSIZE a SIGXFSZ: so room is made first, piece by
// piece, and where there is none nothing is written. The file is closed in between, for programs close what they do not know; it is found again by
// its path. Nobody else may cut it short while the process runs.
#ifndef KOILA_RUNTIME_RECORD_FILE_H_
#define KOILA_RUNTIME_RECORD_FILE_H_

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <string>

namespace koila::record {

constexpr std::size_t kPieceBytes = 64 << 10;

class File {
 public:
  // A new file at `path`, of `bytes` to begin with and up to `most` later on (both of whole pieces). It is not seen there before publish(). Null and a problem, such as
  // "No space left on device", when there is none. Whatever becomes of it, mapped it stays.
  static std::unique_ptr<File> create(const std::string& path, std::size_t bytes, std::size_t most, std::string& problem);

  // Takes the place of what is at `path`. False and a problem when it cannot.
  bool publish(std::string& problem);
  // Of no use to anybody any more. Not where somebody else has put a file of his own.
  void remove();

  char* data() { return data_; }

  // Whether `bytes` from `at` on may be written to. Thread-safe; two comparisons where room was made before.
  bool has_room(const void* at, std::size_t bytes);
  // Makes the file longer, by holes.
  bool grow(std::size_t bytes);
  bool is_full() const { return full_.load(std::memory_order_relaxed); }

 private:
  static constexpr std::size_t kMostPieces = 256;

  File() = default;
  bool make_room(std::size_t first, std::size_t last);
  int reopen() const;

  std::string path_;      // where it is now
  std::string final_;     // where it is to be
  dev_t device_ = 0;
  ino_t inode_ = 0;
  char* data_ = nullptr;
  std::size_t most_ = 0;
  std::mutex mutex_;
  std::size_t bytes_ = 0;
  std::atomic<bool> full_{false};
  std::atomic<bool> has_room_[kMostPieces] = {};
};

}  // namespace koila::record

#endif  // KOILA_RUNTIME_RECORD_FILE_H_
