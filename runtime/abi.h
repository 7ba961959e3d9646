// The C ABI between libkoila.so (shim + runtime) and libkoila_torch.so.
//
// Only plain C data crosses: no C++ type, no exception, no ownership. Both sides are built from this tree, and `version` still is
// checked, because a user may have copied one library without the other.
//
// Threads: every function of koila_runtime may be called from any thread. koila_glue functions are called from the thread named.
#ifndef KOILA_RUNTIME_ABI_H_
#define KOILA_RUNTIME_ABI_H_

#include <stddef.h>
#include <stdint.h>

#include "koila/koila.h"  // enum koila_category, enum koila_phase, places

#ifdef __cplusplus
extern "C" {
#endif

enum { KOILA_ABI_VERSION = 16 };

enum koila_mode { KOILA_MODE_OFF = 0, KOILA_MODE_TRACK = 1, KOILA_MODE_RESCUE = 2, KOILA_MODE_LAZY = 3 };
enum koila_policy { KOILA_POLICY_MODEL = 0, KOILA_POLICY_POW2 = 1, KOILA_POLICY_FASTEST = 2 };

enum koila_verify { KOILA_VERIFY_NOTHING = 0, KOILA_VERIFY_FIRST = 1, KOILA_VERIFY_EVERY = 2 };

// Rungs of the ladder as bits. Refusing is the last one: it is always there, and has no bit.
enum koila_rung {
  KOILA_RUNG_RETRY = 1 << 0,    // free caches, and run the operator again
  KOILA_RUNG_SPLIT = 1 << 1,    // micro-batches
  KOILA_RUNG_OFFLOAD = 1 << 2,  // values outside the device's memory
  KOILA_RUNGS_ALL = (1 << 3) - 1,
};

// What the program was doing when a tensor's memory was asked for.
enum koila_when {
  KOILA_SETUP = 0,         // before the first backward pass began, and no graph was made yet
  KOILA_IN_FORWARD = 1,    // with gradients, after the step's first operator that has one
  KOILA_BEFORE_GRAPH = 2,  // with gradients, before it
  KOILA_IN_BACKWARD = 3,
  KOILA_IN_OPTIMIZER = 4,  // within the step() of an optimizer
  KOILA_WITHOUT_GRAPH = 5, // under no_grad, after the first backward pass
};

// Where a tensor's memory comes from.
typedef struct koila_origin {
  uint8_t when;    // enum koila_when
  uint16_t op;     // number of the operator, see koila_runtime::op_number; 0: unknown
  uint32_t place;  // number of the source line, see koila_runtime::place_number; 0: unknown
} koila_origin;

// spdlog's levels by value.
enum koila_log_level {
  KOILA_LOG_TRACE = 0,
  KOILA_LOG_DEBUG = 1,
  KOILA_LOG_INFO = 2,
  KOILA_LOG_WARN = 3,
  KOILA_LOG_ERROR = 4,
  KOILA_LOG_CRITICAL = 5,
  KOILA_LOG_OFF = 6,
};

// A place by number: CUDA ordinals from 0, as the process sees them, or KOILA_CPU, KOILA_PINNED and KOILA_MANAGED (koila.h).
enum { KOILA_CUDA_DEVICES = 16 };

// What torchglue needs to know of the configuration. Immutable after load; strings live as long as the process.
typedef struct koila_settings {
  int mode;                  // enum koila_mode
  int64_t microbatch;        // rows; 0: not forced
  int64_t cpu_budget_bytes;  // 0: no budget
  int log_level;             // messages below it are not worth formatting
  int verify;                // enum koila_verify
  const char* spill_dir;     // existing folder for unlinked spill files, never null
  int policy;                // enum koila_policy
  int ladder;                // bits of enum koila_rung; 0: every out-of-memory is refused
  const char* cache;         // file of learned micro-batch sizes, which need not exist; never null, "" when none
  int stacks;                // 1: find the source line of every tensor
} koila_settings;

enum koila_outcome { KOILA_RESCUED = 0, KOILA_REFUSED = 1 };

// One out-of-memory, once its outcome is known. Strings are copied by the callee.
typedef struct koila_oom_event {
  int device;
  int phase;                // enum koila_phase
  const char* op;           // operator name, such as "aten::linear", or "" when unknown
  int64_t requested_bytes;  // 0 when unknown
  int64_t live_bytes;       // on that device when it ran out
  int64_t budget_bytes;     // 0: none
  int outcome;              // enum koila_outcome
  const char* reason;       // a refusal's reason, one sentence; "" for a rescue
  int64_t micro_batch;      // rows chosen; 0 for a refusal, and where nothing was split
  int64_t batch;            // rows of the full batch; 0 when unknown
  int rung;                 // enum koila_rung: what rescued it; 0 for a refusal
  double seconds;           // from the error to the outcome
} koila_oom_event;

// One region that ran, reported at its release.
typedef struct koila_region_event {
  int device;
  int64_t batch;         // rows
  int64_t micro_batch;   // rows, the size in use at the end
  int64_t runs;          // micro-batch passes in all, forward-only ones included
  int64_t forward_only;  // of these, passes for values read before backward
  int64_t halvings;      // times the micro-batch had to shrink inside the region
  int64_t operators;     // operator calls in the region
  double seconds;        // wall time inside the region's node and materialisations
} koila_region_event;

// What is seen of how the program trains. Counts are added up; of bytes the most is kept.
enum koila_fact {
  KOILA_FACT_AUTOCAST = 0,               // steps with torch.autocast
  KOILA_FACT_HALF_PARAMETERS_BYTES = 1,  // parameters in a 16-bit type
  KOILA_FACT_CHECKPOINTS = 2,            // steps with torch.utils.checkpoint
  KOILA_FACT_KEPT_GRADIENTS = 3,         // steps, of those looked at, whose forward pass began with gradients that an update had used
  KOILA_FACT_KEPT_GRADIENTS_BYTES = 4,
  KOILA_FACT_GRAPH_IN_EVALUATION = 5,    // forward passes with gradients that no backward pass followed
  KOILA_FACT_GRAPH_IN_EVALUATION_BYTES = 6,
  KOILA_FACT_FOREACH_BYTES = 7,          // results of one multi-tensor operator of an optimizer
  KOILA_FACT_FUSED_OPTIMIZER = 8,        // updates by a fused one
  KOILA_FACT_EXPANDABLE_SEGMENTS = 9,    // 1: in use
  KOILA_FACT_FRAGMENTED_BYTES = 10,      // cached by PyTorch's CUDA allocator at an out-of-memory, enough for the request, and in pieces
  KOILA_FACTS = 11,
};

// What adds up. Strings are copied by the callee. A later one of the same device, category, op and where takes its place; without bytes and nodes it is taken off.
typedef struct koila_leak {
  int device;
  int category;            // enum koila_category
  const char* op;          // that made the tensors, "" when unknown
  const char* where;       // in the program, "" when unknown
  const char* holder;      // what in the program keeps them, "" when unknown
  int64_t bytes;           // alive by now
  int64_t bytes_per_step;
  int64_t first_step;
  int64_t graph_nodes;     // 0, or nodes of autograd graphs that are kept: then bytes are of the process's memory at large, not of tensors
} koila_leak;

// Threads that the program makes, not those that PyTorch, OpenMP or CUDA make for themselves. No function throws.
typedef struct koila_threads {
  void (*before)(void);  // called on the thread that makes another
  void (*begins)(void);  // called on the new thread, before and after its function
  void (*ends)(void);
} koila_threads;

typedef struct koila_runtime {
  uint32_t version;  // KOILA_ABI_VERSION
  const koila_settings* settings;

  void (*log)(int level, const char* message);

  // Asks for `bytes` on `device`: 0 if they fit (then they are counted live), else nonzero and nothing is counted: 1 over the
  // budget, 2 made to fail by KOILA_INJECT_OOM.
  int (*reserve)(int device, size_t bytes);
  void (*release)(int device, size_t bytes);
  int64_t (*live_bytes)(int device);
  int64_t (*peak_bytes)(int device);
  int64_t (*budget_bytes)(int device);  // 0: none

  // Allocations on a device that failed so far, over the budget or by CUDA's word. A caching allocator empties its cache and asks again: a rise
  // means pressure, and not yet an out-of-memory.
  int64_t (*failed_allocations)(int device);
  // Bytes of tensors alive on a device, and the most there were since mark_peak() was called for it.
  int64_t (*tensor_bytes)(int device);
  void (*mark_peak)(int device);
  int64_t (*marked_peak)(int device);
  // A tensor's memory that came, on the CPU or within a block of the caching allocator; and went. Unknown addresses are no error. Waits for nothing but
  // short locks of its own, so that an allocator may call it under its lock.
  void (*on_tensor)(int device, uintptr_t address, int64_t bytes, koila_origin origin);
  void (*on_tensor_gone)(int device, uintptr_t address, int64_t bytes);
  void (*set_category)(uintptr_t address, int category);  // enum koila_category
  uint16_t (*op_number)(const char* op);
  uint32_t (*place_number)(const char* place);  // as Holder::where in runtime/report/data.h
  // An outermost backward pass begins.
  void (*begin_backward)(void);
  // What regions keep of a device's tensors outside its memory (in a file for the CPU, in pinned memory for a CUDA device) grew, or shrank.
  void (*on_outside)(int device, int64_t change);
  // Becomes 1, from 0, with the first memory that PyTorch's CUDA allocator (libc10_cuda.so) got on a device. To be read atomically.
  const int* torch_uses_cuda;
  // Memory of a device that PyTorch's CUDA allocator got before koila came: counted from now on, and given back by a cudaFree of that address.
  void (*on_earlier_segment)(int device, uintptr_t address, size_t bytes);
  // CUDA graphs being captured. To be read atomically. `before` is called before each capture begins, on the thread that begins it.
  const int* captures;
  void (*set_before_capture)(void (*before)(void));
  // From now on `threads`, which lives as long as the process, is told of each thread that the program makes.
  void (*set_threads)(const koila_threads* threads);
  // Placement rules of the user's own (KOILA_RULES, koila_add_rule): `add` is called for each that there is, in the order in which they came,
  // and from then on for each that comes, one at a time, on the thread that adds it. `rule` is well formed (runtime/rule_text.h); `where`
  // is where it was written, such as "my.rules:12". Both are to be copied.
  void (*set_rules)(void (*add)(const char* rule, const char* where));

  void (*on_oom)(const koila_oom_event*);
  void (*on_region)(const koila_region_event*);
  void (*on_step)(void);                            // a step boundary (end of an outermost backward)
  void (*on_full_batch)(const char* op, int64_t bytes);  // an op ran at full batch for want of a rule
  void (*on_note)(const char* note);  // one line for the report, such as why koila stayed out; repeated notes are kept once
  void (*on_fact)(int fact, int64_t value);  // enum koila_fact
  void (*on_leak)(const koila_leak*);
  // A leak that nobody has said the holder of, once each: fills `leak`, whose strings are good until this thread asks again, and the addresses of some of its tensors,
  // the latest first, of which it returns the number. 0: there is none. To be asked after on_step().
  int (*leak_to_name)(koila_leak* leak, uintptr_t* addresses, int at_most);
  // A check found the step wrong: `json` is what there is to know of it, without anything of the user's data. Kept in a file to send in, once a process.
  void (*on_mismatch)(const char* json);
  // on_tensor_gone() and release() in one, for an allocator that every free comes through.
  void (*give_back)(int device, uintptr_t address, size_t bytes);
} koila_runtime;

// Functions of torch that the shim interposes with a jump through a slot. Each starts as the real function; torchglue may store
// its own, of the same C++ signature. A null `real` means that this torch has no such function.
typedef struct koila_redirect {
  void* real;
  void** slot;
} koila_redirect;

enum koila_redirected {
  KOILA_ENGINE_EXECUTE = 0,        // torch::autograd::Engine::execute
  KOILA_TENSOR_TO_NUMPY = 1,       // torch::utils::tensor_to_numpy(at::Tensor const&, bool)
  KOILA_STORAGE_WRAP = 2,          // THPStorage_Wrap(c10::Storage)
  KOILA_TO_DLPACK = 3,             // at::toDLPack(at::Tensor const&)
  KOILA_TO_DLPACK_VERSIONED = 4,   // at::toDLPackVersioned(at::Tensor const&)
  KOILA_TO_DLPACK_NON_OWNING = 5,  // at::toDLPackNonOwning(at::Tensor const&, DLTensor*)
  KOILA_HAS_STORAGE = 6,           // c10::TensorImpl::has_storage() const
  KOILA_DATA_ACCESS_ERROR = 7,     // c10::StorageImpl::throw_data_ptr_access_error() const
  KOILA_QUEUE_CALLBACK = 8,        // torch::autograd::Engine::queue_callback(std::function<void()>)
  KOILA_REDUCER_PREPARE = 9,       // c10d::Reducer::prepare_for_backward(std::vector<at::Tensor> const&)
  KOILA_LAUNCH = 10,               // at::launch(std::function<void()>)
  KOILA_RESIZE_BYTES_CPU = 11,      // at::native::resize_bytes_cpu(c10::StorageImpl*, size_t)
  KOILA_RESIZE_BYTES_CUDA = 12,     // at::native::resize_bytes_cuda(c10::StorageImpl*, size_t)
  KOILA_GRAPH_TASK_ID = 13,         // torch::autograd::get_current_graph_task_id()
  KOILA_TO_DLPACK_AS_ASKED = 14,    // at::toDLPackNonOwning(at::Tensor const&, DLTensor*, bool read_only), in place of 5 in torch 2.15
  KOILA_TO_DLPACK_READ_ONLY = 15,   // at::toDLPackVersionedReadOnly(at::Tensor const&)
  KOILA_REDIRECTED_COUNT = 16,
};

// Exported by libkoila_torch.so as `koila_glue_attach`, called once, on the thread that loads torch, after torch's libraries are
// loaded and before the program's first operator. `torch_version` is what the process runs ("" when unknown).
// Returns 0 when attached; else koila stays out, and has been told why through `log` and `on_note`.
typedef int (*koila_glue_attach_fn)(const koila_runtime*, const koila_redirect* redirects /* [KOILA_REDIRECTED_COUNT] */,
                                    const char* torch_version);

#ifdef __cplusplus
}
#endif

#endif  // KOILA_RUNTIME_ABI_H_
