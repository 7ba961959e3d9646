#include "tool/variables.h"

#include <algorithm>
#include <cctype>

#include <CLI/App.hpp>

namespace koila::tool {
namespace {

// What each does, for --help; docs/command.md has more. A test holds it against the variables that there are.
const std::map<std::string, const char*> kMeaning = {
    {"KOILA_MODE", "what koila does: rescue recovers from out-of-memory, lazy sizes each step before it runs, track only counts"},
    {"KOILA_CPU_MEMORY", "budget for CPU tensors"},
    {"KOILA_DEVICE_MEMORY", "budget for each CUDA device, or by its number"},
    {"KOILA_MICROBATCH", "split every step into micro-batches of that many rows"},
    {"KOILA_REPORT", "what is written at exit; %p pid, %h host"},
    {"KOILA_RECORD", "where the running process keeps its record, for koila top and after a crash"},
    {"KOILA_STACKS", "keep the source line that made each tensor"},
    {"KOILA_LOG", "what koila says while the program runs"},
    {"KOILA_LOG_FILE", "where it says so"},
    {"KOILA_SPILL_DIR", "where full-size values go that the CPU's budget has no room for"},
    {"KOILA_RULES", "placement rules for operators of your own"},
    {"KOILA_CACHE", "a file of learned micro-batch sizes, for the next run to start from"},
    {"KOILA_POLICY", "how the micro-batch is sized"},
    {"KOILA_LADDER", "what may be done on an out-of-memory: 0 free caches, 1 micro-batches, 2 offload, 3 refuse"},
    {"KOILA_INJECT_OOM", "allocations that fail, for tests"},
    {"KOILA_CUPTI", "ask CUPTI for device memory that no hook sees"},
    {"KOILA_STRICT", "a bad value makes koila stay out"},
    {"KOILA_VERIFY", "prove what micro-batches come to: the first time for each kind of step, every time, or never"},
};

constexpr const char* kGroup = "Options of koila in the program (each is the variable KOILA_...)";

const VariableForm* find_form(const std::vector<VariableForm>& forms, const std::string& name) {
  const auto found = std::find_if(forms.begin(), forms.end(), [&](const VariableForm& form) { return form.name == name; });
  return found == forms.end() ? nullptr : &*found;
}

}  // namespace

std::string option_name(const std::string& variable) {
  std::string name = "--" + variable.substr(std::string("KOILA_").size());
  for (char& c : name) c = c == '_' ? '-' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return name;
}

void add_variables(CLI::App& app, Given& given, Shown shown) {
  for (const VariableForm& form : variable_forms()) {
    const auto found = kMeaning.find(form.name);
    const std::string name = form.name;
    const bool is_switch = form.form == std::string("0 or 1");
    const std::string values = is_switch ? option_name(name) + ", or " + option_name(name) + "=0" : std::string(form.form);
    const std::string meaning = (found == kMeaning.end() ? "" : std::string(found->second) + ":\n") + values + "; default: " + form.fallback;
    const auto keep = [&given, name](const std::string& value) { given[name] = value; };
    CLI::Option* option = nullptr;
    if (is_switch) {
      option = app.add_flag_function(option_name(name), [keep](std::int64_t on) { keep(on > 0 ? "1" : "0"); }, meaning);
    } else {
      option = app.add_option_function<std::string>(option_name(name), keep, meaning)->type_name("");
    }
    option->group(shown == Shown::kYes ? kGroup : "");  // the group without a name is left out of --help
  }
  if (shown == Shown::kNo) app.footer("\nOptions of koila in the program (--mode, --cpu-memory, ...) are those of koila run: koila run --help.\n" + app.get_footer());
}

CheckedVariables check_variables(const Given& given, const Environment& inherited) {
  CheckedVariables checked;
  const std::vector<VariableForm> forms = variable_forms();
  for (const auto& [name, value] : inherited) {
    if (given.contains(name)) continue;
    checked.environment.emplace_back(name, value);
    for (const ConfigProblem& problem : parse_config({{name, value}}).problems) {
      if (problem.level < KOILA_LOG_WARN) continue;
      if (const VariableForm* form = find_form(forms, name)) checked.errors.push_back(name + "=" + value + " is not understood: want " + form->form);
      else checked.warnings.push_back(problem.text);
    }
  }
  for (const auto& [name, value] : given) {
    checked.environment.emplace_back(name, value);
    const VariableForm* form = find_form(forms, name);
    const bool bad = value.empty() || parse_config({{name, value}}).has_errors();
    if (bad && form != nullptr) checked.errors.push_back(option_name(name) + " " + (value.empty() ? "''" : value) + " is not understood: want " + form->form);
  }
  return checked;
}

}  // namespace koila::tool
