#pragma once

namespace sim {

// Counts the call and sets the last error; the code that a test asked for, else cudaErrorNotSupported.
int unsupported(const char* function);

}  // namespace sim
