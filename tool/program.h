// The program that a command will run in the end, behind scripts, `env` and the like.
#ifndef KOILA_TOOL_PROGRAM_H_
#define KOILA_TOOL_PROGRAM_H_

#include <string>
#include <vector>

namespace koila::tool {

struct Program {
  // What a shell would answer for the command as it stands: 0 it can be run, 126 it is there and cannot, 127 it is not there.
  int status = 0;
  std::string path;      // of the command's first word; "" for 127
  std::string binary;    // the ELF file that runs in the end; "" when there is none, or it cannot be told
  std::string python;    // the interpreter, as called: links are not followed, for a virtual environment is known by its path; "" for others
  std::vector<std::string> python_flags;  // those that change where modules are looked for, such as "-s"
  std::string script;    // the Python program, "" for -c, -m and none
  std::string carrier;   // a program on the way that starts others without handing its environment on, such as "sudo" or "docker"
};

// Looks along `search` (PATH: folders with colons) and reads first lines; runs nothing.
Program find_program(const std::vector<std::string>& command, const std::string& search);

}  // namespace koila::tool

#endif  // KOILA_TOOL_PROGRAM_H_
