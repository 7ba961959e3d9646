// Other processes: what a short one says.
#ifndef KOILA_TOOL_CHILD_H_
#define KOILA_TOOL_CHILD_H_

#include <optional>
#include <string>
#include <vector>

namespace koila::tool {

// What the command wrote to its stdout, when it ended well within the time; it is killed otherwise. Its stderr and stdin are nobody's.
std::optional<std::string> output_of(const std::vector<std::string>& command, double seconds);

// As execvp wants it; valid as long as the words.
std::vector<char*> argument_pointers(const std::vector<std::string>& words);

}  // namespace koila::tool

#endif  // KOILA_TOOL_CHILD_H_
