// What the environment's variables alone do not tell: the process that the library is in, and the machine.
#ifndef KOILA_RUNTIME_SURROUNDINGS_H_
#define KOILA_RUNTIME_SURROUNDINGS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/config.h"
#include "runtime/rule_text.h"

namespace koila {

// The words of the process's command line; none where it cannot be read. 4 KiB at most.
std::vector<std::string> read_arguments();

// A worker that Python's multiprocessing started afresh, or had a server fork, by its command line; its parent has the program's report.
bool is_spawned_worker(const std::vector<std::string>& arguments);

// A path as it is meant now: the program may change its folder before it is used. "" stays "".
std::string absolute_path(const std::string& path);

// These add to the problems, as parse_config does.

// An existing folder for spill files.
std::string find_spill_dir(ParsedConfig& parsed);
// Bytes; 0: none.
std::int64_t find_cpu_budget(ParsedConfig& parsed);
// The rules of the file that KOILA_RULES names; what is wrong with it is worth a line in the report too.
ParsedRules find_rules(ParsedConfig& parsed);

}  // namespace koila

#endif  // KOILA_RUNTIME_SURROUNDINGS_H_
