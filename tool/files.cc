#include "tool/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "runtime/quiet_write.h"
#include "runtime/whole_file.h"

namespace koila::tool {

std::optional<std::string> read_file(const std::string& path, std::size_t most) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) return std::nullopt;
  std::string text;
  char buffer[1 << 16];
  while (text.size() < most) {
    const ssize_t n = read(file, buffer, std::min(sizeof buffer, most - text.size()));
    if (n <= 0) break;
    text.append(buffer, static_cast<std::size_t>(n));
  }
  close(file);
  return text;
}

namespace {

// A pipe, a device, and what leads to one or to a descriptor (/dev/stdout, /proc/self/fd/3): another file in its place would be of no use, and as root of harm.
// A link elsewhere is replaced, for it may be somebody else's.
bool is_written_in_place(const std::string& path) {
  struct stat status;
  if (lstat(path.c_str(), &status) != 0) return false;
  if (!S_ISLNK(status.st_mode)) return !S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode);
  const std::string folder = real_path(folder_of(path));
  return folder == "/dev" || folder.starts_with("/dev/fd") || folder.starts_with("/proc/");
}

}  // namespace

std::string write_whole(const std::string& path, const std::string& text) {
  if (path == "-") return std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0 ? "" : "cannot write to stdout";
  int error = 0;
  if (is_written_in_place(path)) {
    const int file = quiet_open(path.c_str(), O_WRONLY | O_TRUNC);
    if (file < 0 || !koila::write_all(file, text)) error = errno;
    if (file >= 0 && close(file) != 0 && error == 0) error = errno;
  } else {
    error = write_whole_file(path, text);
  }
  return error == 0 ? "" : "cannot write " + path + ": " + file_problem(error);
}

bool is_file(const std::string& path) {
  struct stat status;
  return stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode);
}

bool is_folder(const std::string& path) {
  struct stat status;
  return stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
}

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

std::string name_of(const std::string& path) { return path.substr(path.rfind('/') + 1); }

std::string real_path(const std::string& path) {
  char* real = realpath(path.c_str(), nullptr);
  const std::string whole = real != nullptr ? real : path;
  std::free(real);
  return whole;
}

std::vector<std::string> split(std::string_view text, std::string_view separators) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find_first_of(separators, begin), text.size());
    if (end > begin) parts.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

std::string join(const std::vector<std::string>& parts, const std::string& separator) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : separator) + part;
  return text;
}

std::string shell_words(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) {
    if (!text.empty()) text += ' ';
    const bool plain = !word.empty() && word.find_first_not_of(
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./=:,@%+{}") == std::string::npos;
    if (plain) {
      text += word;
      continue;
    }
    text += '\'';
    for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
    text += '\'';
  }
  return text;
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

}  // namespace koila::tool
