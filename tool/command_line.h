// What the subcommands share in reading their command lines.
#ifndef KOILA_TOOL_COMMAND_LINE_H_
#define KOILA_TOOL_COMMAND_LINE_H_

#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace koila::tool {

using Words = std::vector<std::string>;

// Exit statuses of the command itself. `koila run` ends with the program's own, or as a shell would: 126, 127.
enum ExitStatus { kDone = 0, kFoundProblem = 1, kWrongUse = 2, kCannotExecute = 126, kNotFound = 127 };

// Subcommands: each takes the words behind its name, and answers with the exit status.
int run_command(const Words& words);
int report_command(const Words& words);
int top_command(const Words& words);
int doctor_command(const Words& words);
int probe_command(const Words& words);
int jupyter_command(const Words& words);
int completion_command(const Words& words);

// A word that makes a subcommand print the names of its options, one a line: for shells, which complete words.
constexpr const char* kListOptions = "--list-options";

// Reads `words` into the app; nothing when they were read, else the exit status: --help was asked for, or they were wrong, which has been said.
// `usage` is one line for --help. `program`: what stands behind `--`, or from the first word on that is no option.
std::optional<int> parse(CLI::App& app, const std::string& usage, const Words& words, Words* program = nullptr);

// A line on stderr: "koila: ...".
void say(const std::string& line);
// The same in red on a terminal, as `koila: error: ...`; answers kWrongUse.
int fail(const std::string& line);

// The one of `names` that was probably meant; "" when none is near.
std::string nearest(const std::string& name, const Words& names);

// Whether colours are wanted on this file: a terminal, and NO_COLOR is not set.
bool wants_colour(int file);

}  // namespace koila::tool

#endif  // KOILA_TOOL_COMMAND_LINE_H_
