// Small looks at files and names. Nothing here throws.
#ifndef KOILA_TOOL_FILES_H_
#define KOILA_TOOL_FILES_H_

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace koila::tool {

// The first `most` bytes of a file, or of one in /proc; nothing when it cannot be opened.
std::optional<std::string> read_file(const std::string& path, std::size_t most = std::size_t{64} << 20);

// Beside `path`, and then in its place: never half a file. "-" is stdout. "" when all went well, else what did not.
std::string write_whole(const std::string& path, const std::string& text);

bool is_file(const std::string& path);
bool is_folder(const std::string& path);

// "lib/x.so" is in "lib", and is named "x.so"; a name alone is in ".".
std::string folder_of(const std::string& path);
std::string name_of(const std::string& path);

// As it reads from the root, links followed; the path itself where that cannot be told.
std::string real_path(const std::string& path);

// What stands between the separators, without empty parts.
std::vector<std::string> split(std::string_view text, std::string_view separators);

std::string join(const std::vector<std::string>& parts, const std::string& separator);

// The words as a shell would have to be given them.
std::string shell_words(const std::vector<std::string>& words);

// A process's variable, "" when it is not set.
std::string variable(const char* name);

}  // namespace koila::tool

#endif  // KOILA_TOOL_FILES_H_
