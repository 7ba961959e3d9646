// koila: runs programs under koila, and tells where their memory went.
#include <array>
#include <cstdio>
#include <exception>
#include <string>

#include "runtime/printable.h"
#include "tool/command_line.h"
#include "tool/library.h"

namespace koila::tool {
namespace {

struct Subcommand {
  const char* name;
  const char* summary;
  int (*run)(const Words&);
};

constexpr std::array kSubcommands = {
    Subcommand{"run", "run a program under koila", run_command},
    Subcommand{"report", "tell where a run's memory went, or what differs between runs", report_command},
    Subcommand{"top", "show a process's memory while it runs", top_command},
    Subcommand{"probe", "find the largest batch that fits, without koila and with", probe_command},
    Subcommand{"doctor", "say why koila would not work for a program, or does not in a process", doctor_command},
    Subcommand{"jupyter", "install a kernel for notebooks that starts under koila", jupyter_command},
    Subcommand{"completion", "print what a shell reads to complete these words", completion_command},
};

void print_help() {
  std::printf("koila keeps an unmodified PyTorch program alive when memory runs out, and tells where its memory went.\n\nUsage: koila COMMAND ...\n\n");
  for (const Subcommand& command : kSubcommands) std::printf("  %-10s %s\n", command.name, command.summary);
  std::printf("\nkoila COMMAND --help says more, with examples. koila --version tells the version.\n"
              "Exit status: the program's own for koila run; else 0, 1 where a problem was found, 2 for a wrong command line.\n");
}

void print_version() {
  const Library library = find_library("");
  std::printf("koila %s\n", KOILA_VERSION);
  if (library.path.empty()) std::printf("libkoila.so was not found\n");
  else std::printf("%s, adapter for torch %s\n", printable(library.path).c_str(), library.adapters.empty() ? "missing" : printable(releases_of(library.adapters)).c_str());
}

int dispatch(Words words) {
  if (words.empty()) {
    print_help();
    return kWrongUse;
  }
  std::string name = words[0];
  words.erase(words.begin());
  if (name == "--version" || name == "-V" || name == "version") {
    print_version();
    return kDone;
  }
  if (name == "--list-commands") {
    for (const Subcommand& command : kSubcommands) std::puts(command.name);
    return kDone;
  }
  if (name == "help" || name == "--help" || name == "-h") {
    if (words.empty()) {
      print_help();
      return kDone;
    }
    name = words[0];
    words = {"--help"};
  }
  Words names;
  for (const Subcommand& command : kSubcommands) {
    if (name == command.name) return command.run(words);
    names.push_back(command.name);
  }
  if (name == "compare" || name == "diff") return fail("no command " + name + "; two runs stand side by side in koila report A.json B.json. See koila help");
  const std::string near = nearest(name, names);
  return fail((name.starts_with("-") ? "no option " : "no command ") + name + (near.empty() ? "." : "; did you mean koila " + near + "?") + " See koila help");
}

}  // namespace
}  // namespace koila::tool

int main(int argc, char** argv) {
  try {
    return koila::tool::dispatch(koila::tool::Words(argv + (argc > 0 ? 1 : 0), argv + argc));
  } catch (const std::exception& error) {
    return koila::tool::fail(error.what());
  }
}
