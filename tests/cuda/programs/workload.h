// What the test programs and the extensions that they load do with CUDA. Built into programs and into libraries, over any of the simulated runtimes.
//
// Prints each call with its result and what the device holds after it: nothing that depends on addresses, so that two runs can be compared.
#pragma once

extern "C" {

// Goes through every function that gives or takes memory. A megabyte stays allocated if `leak`.
__attribute__((visibility("default"))) void workload(int leak);

// For tests of two runtimes in one process: what happens in one must not show in the other.
__attribute__((visibility("default"))) int take(unsigned long long bytes);  // the error; the memory is kept
__attribute__((visibility("default"))) int give_back();                     // what was taken last
__attribute__((visibility("default"))) int last_error();                    // and clears it
__attribute__((visibility("default"))) unsigned long long used();
}
