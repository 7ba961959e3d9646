// The folder of records.
#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <utility>

#include "runtime/record/process.h"
#include "runtime/record/record.h"

namespace koila {
namespace {

struct Entry {
  std::string path;
  std::int64_t pid = 0;
  bool is_partial = false;
  timespec changed = {};
};

// "7.koila", and "7.koila.7.partial" or "7.koila.7-0123456789abcdef.partial" while it is being made (whole_file.h). Anything else is somebody else's.
bool parse_name(std::string_view name, Entry& entry) {
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), entry.pid);
  if (error != std::errc() || entry.pid <= 0) return false;
  const std::string_view rest(end, static_cast<std::size_t>(name.data() + name.size() - end));
  const std::string begin = ".koila." + std::to_string(entry.pid);
  entry.is_partial = rest == begin + ".partial" || (rest.starts_with(begin + "-") && rest.ends_with(".partial"));
  return entry.is_partial || rest == ".koila";
}

// "" where it is the user's own and nobody else's to enter, or not there yet.
std::string problem_of(const std::string& folder) {
  struct stat status = {};
  if (lstat(folder.c_str(), &status) != 0) return errno == ENOENT ? "" : "the folder " + folder + " cannot be looked at: " + std::strerror(errno);
  if (!S_ISDIR(status.st_mode)) return folder + " is not a folder";
  if (status.st_uid != geteuid()) return "the folder " + folder + " is somebody else's (user " + std::to_string(status.st_uid) + ")";
  if ((status.st_mode & 077) != 0) return "the folder " + folder + " is open to others; expected it to be for its user alone (chmod 700)";
  return "";
}

std::string without_slashes(std::string folder) {
  while (folder.size() > 1 && folder.back() == '/') folder.pop_back();
  return folder;
}

// A folder that a variable names, "" where it is not there, or `own` is asked for and it is another's.
std::string folder_in(const char* variable, bool own) {
  const char* value = std::getenv(variable);
  struct stat status = {};
  if (value == nullptr || *value != '/' || stat(value, &status) != 0 || !S_ISDIR(status.st_mode)) return "";
  return own && status.st_uid != geteuid() ? "" : without_slashes(value);
}

// Where records may lie, the usual place first. That is one whose name anybody can tell, in a folder that anybody may write to: where somebody else was there
// first, it is left to him, and others follow that only the user can write to.
std::vector<std::string> candidates() {
  const std::string name = "/koila-" + std::to_string(geteuid());
  const std::string temporary = folder_in("TMPDIR", false);
  std::vector<std::string> folders = {(temporary.empty() ? "/tmp" : temporary == "/" ? "" : temporary) + name};
  if (const std::string run = folder_in("XDG_RUNTIME_DIR", true); !run.empty()) folders.push_back(run + name);
  if (const std::string cache = folder_in("XDG_CACHE_HOME", true); !cache.empty()) folders.push_back(cache + name);
  else if (const std::string home = folder_in("HOME", true); !home.empty()) folders.push_back(home + "/.koila-records");
  return folders;
}

// The latest first.
std::vector<Entry> entries() {
  const std::string folder = record_folder();
  std::vector<Entry> found;
  if (!problem_of(folder).empty()) return found;  // what lies there may be anybody's
  DIR* open = opendir(folder.c_str());
  if (open == nullptr) return found;
  while (const dirent* in = readdir(open)) {
    Entry entry;
    struct stat status = {};
    if (!parse_name(in->d_name, entry)) continue;
    entry.path = folder + "/" + in->d_name;
    if (lstat(entry.path.c_str(), &status) != 0 || !S_ISREG(status.st_mode) || status.st_uid != geteuid()) continue;
    entry.changed = status.st_mtim;
    found.push_back(std::move(entry));
  }
  closedir(open);
  std::sort(found.begin(), found.end(), [](const Entry& a, const Entry& b) {
    return std::pair(a.changed.tv_sec, a.changed.tv_nsec) > std::pair(b.changed.tv_sec, b.changed.tv_nsec);
  });
  return found;
}

bool is_of_the_living(const Entry& entry) {
  const auto owner = owner_of(entry.path);
  if (entry.is_partial || (owner && owner->pid == 0)) return record::birth_of(entry.pid) != 0;
  return owner && record::is_alive(owner->pid, owner->birth);
}

}  // namespace

std::string record_folder() {
  std::string first;
  for (const std::string& folder : candidates()) {
    if (problem_of(folder).empty()) return folder;
    if (first.empty()) first = folder;
  }
  return first;
}

std::string record_folder_problem() { return problem_of(candidates().front()); }

std::string prepare_record_folder() {
  std::string problem;
  for (const std::string& folder : candidates()) {
    std::string its = problem_of(folder);
    if (its.empty() && mkdir(folder.c_str(), 0700) != 0) {
      if (errno != EEXIST) its = "the folder " + folder + " cannot be made: " + std::strerror(errno);
      else its = problem_of(folder);
    }
    if (its.empty()) return "";
    if (problem.empty()) problem = its;
  }
  return problem;
}

std::vector<FoundRecord> find_records() {
  std::vector<FoundRecord> found;
  for (const Entry& entry : entries()) {
    if (!entry.is_partial) found.push_back({entry.path, entry.pid, is_of_the_living(entry)});
  }
  return found;
}

std::string record_of(std::int64_t pid) {
  // What it has mapped is there wherever it lies, and whatever it is called.
  const std::string maps = "/proc/" + std::to_string(pid) + "/maps";
  if (std::FILE* file = std::fopen(maps.c_str(), "re"); file != nullptr) {
    char* line = nullptr;
    std::size_t size = 0;
    std::string path;
    while (path.empty() && getline(&line, &size, file) > 0) {
      std::string_view text = line;
      if (text.find(" rw-s ") == std::string_view::npos || text.find('/') == std::string_view::npos) continue;
      text.remove_prefix(text.find('/'));
      if (text.ends_with('\n')) text.remove_suffix(1);
      const auto owner = owner_of(std::string(text));
      if (owner && owner->pid == pid) path = text;
    }
    std::free(line);
    std::fclose(file);
    if (!path.empty()) return path;
  }
  const std::string folder = record_folder();
  const std::string path = folder + "/" + std::to_string(pid) + ".koila";
  return problem_of(folder).empty() && owner_of(path) ? path : "";
}

void prune_records() {
  std::size_t kept = 0;
  for (const Entry& entry : entries()) {
    if (is_of_the_living(entry)) continue;
    if (entry.is_partial || ++kept > kMaxRecords) unlink(entry.path.c_str());
  }
}

}  // namespace koila
