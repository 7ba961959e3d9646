// koila's C ABI, for tests and for programs in any language. Exported by libkoila.so.
//
// A program reaches it through dlsym (ctypes in Python): it is there only when koila is preloaded or linked. Device numbers are
// CUDA ordinals from 0; the CPU is -1. Every function may be called from any thread, and none throws or exits.
#ifndef KOILA_KOILA_H_
#define KOILA_KOILA_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Such as "0.1.0". Lives as long as the process.
const char* koila_version(void);

// Bytes of tensors alive on `device`, the highest that figure has been since the last koila_reset_peak, and the number of
// allocations asked for so far (failed ones included: what KOILA_INJECT_OOM counts).
int64_t koila_live_bytes(int device);
int64_t koila_peak_bytes(int device);
int64_t koila_allocations(int device);

// The peak starts again from what is alive now. The peak of the report stays the peak of the whole run.
void koila_reset_peak(int device);

// The budget of `device` from now on; 0: none. Returns 0, or 1 if the device is unknown or koila does not account for it.
int koila_set_budget(int device, int64_t bytes);

// The budget of `device` in force; 0: none, or koila does not account for it.
int64_t koila_budget_bytes(int device);

// A KOILA_INJECT_OOM value, which replaces the one in force; "" or null: none. Its counters start again at 1.
// Returns 0, or 1 if `spec` is not understood (then nothing changes).
int koila_set_inject(const char* spec);

// A placement rule for operators of your own, in the language of KOILA_RULES (docs/rules.md). `where` says where it is written, for messages:
// "file:line". Both are copied. It holds from now on, whether torch or the operator is there yet or not. Returns 0, or 1 with a warning
// when it is not well formed. C++ programs write KOILA_RULE (koila/rule.h), which needs no koila to be there.
int koila_add_rule(const char* rule, const char* where);

// Writes the report of the run so far; the format goes by the suffix, as in KOILA_REPORT. Returns 0, or 1 if it cannot be written.
int koila_write_report(const char* path);

#ifdef __cplusplus
}
#endif

#endif  // KOILA_KOILA_H_
