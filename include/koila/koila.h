// koila's C ABI, for tests and for programs in any language. Exported by libkoila.so.
//
// A program reaches it through dlsym (ctypes in Python): it is there only when koila is preloaded or linked. Device numbers are
// CUDA ordinals from 0; the CPU is -1. Every function may be called from any thread, and none throws or exits.
#ifndef KOILA_KOILA_H_
#define KOILA_KOILA_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// What CUDA gives outside a device has a number of its own: page-locked host memory, and managed memory, which moves between host and devices.
enum { KOILA_CPU = -1, KOILA_PINNED = -2, KOILA_MANAGED = -3 };

// What a tensor's memory is for, by when it was made and what became of it (docs/report.md).
enum koila_category {
  KOILA_OTHER = 0,            // made before the first step and no parameter, or in an evaluation
  KOILA_PARAMETERS = 1,       // leaves that a backward pass gave a gradient to
  KOILA_GRADIENTS = 2,        // their .grad
  KOILA_OPTIMIZER_STATE = 3,  // made between a backward pass and the next step, and still alive after that
  KOILA_INPUTS = 4,           // made in a step before its first operator with a gradient
  KOILA_ACTIVATIONS = 5,      // made in a forward pass from there on
  KOILA_WORKSPACE = 6,        // made in a backward pass or an update, and neither a gradient nor state so far
  KOILA_CATEGORIES = 7,
};

// "parameters", "optimizer state"; "other" for what is none of them.
const char* koila_category_name(int category);

// Such as "0.1.0". Lives as long as the process.
const char* koila_version(void);

// Bytes alive on `device` (tensors on the CPU; of a CUDA device, what CUDA gave, with what PyTorch's allocator keeps), the highest that figure
// has been since the last koila_reset_peak, and the number of allocations asked for so far (failed ones included: what KOILA_INJECT_OOM counts).
int64_t koila_live_bytes(int device);
int64_t koila_peak_bytes(int device);
int64_t koila_allocations(int device);

// The peaks start again from what is alive now. The peak of the report stays the peak of the whole run.
void koila_reset_peak(int device);

// A device in figures, in bytes but for the last line's.
typedef struct koila_memory_figures {
  size_t size;                     // sizeof(struct koila_memory_figures), set by the caller: no more than that is written
  int64_t live_bytes;              // of tensors
  int64_t peak_bytes;              // the highest of that since the last koila_reset_peak
  int64_t run_peak_bytes;          // and of the whole run
  int64_t reserved_bytes;          // what the device gave, with what PyTorch's allocator keeps for later: what a budget is held against. On the CPU live_bytes
  int64_t reserved_peak_bytes;     // the highest of that since the last koila_reset_peak
  int64_t budget_bytes;            // in force; 0: none
  int64_t outside_bytes;           // of the device's tensors, kept by koila outside its memory
  int64_t outside_peak_bytes;      // of the whole run
  int64_t by_category[16];         // live_bytes by enum koila_category; 0 from KOILA_CATEGORIES on
  int64_t allocations;             // of tensors' memory, so far
} koila_memory_figures;

// Returns 0, or 1 when koila does not count tensors there: it stays out of the process, the device is unknown, or its allocator tells nothing.
int koila_memory(int device, koila_memory_figures* figures);

// The budget of `device` from now on; 0: none. Returns 0, or 1 if the device is unknown or koila does not account for it.
int koila_set_budget(int device, int64_t bytes);

// The budget of `device` in force, those of koila_begin_budget included; 0: none, or koila does not account for it.
int64_t koila_budget_bytes(int device);

// A budget until koila_end_budget. Of several, and of the device's own (koila_set_budget, the configuration's), the smallest holds; they may end in any
// order. Returns its number, never used again; or 0 if the device is unknown, koila does not account for it, or `bytes` is less than 1. The child of a
// fork has its parent's.
uint64_t koila_begin_budget(int device, int64_t bytes);
void koila_end_budget(uint64_t budget);

// The highest that the bytes of tensors alive on `device` have been since koila_begin_track. Any number of them at once, within and across each other;
// koila_reset_peak is nothing to them. Returns its number, never used again; or 0 where koila_memory returns 1. koila_end_track returns the peak as well.
// The peak of what is no track, or no more, is 0.
uint64_t koila_begin_track(int device);
int64_t koila_track_peak(uint64_t track);
int64_t koila_end_track(uint64_t track);

// Tensors alive on a device, of one category, made by one operator at one place.
typedef struct koila_live_group {
  size_t size;      // of this struct, as koila has it
  int category;     // enum koila_category
  const char* op;     // "aten::addmm"; "" when unknown (KOILA_MODE=track follows no operators)
  const char* where;  // "train.py:31 in forward", innermost first, frames separated by '\n'; "" without KOILA_STACKS=1
  int64_t bytes;
  int64_t count;
  int64_t first_step;  // in which the first of them was made: steps that had ended by then
} koila_live_group;

// Calls `each` for every group alive on `device`, the largest first, on this thread and under no lock of koila's. The strings are good during the call. Returns 0,
// or 1 where koila_memory returns 1, or where there is no memory for it; then `each` is not called.
int koila_live_groups(int device, void (*each)(void* context, const koila_live_group* group), void* context);

// What koila_add_listener may be told of.
enum koila_event_kind {
  KOILA_EVENT_RESCUE = 1,         // an out-of-memory that koila rescued
  KOILA_EVENT_REFUSAL = 2,        // one that it handed on to the program
  KOILA_EVENT_OUT_OF_MEMORY = 3,  // either
  KOILA_EVENT_STEP = 4,           // the end of an outermost backward pass
};

// What the program was doing.
enum koila_phase { KOILA_FORWARD = 0, KOILA_BACKWARD = 1, KOILA_NO_GRAD = 2 /* evaluation, an optimizer: outside backward */ };

// Strings are good during the call. Bytes and rows are 0 where they are unknown.
typedef struct koila_event {
  size_t size;              // of this struct, as koila has it
  int kind;                 // KOILA_EVENT_RESCUE, KOILA_EVENT_REFUSAL or KOILA_EVENT_STEP
  int device;               // of a step: whose tensors took most
  int phase;                // enum koila_phase; of a step: KOILA_BACKWARD
  const char* op;           // operator that ran out, such as "aten::linear"; "" when unknown, and of a step
  const char* reason;       // of a refusal, one sentence; else ""
  int64_t requested_bytes;  // of an out-of-memory
  int64_t live_bytes;       // on the device: when it ran out; at the end of the step
  int64_t peak_bytes;       // of a step: the most within it
  int64_t budget_bytes;     // 0: none
  int64_t micro_batch;      // rows chosen; 0 where nothing was split
  int64_t batch;            // rows of the full batch
  int64_t step;             // the number of a step that ended, from 1; of an out-of-memory, steps that had ended by then
  int64_t rescues;          // of a step: how many there were in it
  int64_t lost;             // events before this one that nobody was told of: more had come than were listened to
} koila_event;

// From now on `function` is called for each event whose kind is among `kinds`, in the order in which they happen, until koila_remove_listener. Returns
// its number, never used again; or 0 where koila stays out of the process, or a thread cannot be started.
//
// The calls come one at a time on a thread of koila's own, which there is from the first koila_add_listener on, and the program does not wait for them: by then it
// has gone on. So the function may take its time, call koila, use tensors, and run out of memory; what happens on that thread within a call is in the report
// and is no event. It must not throw. An event is in the report before it comes here. At most 1000 wait; what comes beyond is counted in `lost`.
//
// Calls end when the program exits, in the order of atexit as of the first koila_add_listener. The child of a fork has no listeners.
uint64_t koila_add_listener(int kinds, void (*function)(void* context, const koila_event* event), void* context);

// What happened before is still told, then no more: once this has returned the function is not running and will not be called. So it must not be called
// with a lock held that the function takes. Within a call (of that listener or another) it waits for nothing, and the rest is not told.
void koila_remove_listener(uint64_t listener);

// A KOILA_INJECT_OOM value, which replaces the one in force; "" or null: none. Its counters start again at 1.
// Returns 0, or 1 if `spec` is not understood (then nothing changes).
int koila_set_inject(const char* spec);

// A placement rule for operators of your own, in the language of KOILA_RULES (docs/rules.md). `where` says where it is written, for messages:
// "file:line". Both are copied. It holds from now on, whether torch or the operator is there yet or not. Returns 0, or 1 with a warning
// when it is not well formed. C++ programs write KOILA_RULE (koila/rule.h), which needs no koila to be there.
int koila_add_rule(const char* rule, const char* where);

// For a program that has loaded this library itself (dlopen with RTLD_GLOBAL), where no LD_PRELOAD could be set, as `import koila` does: koila attaches to the torch that is
// loaded, or to the one that Python will import. What was made before is not counted, and a step that is under way is not rescued. To be called from the thread that trains, in
// Python with its lock held; once is enough, and where koila is attached it does nothing. koila_memory tells whether it counts.
void koila_attach(void);

// Writes the report of the run so far; the format goes by the suffix, as in KOILA_REPORT. Returns 0, or 1 if it cannot be written.
int koila_write_report(const char* path);

#ifdef __cplusplus
}
#endif

#endif  // KOILA_KOILA_H_
