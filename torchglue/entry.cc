// Where the preload hands over: koila meets a torch that is loaded and, unless koila comes late, has not run an operator yet.

#include <ATen/DLConvertor.h>
#include <ATen/core/Tensor.h>
#include <pthread.h>

#include "runtime/abi.h"
#include "torchglue/base/engine_task.h"
#include "torchglue/base/foreign_memory.h"
#include "torchglue/memory/cpu_allocator.h"
#include "torchglue/memory/cuda_allocator.h"
#include "torchglue/memory/origin.h"
#include "torchglue/oom/oom_watch.h"
#include "torchglue/operators/own_functions.h"
#include "torchglue/placement/user_rules.h"
#include "torchglue/region/deferred.h"
#include "torchglue/region/launched.h"
#include "torchglue/region/raw_memory.h"
#include "torchglue/region/real_values.h"
#include "torchglue/region/reducer.h"
#include "torchglue/rescue/backward.h"
#include "torchglue/rescue/engine_callbacks.h"
#include "torchglue/rescue/pass_number.h"
#include "torchglue/step/session.h"
#include "torchglue/step/step_owner.h"
#include "torchglue/swapped_tensors.h"
#include "torchglue/updates/late_updates.h"

namespace koila {

namespace {

// Readers that bypass the dispatcher. Each first gives a deferred tensor its value, and tells the tape that something may point into
// the tensor's memory from now on.
struct RawReaders {
  void* (*to_numpy)(const at::Tensor&, bool) = nullptr;
  void* (*wrap_storage)(c10::Storage) = nullptr;
  DLManagedTensor* (*to_dlpack)(const at::Tensor&) = nullptr;
  void* (*to_dlpack_versioned)(const at::Tensor&) = nullptr;
  void* (*to_dlpack_read_only)(const at::Tensor&) = nullptr;
  void (*to_dlpack_non_owning)(const at::Tensor&, void*) = nullptr;
  void (*to_dlpack_as_asked)(const at::Tensor&, void*, bool) = nullptr;
  bool (*has_storage)(const c10::TensorImpl*) = nullptr;
  void (*throw_access_error)(const c10::StorageImpl*) = nullptr;
} real;

struct Resizers {
  void (*cpu)(c10::StorageImpl*, size_t) = nullptr;
  void (*cuda)(c10::StorageImpl*, size_t) = nullptr;
} real_resize;

void prepare(const at::Tensor& tensor) {
  const NoRawAccess koila;
  watched_read([&] { materialise_tensor(tensor); });
  Session& s = session();
  if (!s.rescue || std::this_thread::get_id() != s.owner) return;
  s.pin([&](Tape& tape) { tape.pin(tensor); });
  note_exposed(tensor);
}

void* to_numpy(const at::Tensor& tensor, bool force) {
  prepare(tensor);
  return real.to_numpy(tensor, force);
}

void* wrap_storage(c10::Storage storage) {
  const NoRawAccess koila;
  watched_read([&] { materialise_storage(storage.unsafeGetStorageImpl()); });
  Session& s = session();
  if (s.rescue && std::this_thread::get_id() == s.owner) s.pin([&](Tape& tape) { tape.pin_storage(storage.unsafeGetStorageImpl()); });
  before_storage_is_wrapped(storage.unsafeGetStorageImpl());
  return real.wrap_storage(std::move(storage));
}

DLManagedTensor* to_dlpack(const at::Tensor& tensor) {
  prepare(tensor);
  return real.to_dlpack(tensor);
}

void* to_dlpack_versioned(const at::Tensor& tensor) {
  prepare(tensor);
  return real.to_dlpack_versioned(tensor);
}

void* to_dlpack_read_only(const at::Tensor& tensor) {
  prepare(tensor);
  return real.to_dlpack_read_only(tensor);
}

void to_dlpack_non_owning(const at::Tensor& tensor, void* out) {
  prepare(tensor);
  real.to_dlpack_non_owning(tensor, out);
}

void to_dlpack_as_asked(const at::Tensor& tensor, void* out, bool read_only) {
  prepare(tensor);
  real.to_dlpack_as_asked(tensor, out, read_only);
}

// See Note [Raw pointers].
bool has_storage(const c10::TensorImpl* tensor) {
  const bool has = real.has_storage(tensor);
  // Each kernel asks several times. What is not deferred may be taken by kernels, and by all that runs in a backward pass.
  if (!has || (!DeferredRegistry::any() && (operator_in_progress() || session().engine_depth > 0))) return has;
  if (operator_in_progress()) {
    before_kernel_access(*tensor);
  } else {
    before_raw_access(*tensor);
  }
  return true;
}

void throw_access_error(const c10::StorageImpl* storage) {
  refuse_raw_access_of_program(*storage);
  real.throw_access_error(storage);
}

// Note [Storages that are resized]
// FSDP and offloading give a weight's memory back between forward and backward and fill it anew before backward reads it: storage.resize_(0), resize_(n), weight.data.copy_(). No operator shows the
// first two. What was read of such memory is no more, as before a write that no version counts, and this is the last moment to keep it. An operator that resizes what it writes has told already,
// and what koila's own kernels resize is none of the program's.
template <auto& kReal>
void resize_bytes(c10::StorageImpl* storage, size_t bytes) {
  Session& s = session();
  if (!s.rescue || !s.owned_by_this_thread() || operator_in_progress()) return kReal(storage, bytes);
  if (RegionWork::active() || s.converting || c10::impl::tls_is_dispatch_key_excluded(kInterceptorKey)) return kReal(storage, bytes);
  const NoRawAccess koila;
  watched_read([&] { materialise_storage(storage); });
  s.pin([&](Tape& tape) { tape.before_resize(storage); });
  for (const auto& region : s.live_regions()) region->before_resize(storage);
  s.before_write(storage);
  kReal(storage, bytes);
  for (const auto& region : s.live_regions()) region->resized(storage);
}

template <class F>
void redirect(const koila_redirect& entry, F& real_function, F own) {
  if (entry.real == nullptr || entry.slot == nullptr) return;
  real_function = reinterpret_cast<F>(entry.real);
  *entry.slot = reinterpret_cast<void*>(own);
}

void before_capture() {
  Session& s = session();
  if (s.rescue && std::this_thread::get_id() == s.owner) watched_read([&] { s.settle(); });
}

// Note [Fork]
// A forked child has one thread and a copy of everything. Its tape and regions would go on holding the parent's step; they are emptied,
// by leaking what lies there: it may be half changed, where another thread of the parent was at work on it. For locks see Note [Locks and forks].
void in_child() {
  Session& s = session();
  if (std::this_thread::get_id() != s.owner) {  // who was in the middle of something
    new (&s.signatures) Signatures;
    new (&s.masks) Masks;
    new (&s.proven) ProvenCalls;
    new (&s.updated) decltype(s.updated);
    new (&s.run_whole) decltype(s.run_whole);
    s.converting = s.forward_again = s.functions = false;
    s.in_checkpoint = nullptr;
  }
  new (&s.tape) Tape;
  new (&s.outer_tapes) std::vector<Tape>;
  new (&s.marks) Marks;
  new (&s.named) NamedSeeds;
  new (&s.regions) std::vector<std::weak_ptr<Region>>;
  new (&s.current) std::shared_ptr<Region>;
  new (&s.looked_at) std::vector<std::shared_ptr<Region>>;
  new (&s.sizes) StepSizes;
  new (&s.offload) Offload;
  new (&raw_memory()) RawMemory;
  late_updates().forget();
  s.engine_depth = 0;
  own_steps();
}

void say_of_rules(const std::string& message) { session().warn(message); }

}  // namespace

}  // namespace koila

extern "C" __attribute__((visibility("default"))) int koila_glue_attach(const koila_runtime* runtime, const koila_redirect* redirects,
                                                                        const char* torch_version) {
  using namespace koila;
  if (runtime->version != KOILA_ABI_VERSION) {
    runtime->log(KOILA_LOG_WARN, "libkoila.so and libkoila_torch.so are not of one build; koila stays out. Install both from one build.");
    return 1;
  }
  (void)torch_version;
  Session& s = session();
  s.runtime = runtime;
  own_steps();
  const int mode = runtime->settings->mode;
  if (mode == KOILA_MODE_OFF) return 1;
  set_bytes_in_use(runtime->live_bytes);
  install_cpu_allocator();
  attach_cuda_allocator();  // ready only where koila comes late
  watch_optimizers();
  let_go_of_swapped_tensors();
  ExecuteFn real_execute = nullptr;
  redirect(redirects[KOILA_ENGINE_EXECUTE], real_execute, &execute);
  if (real_execute != nullptr) set_real_execute(real_execute);
  if (mode == KOILA_MODE_TRACK) {
    static constexpr koila_threads kWatched = {[] {}, &watch_optimizers, [] {}};
    runtime->set_threads(&kWatched);
    return 0;
  }
  if (real_execute == nullptr) {
    runtime->log(KOILA_LOG_WARN, "this torch has no torch::autograd::Engine::execute; koila stays out.");
    return 1;
  }
  QueueCallbackFn real_queue_callback = nullptr;
  redirect(redirects[KOILA_QUEUE_CALLBACK], real_queue_callback, &queue_callback);
  if (real_queue_callback != nullptr) set_real_queue_callback(real_queue_callback);
  PrepareForBackwardFn real_prepare = nullptr;
  redirect(redirects[KOILA_REDUCER_PREPARE], real_prepare, &prepare_for_backward);
  if (real_prepare != nullptr) set_real_prepare_for_backward(real_prepare);
  redirect(redirects[KOILA_GRAPH_TASK_ID], real_task_id, &pass_number);
  LaunchFn real_launch = nullptr;
  redirect(redirects[KOILA_LAUNCH], real_launch, &launch);
  if (real_launch != nullptr) set_real_launch(real_launch);
  redirect(redirects[KOILA_TENSOR_TO_NUMPY], real.to_numpy, &to_numpy);
  redirect(redirects[KOILA_STORAGE_WRAP], real.wrap_storage, &wrap_storage);
  redirect(redirects[KOILA_TO_DLPACK], real.to_dlpack, &to_dlpack);
  redirect(redirects[KOILA_TO_DLPACK_VERSIONED], real.to_dlpack_versioned, &to_dlpack_versioned);
  redirect(redirects[KOILA_TO_DLPACK_READ_ONLY], real.to_dlpack_read_only, &to_dlpack_read_only);
  redirect(redirects[KOILA_TO_DLPACK_NON_OWNING], real.to_dlpack_non_owning, &to_dlpack_non_owning);
  redirect(redirects[KOILA_TO_DLPACK_AS_ASKED], real.to_dlpack_as_asked, &to_dlpack_as_asked);
  redirect(redirects[KOILA_HAS_STORAGE], real.has_storage, &has_storage);
  redirect(redirects[KOILA_DATA_ACCESS_ERROR], real.throw_access_error, &throw_access_error);
  redirect(redirects[KOILA_RESIZE_BYTES_CPU], real_resize.cpu, &resize_bytes<real_resize.cpu>);
  redirect(redirects[KOILA_RESIZE_BYTES_CUDA], real_resize.cuda, &resize_bytes<real_resize.cuda>);
  runtime->set_before_capture(&before_capture);
  set_user_rules_log(&say_of_rules);
  runtime->set_rules(&add_user_rule);
  add_shipped_rules();
  pthread_atfork(nullptr, nullptr, &in_child);
  s.rescue = true;
  functions_wait = true;
  s.size_file.load(s.signatures);
  join_threads_of_program();
  static constexpr koila_threads kThreads = {&before_thread, &thread_begins, &thread_ends};
  runtime->set_threads(&kThreads);
  return 0;
}
