// How koila writes a file: whole or not at all, into a new one beside it that is then renamed. Everything that it leaves on a disk is made here.
//
// Note [Names that somebody else may have planted]
// A file may be asked for in a folder that others write to as well, such as /tmp. A link or a pipe that one of them has put there, at the name itself or at that
// of the new file, must neither lead anywhere nor keep the process waiting. So the new file is always made (O_EXCL), never opened, under a name that is free, for its
// user alone (0600); and renaming replaces a link, where writing would follow it. What is neither a file nor a link, such as a device, is left alone: as root,
// renaming would replace it for the whole machine.
#ifndef KOILA_RUNTIME_WHOLE_FILE_H_
#define KOILA_RUNTIME_WHOLE_FILE_H_

#include <sys/stat.h>

#include <string>
#include <string_view>

namespace koila {

// A new file beside the one that it is to become.
struct PartialFile {
  int file = -1;     // open for reading and writing; -1: there is none
  std::string path;  // "run.json.4711.partial", with more behind the number where that is taken
  int error = 0;     // an errno
};
PartialFile make_partial(const std::string& path);

// Takes the place of `path`; `partial` is removed where it cannot. An errno, 0 when all went well. EEXIST: what is there is neither a file nor a link.
int rename_partial(const std::string& partial, const std::string& path);

// An errno, 0 when all went well.
int write_whole_file(const std::string& path, std::string_view text);

// The same for a file that several processes write to, one at a time under a lock of the caller's: what one that was killed has left beside it goes. `like`: the
// file that is replaced, whose owner and permissions it is to keep; null when no file is replaced.
int write_shared_file(const std::string& path, std::string_view text, const struct stat* like);

// What an error of these means: "Is a directory", or that there is something else than a file.
std::string file_problem(int error);

}  // namespace koila

#endif  // KOILA_RUNTIME_WHOLE_FILE_H_
