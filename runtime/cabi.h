// The runtime as the shim sees it: started once torch is met, and asleep in every other process.
#ifndef KOILA_RUNTIME_CABI_H_
#define KOILA_RUNTIME_CABI_H_

#include "runtime/abi.h"

namespace koila {

// Reads the configuration and opens the log, at the first call. False when koila has nothing to do in this process (KOILA_MODE=off, or a bad value under
// KOILA_STRICT); the table must not be used then.
bool start_runtime();

// The functions that the adapter calls. Valid once started, for the life of the process.
const koila_runtime* runtime_table();

// Who is told of the program's threads; null: nobody yet.
const koila_threads* threads_told();

// To be called around the capture of a CUDA graph. The adapter is told before it begins.
void capture_begins();
void capture_ends();

// To be called when the adapter has attached: from here on there is a report to write at exit.
void runtime_attached(const char* torch_version);

// To be called where the process is about to end without its exit handlers. What they would do for koila is done, once.
void process_ends();

}  // namespace koila

#endif  // KOILA_RUNTIME_CABI_H_
