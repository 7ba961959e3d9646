#include "tool/python.h"

#include <algorithm>

#include "runtime/surroundings.h"
#include "runtime/torch_release.h"
#include "tool/child.h"
#include "tool/files.h"

namespace koila::tool {
namespace {

constexpr double kPatience = 30;  // seconds: a Python on a cold network disk takes its time

// The program's folder stands first where Python looks for modules, as it will when the program runs.
constexpr const char* kQuestion =
    "import sys\n"
    "sys.path[0:1] = sys.argv[1:]\n"
    "from importlib.util import find_spec\n"
    "spec = find_spec('torch')\n"
    "print('.'.join(map(str, sys.version_info[:3])))\n"
    "print(spec.origin if spec is not None and spec.origin else '')\n";

constexpr const char* kSystemFolders[] = {"/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib/aarch64-linux-gnu",
                                          "/usr/lib/aarch64-linux-gnu", "/lib64", "/usr/lib64", "/lib", "/usr/lib", "/usr/local/lib"};

TorchFacts ask_python(const Program& program) {
  std::vector<std::string> command = {program.python};
  command.insert(command.end(), program.python_flags.begin(), program.python_flags.end());
  command.insert(command.end(), {"-c", kQuestion});
  const bool isolated = std::any_of(program.python_flags.begin(), program.python_flags.end(),
                                    [](const std::string& flag) { return flag.find_first_of("IP") != std::string::npos; });
  if (!isolated) command.push_back(program.script.empty() ? "" : folder_of(program.script));
  const std::string answer = output_of(command, kPatience).value_or("");
  const std::size_t end = answer.find('\n');
  if (end == std::string::npos) return {};
  TorchFacts facts;
  std::string origin = answer.substr(end + 1);
  if (!origin.empty()) origin.pop_back();
  if (!origin.empty()) facts = torch_in(folder_of(origin));
  facts.asked = true;
  facts.python = answer.substr(0, end);
  return facts;
}

}  // namespace

TorchFacts torch_in(const std::string& folder) {
  TorchFacts facts;
  facts.asked = true;
  facts.folder = folder;
  facts.version = torch_of_package(folder);
  const std::string text = read_file(folder + "/version.py", 4096).value_or("");
  facts.cuda = parse_version_py(text, "cuda");
  facts.rocm = parse_version_py(text, "hip");
  return facts;
}

std::string find_needed(const std::string& path, const ElfFacts& facts, const std::string& library) {
  if (library.find('/') != std::string::npos) return library;
  const std::string here = folder_of(real_path(path));
  std::vector<std::string> folders;
  for (std::string folder : facts.run_path) {
    for (const std::string name : {"$ORIGIN", "${ORIGIN}"})
      if (const std::size_t at = folder.find(name); at != std::string::npos) folder.replace(at, name.size(), here);
    folders.push_back(folder);
  }
  const std::vector<std::string> asked = split(variable("LD_LIBRARY_PATH"), ":;");
  folders.insert(folders.end(), asked.begin(), asked.end());
  folders.insert(folders.end(), std::begin(kSystemFolders), std::end(kSystemFolders));
  for (const std::string& folder : folders)
    if (is_file(folder + "/" + library)) return folder + "/" + library;
  return "";
}

TorchFacts find_torch(const Program& program) {
  if (!program.python.empty()) return ask_python(program);
  const auto facts = program.binary.empty() ? std::nullopt : read_elf(program.binary);
  if (!facts) return {};
  TorchFacts torch;
  torch.asked = true;
  for (const std::string& library : facts->needed) {
    if (!library.starts_with("libtorch") && !library.starts_with("libc10")) continue;
    const std::string found = find_needed(program.binary, *facts, library);
    if (!found.empty()) return torch_in(folder_of(folder_of(absolute_path(found))));
  }
  return torch;
}

}  // namespace koila::tool
