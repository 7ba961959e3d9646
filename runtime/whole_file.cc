#include "runtime/whole_file.h"

#include <fcntl.h>
#include <sys/random.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <optional>

#include "runtime/quiet_write.h"

namespace koila {
namespace {

constexpr int kTries = 16;

std::string random_word() {
  std::uint64_t number = 0;
  // Without random numbers others could plant every name; that only costs the file.
  if (getrandom(&number, sizeof number, GRND_NONBLOCK) != sizeof number) number = static_cast<std::uint64_t>(getpid());
  char word[17];
  std::snprintf(word, sizeof word, "%016llx", static_cast<unsigned long long>(number));
  return word;
}

int make_new(const std::string& path) { return quiet_open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, 0600); }

// `begin`: what tells it from others of the same file.
PartialFile make_beside(const std::string& path, const std::string& begin) {
  PartialFile made;
  for (int i = 0; i < kTries; ++i) {
    // Short where the file's own name leaves no room for more.
    if (made.error == ENAMETOOLONG) made.path = path.substr(0, path.rfind('/') + 1) + "koila-" + random_word() + ".partial";
    else made.path = begin + (i == 0 ? "" : "-" + random_word()) + ".partial";
    made.file = make_new(made.path);
    if (made.file >= 0) {
      made.error = 0;
      return made;
    }
    const bool was_too_long = made.error == ENAMETOOLONG;
    made.error = errno;
    if (made.error != EEXIST && (made.error != ENAMETOOLONG || was_too_long)) return made;
  }
  return made;
}

int finish(const PartialFile& partial, const std::string& path, std::string_view text, const struct stat* like) {
  if (partial.file < 0) return partial.error;
  // Root keeps the owner, lest who shares the file with it loses it.
  if (like != nullptr && fchown(partial.file, like->st_uid, like->st_gid) != 0) errno = 0;
  int error = (like != nullptr && fchmod(partial.file, like->st_mode & 0777) != 0) || !write_all(partial.file, text) ? errno : 0;
  if (close(partial.file) != 0 && error == 0) error = errno;
  if (error == 0) return rename_partial(partial.path, path);
  unlink(partial.path.c_str());
  return error;
}

}  // namespace

PartialFile make_partial(const std::string& path) { return make_beside(path, path + "." + std::to_string(getpid())); }

int rename_partial(const std::string& partial, const std::string& path) {
  struct stat there = {};
  int error = 0;
  if (lstat(path.c_str(), &there) == 0 && !S_ISREG(there.st_mode) && !S_ISLNK(there.st_mode)) error = S_ISDIR(there.st_mode) ? EISDIR : EEXIST;
  if (error == 0 && rename(partial.c_str(), path.c_str()) != 0) error = errno;
  if (error != 0) unlink(partial.c_str());
  return error;
}

int write_whole_file(const std::string& path, std::string_view text) { return finish(make_partial(path), path, text, nullptr); }

int write_shared_file(const std::string& path, std::string_view text, const struct stat* like) {
  unlink((path + ".koila.partial").c_str());  // the link, where it is one
  return finish(make_beside(path, path + ".koila"), path, text, like);
}

std::string file_problem(int error) {
  if (error == EEXIST) return "there is something else than a file";
  return std::strerror(error);
}

}  // namespace koila
