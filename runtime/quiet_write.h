// Writing that the program does not notice: koila is a guest in its process.
//
// Note [No signal of koila's]
// A write may raise a signal that ends the process: SIGPIPE where nobody reads the pipe any more, SIGXFSZ beyond RLIMIT_FSIZE, SIGTTOU (which stops it) from the
// background of a terminal with `stty tostop`. The program never wrote those bytes, so the signal is none of its own. It is blocked in the writing thread alone,
// for the one call, and taken away where that call has raised it; the program's own dispositions and masks stay as they are.
//
// Nothing here throws, and errno is the caller's to read, as after the plain call.
#ifndef KOILA_RUNTIME_QUIET_WRITE_H_
#define KOILA_RUNTIME_QUIET_WRITE_H_

#include <sys/types.h>

#include <string_view>

namespace koila {

// write(), ftruncate() and posix_fallocate() of the C library, without a signal.
ssize_t quiet_write(int file, const void* data, std::size_t bytes);
int quiet_ftruncate(int file, off_t bytes);
int quiet_fallocate(int file, off_t from, off_t bytes);

// All of it, whatever interrupts it. False with errno set where there is no more room, nobody who reads, or the like.
bool write_all(int file, std::string_view text);

// open(), but never one of the descriptors 0 to 2: where the program has closed one of these, what it goes on to write there would land in the file.
// With O_CLOEXEC, and O_NOCTTY.
int quiet_open(const char* path, int flags, mode_t mode = 0);

// The stderr that the process was started with.
//
// Descriptor 2 is not always stderr: where it was closed, the program's next file gets its number. So what it is at the start is remembered, and nothing is
// written there once it is something else.
class StandardError {
 public:
  // To be called as the library is loaded. Where it was not, the first question about it remembers.
  static void remember();
  // Whether descriptor 2 is still what it was.
  static bool is_there();
  // Not at all, where it is something else by now; and where nobody takes the text for a second, no further.
  static void write(std::string_view text);
};

}  // namespace koila

#endif  // KOILA_RUNTIME_QUIET_WRITE_H_
