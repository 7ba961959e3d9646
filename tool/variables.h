// koila's variables as options of the command: KOILA_CPU_MEMORY is --cpu-memory, and takes the same values.
#ifndef KOILA_TOOL_VARIABLES_H_
#define KOILA_TOOL_VARIABLES_H_

#include <map>
#include <string>
#include <vector>

#include "runtime/config.h"

namespace CLI {
class App;
}

namespace koila::tool {

// "KOILA_CPU_MEMORY" is "--cpu-memory".
std::string option_name(const std::string& variable);

// The values given, by variable. Filled when the app has parsed; to be kept as long as the app.
using Given = std::map<std::string, std::string>;

// Whether --help lists them. koila run does, and the others send the reader there.
enum class Shown { kYes, kNo };

// Adds an option for every variable that koila knows; after the app's footer is set.
void add_variables(CLI::App& app, Given& given, Shown shown);

struct CheckedVariables {
  Environment environment;            // all of KOILA_*: those of `inherited` that no option replaces, and those of the options
  std::vector<std::string> errors;    // values that are not of the accepted form: a line each, by option or by variable, whichever it was
  std::vector<std::string> warnings;  // names that koila does not know
};

CheckedVariables check_variables(const Given& given, const Environment& inherited);

}  // namespace koila::tool

#endif  // KOILA_TOOL_VARIABLES_H_
