// koila's own log: short lines on stderr ("koila: ..."), or dated ones in KOILA_LOG_FILE. Nothing exists until open(); every function
// may be called from any thread, also in the child of a fork, for there is no lock; and none throws.
#ifndef KOILA_RUNTIME_LOG_H_
#define KOILA_RUNTIME_LOG_H_

#include <string>

namespace koila::log {

// Starts, or starts again, with messages from `level` (enum koila_log_level) on; `path` is expanded (%p, %h), empty is stderr. A file that
// cannot be opened is said once, on stderr, which then takes its place.
//
// The file is opened for each line: a program that closes descriptors which are none of its own, or hands their numbers out again, does no harm.
void open(int level, const std::string& path);

void write(int level, const std::string& message);
bool enabled(int level);

}  // namespace koila::log

#endif  // KOILA_RUNTIME_LOG_H_
