#include "tool/program.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "tool/files.h"

namespace koila::tool {
namespace {

constexpr int kDeepest = 8;  // scripts run by scripts

// They clear the environment, or run the command somewhere else.
constexpr std::array kCarriers = {"sudo", "su", "doas", "pkexec", "runuser", "docker", "podman", "nerdctl", "kubectl", "ssh", "systemd-run",
                                  "singularity", "apptainer", "flatpak", "snap", "bwrap", "chroot"};
// They run the command that follows in their own environment; the options of theirs that take a value.
struct Launcher {
  std::string_view name;
  std::string_view with_value;
};
constexpr std::array<Launcher, 7> kLaunchers = {{{"env", "uC"}, {"nohup", ""}, {"setsid", ""}, {"nice", "n"}, {"ionice", "cn"}, {"time", "fo"},
                                                  {"stdbuf", "ioe"}}};

bool is_one_of(std::string_view name, const auto& names) { return std::find(names.begin(), names.end(), name) != names.end(); }

bool is_python_name(const std::string& name) {
  if (!name.starts_with("python") && !name.starts_with("pypy")) return false;
  return name.find_first_not_of("0123456789.t", name.starts_with("pypy") ? 4 : 6) == std::string::npos;
}

// As execvp looks: a word with a slash is a path.
int look_up(const std::string& word, const std::string& search, std::string& path) {
  const auto status_of = [&](const std::string& candidate) {
    if (access(candidate.c_str(), F_OK) != 0) return 127;
    path = candidate;
    return is_file(candidate) && access(candidate.c_str(), X_OK) == 0 ? 0 : 126;
  };
  if (word.empty()) return 127;
  if (word.find('/') != std::string::npos) return status_of(word);
  int status = 127;
  for (const std::string& folder : split(search, ":")) {
    std::string before = path;
    const int here = status_of(folder + "/" + word);
    if (here == 0) return 0;
    if (here == 126 && status == 127 && is_file(path)) status = 126;  // and look on, as a shell does
    else path = before;
  }
  return status;
}

// The words of a script's first line without "#!"; pip's way around long paths included, where a shell is told to run a Python.
std::vector<std::string> first_words(const std::string& path) {
  const std::string start = read_file(path, 4096).value_or("");
  if (!start.starts_with("#!")) return {};
  const std::size_t end = std::min(start.find('\n'), start.size());
  std::vector<std::string> words = split(std::string_view(start).substr(2, end - 2), " \t\r");
  constexpr std::string_view kLongWay = "\n'''exec' ";
  if (start.compare(end, kLongWay.size(), kLongWay) == 0) {
    const std::size_t begin = end + kLongWay.size();
    const char quote = start[begin] == '"' ? '"' : ' ';
    const std::size_t from = begin + (quote == '"' ? 1 : 0);
    words = {start.substr(from, start.find(quote, from) - from)};
  } else if (words.size() > 2 && !(name_of(words[0]) == "env" && words[1].starts_with("-"))) {
    // The kernel hands everything behind the interpreter on as one word.
    words = {words[0], join({words.begin() + 1, words.end()}, " ")};
  }
  return words;
}

// The command behind a launcher's own options and variables.
std::vector<std::string> behind_launcher(const std::vector<std::string>& command, std::string_view with_value) {
  std::size_t i = 1;
  for (; i < command.size(); ++i) {
    const std::string& word = command[i];
    if (word == "--") return {command.begin() + static_cast<std::ptrdiff_t>(i) + 1, command.end()};
    // `env -S "python -u"` is `env python -u`.
    if (word.starts_with("-S") && name_of(command[0]) == "env") {
      if (word.size() == 2) ++i;
      std::vector<std::string> rest = i < command.size() ? split(word.size() == 2 ? command[i] : word.substr(2), " ") : std::vector<std::string>();
      if (i < command.size()) rest.insert(rest.end(), command.begin() + static_cast<std::ptrdiff_t>(i) + 1, command.end());
      return rest;
    }
    if (word.size() == 2 && word[0] == '-' && with_value.find(word[1]) != std::string_view::npos) ++i;
    else if (!word.starts_with("-") && !(name_of(command[0]) == "env" && word.find('=') != std::string::npos)) break;
  }
  return {command.begin() + static_cast<std::ptrdiff_t>(std::min(i, command.size())), command.end()};
}

void read_python_words(const std::vector<std::string>& command, Program& program) {
  for (std::size_t i = 1; i < command.size(); ++i) {
    const std::string& word = command[i];
    if (!word.starts_with("-")) {
      program.script = word;
      return;
    }
    if (word.starts_with("-c") || word.starts_with("-m") || word == "-") return;
    if (word == "-X" || word == "-W") ++i;
    else if (word.find_first_of("IsSEP", 1) != std::string::npos && !word.starts_with("--")) program.python_flags.push_back(word);
  }
}

}  // namespace

Program find_program(const std::vector<std::string>& command, const std::string& search) {
  Program program;
  if (command.empty()) {
    program.status = 127;
    return program;
  }
  std::vector<std::string> words = command;
  for (int depth = 0; depth < kDeepest && !words.empty(); ++depth) {
    std::string path;
    const int status = look_up(words[0], search, path);
    if (depth == 0) {
      program.status = status;
      program.path = path;
    }
    if (status != 0) return program;
    const std::string name = name_of(words[0]);
    if (program.carrier.empty() && is_one_of(name, kCarriers)) program.carrier = name;
    if (program.python.empty() && is_python_name(name)) {
      program.python = path;
      read_python_words(words, program);
    }
    const auto launcher = std::find_if(kLaunchers.begin(), kLaunchers.end(), [&](const Launcher& l) { return l.name == name; });
    if (std::vector<std::string> first = first_words(path); !first.empty()) {
      first.push_back(path);
      first.insert(first.end(), words.begin() + 1, words.end());
      words = std::move(first);
    } else if (launcher != kLaunchers.end()) {
      words = behind_launcher(words, launcher->with_value);
    } else {
      program.binary = path;
      return program;
    }
  }
  return program;
}

}  // namespace koila::tool
