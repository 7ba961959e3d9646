// koila jupyter: a kernel for notebooks that starts under koila.
#include <algorithm>
#include <cctype>
#include <cstdio>
#include <filesystem>

#include <CLI/App.hpp>
#include <nlohmann/json.hpp>

#include "runtime/printable.h"
#include "tool/command_line.h"
#include "tool/files.h"
#include "tool/library.h"
#include "tool/program.h"
#include "tool/python.h"
#include "tool/variables.h"

namespace koila::tool {
namespace {

constexpr const char* kFooter = R"(
Examples:
  koila jupyter                                     a kernel "Python under koila", of the python in PATH
  koila jupyter --cpu-memory auto --name small      with a budget, under another name
  koila jupyter --python ~/venv/bin/python --prefix ~/venv

Every Jupyter of the user finds the kernel; with --prefix, that of an environment does. Where no kernel can be chosen, `import koila` in the first cell attaches koila to
the one that runs (docs/python.md).)";

// Where Jupyter looks: of an environment, what its variable says, or the user's.
std::string kernels(const std::string& prefix) {
  if (!prefix.empty()) return prefix + "/share/jupyter/kernels";
  if (const std::string data = variable("JUPYTER_DATA_DIR"); !data.empty()) return data + "/kernels";
  const std::string data = variable("XDG_DATA_HOME");
  return (data.empty() ? variable("HOME") + "/.local/share" : data) + "/jupyter/kernels";
}

// As jupyter_client has it: letters, digits, '.', '-' and '_'.
bool is_kernel_name(const std::string& name) {
  const auto fits = [](unsigned char c) { return (std::isalnum(c) != 0 && c < 128) || c == '.' || c == '-' || c == '_'; };
  return !name.empty() && name.front() != '.' && std::all_of(name.begin(), name.end(), fits);
}

// The reason why that kernel file must not be overwritten; "" when there is no such file, or when koila made it.
std::string kept_because(const std::string& file) {
  const auto text = read_file(file);
  if (!text) return "";
  const auto spec = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
  const bool ours = spec.is_object() && spec.contains("metadata") && spec["metadata"].is_object() && spec["metadata"].contains("koila");
  return ours ? "" : file + " is there, and no kernel that koila has made; --name takes another name";
}

std::string spec_of(const std::string& koila, const std::string& python, const std::string& library, const std::string& shown, const Given& given) {
  Words argv = {koila, "run", "--quiet"};
  if (!library.empty()) argv.insert(argv.end(), {"--library", library});
  for (const auto& [name, value] : given) argv.insert(argv.end(), {option_name(name), value});
  argv.insert(argv.end(), {"--", python, "-m", "ipykernel_launcher", "-f", "{connection_file}"});
  const nlohmann::ordered_json spec = {{"argv", argv}, {"display_name", shown}, {"language", "python"}, {"metadata", {{"debugger", true}, {"koila", KOILA_VERSION}}}};
  return spec.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace

int jupyter_command(const Words& words) {
  CLI::App app{"Installs a kernel for notebooks that starts under koila.", "koila jupyter"};
  app.footer(kFooter);
  Given given;
  std::string name = "koila", shown = "Python under koila", python = "python", prefix, asked;
  app.add_option("--name", name, "the kernel's name, and its folder's")->capture_default_str();
  app.add_option("--display-name", shown, "what a notebook shows")->capture_default_str();
  app.add_option("--python", python, "the Python that has torch and ipykernel")->type_name("PATH")->capture_default_str();
  app.add_option("--prefix", prefix, "the environment whose Jupyter finds it, such as /usr/local; else the user's")->type_name("PATH");
  app.add_option("--library", asked, "libkoila.so, or its folder")->type_name("PATH");
  add_variables(app, given, Shown::kNo);
  if (const auto status = parse(app, "koila jupyter [OPTIONS]", words)) return *status;
  if (!is_kernel_name(name)) return fail("--name " + name + ": a kernel's name is of letters, digits, '.', '-' and '_'");
  const CheckedVariables checked = check_variables(given, Environment());
  for (const std::string& error : checked.errors) fail(error);
  if (!checked.errors.empty()) return kWrongUse;
  const Library library = find_library(asked);
  if (const std::string problem = library.problem(); !problem.empty()) return fail(problem + "; --library PATH names it");
  const Program program = find_program({python}, variable("PATH"));
  if (program.status != 0 || program.python.empty()) return fail("--python " + python + ": " + (program.status == 0 ? "is no Python" : "not found, or not to be executed"));

  const std::string folder = kernels(prefix) + "/" + name, file = folder + "/kernel.json";
  if (const std::string problem = kept_because(file); !problem.empty()) return fail(problem);
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return fail(folder + ": " + error.message());
  const std::string wrong = write_whole(file, spec_of(real_path("/proc/self/exe"), program.python, asked.empty() ? "" : library.path, shown, given));
  if (!wrong.empty()) return fail(wrong);
  std::printf("%s: \"%s\", of %s\n", printable(file).c_str(), printable(shown).c_str(), printable(program.python).c_str());
  if (find_torch(program).version.empty()) say("warning: that Python has no torch; --python PATH names one that has");
  return kDone;
}

}  // namespace koila::tool
