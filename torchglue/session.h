// What koila knows of the process it is in: one session, owned by one thread at a time.
#pragma once

#include <c10/core/AutogradState.h>
#include <c10/util/flat_hash_map.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "runtime/abi.h"
#include "torchglue/placement/masks.h"
#include "torchglue/placement/placement.h"
#include "torchglue/plan/signatures.h"
#include "torchglue/plan/size_file.h"
#include "torchglue/region/region.h"
#include "torchglue/rescue/named_seeds.h"
#include "torchglue/rescue/offload.h"
#include "torchglue/rescue/pressure.h"
#include "torchglue/rescue/sizing.h"
#include "torchglue/step_owner.h"
#include "torchglue/tape/tape.h"

namespace koila {

// A real tensor whose split is known: a seed, a view of one, or a value that a region gave up. Operators on it join a region.
struct Mark {
  c10::weak_intrusive_ptr<c10::TensorImpl> keep_address;
  Placement placement;
  int64_t batch = 0;
  int64_t micro_batch = 0;
};

class Marks {
 public:
  void add(const at::Tensor& tensor, const Placement& placement, int64_t batch, int64_t micro_batch);
  const Mark* find(const c10::TensorImpl* impl) const;
  void remove(const c10::TensorImpl* impl) { marks_.erase(impl); }
  void clear() { marks_.clear(); }
  bool any() const { return !marks_.empty(); }

 private:
  ska::flat_hash_map<const c10::TensorImpl*, Mark> marks_;
};

// What KOILA_VERIFY has found good.
struct ProvenCalls {
  ska::flat_hash_set<size_t> calls;           // operators' rules, by call
  ska::flat_hash_map<size_t, int> shapes;     // the same but for the sizes: how many have been tested
  ska::flat_hash_set<size_t> steps;           // passes over a step, and conversions
  ska::flat_hash_map<size_t, int> lines;      // operators whose line has been looked for: how often
};

struct Session {
  const koila_runtime* runtime = nullptr;
  bool rescue = false;       // mode is rescue or lazy
  bool converting = false;   // operators of a step on the tape are run again: nothing is recorded
  bool forward_again = false;  // and that forward pass is one whose backward pass ran out: cut into stages as one that runs out itself
  int engine_depth = 0;      // nested Engine::execute calls of the owner's step
  bool in_checkpoint = false;  // the call came under saved-tensor hooks, which are off for the moment
  bool functions = false;    // the step has autograd.Functions in it, and its backward is watched for steps within
  Tape tape;
  std::vector<Tape> outer_tapes;  // of the passes that the one in progress runs within
  Marks marks;
  NamedSeeds named;
  Signatures signatures;
  StepSizes sizes;
  Offload offload;
  SizeFile size_file;
  Masks masks;
  Pressure pressure;
  ProvenCalls proven;
  bool had_backward = false;
  ska::flat_hash_set<const void*> updated;  // parameters written to since the last backward pass: an optimizer is at work
  std::vector<std::string> run_whole;  // operators that ran at full batch, for who asks: see api/by_hand.cc
  std::shared_ptr<Region> current;            // the region that operators join
  std::vector<std::weak_ptr<Region>> regions;  // all that may still hold captures

  // Regions still alive; forgets the others.
  std::vector<std::shared_ptr<Region>> live_regions();
  // The region for rows of this batch: the current one when it fits, else a new one.
  std::shared_ptr<Region> region_for(int64_t batch, int64_t micro_batch, at::Device device);

  // An in-place write to `storage` (or null: to none) is about to happen. Regions that read it do so before.
  void before_write(const c10::StorageImpl* storage);

  // What comes next has nothing to do with what was recorded.
  void forget_step();
  // The same, and gives everything that is deferred its value.
  void settle();
  // The same, and leaves the rest of the process alone.
  void stay_out(const char* why);

  // While a CUDA graph is captured koila stays out: of what is recorded there nothing runs yet.
  bool capturing() const { return __atomic_load_n(runtime->captures, __ATOMIC_ACQUIRE) != 0; }

  // Rows of the batch that this step is split by already; 0: it is not.
  int64_t batch_in_use();

  std::atomic<bool> cuda_waits{true};  // PyTorch's CUDA allocator is still to be met
  bool meets_cuda() const { return cuda_waits.load(std::memory_order_relaxed) && __atomic_load_n(runtime->torch_uses_cuda, __ATOMIC_ACQUIRE) != 0; }

  std::atomic<std::thread::id> owner;  // see Note [Whose steps are followed]
  // Whether this thread may touch regions: the owner, or an engine thread that works for the owner's backward.
  bool owned_by_this_thread() const { return works_for_owner(); }
  // To every tape of the steps under way.
  template <class F>
  void pin(F&& f) {
    f(tape);
    for (Tape& outer : outer_tapes) f(outer);
  }
  // Note [A step within a backward pass]
  // A checkpoint (use_reentrant=True), or another autograd.Function, runs part of the model again in its backward, with gradients, and runs
  // a backward pass of its own through it. That is a step like any other, on a tape of its own, and can be rescued. It must
  // compute what the forward pass computed, so random draws in it, and in the forward pass's twin of it under no_grad, are made at
  // full batch, as the program's generator gives them.
  // Not the second run of a checkpoint with saved-tensor hooks, which counts what operators save.
  bool replays() const {
    return engine_depth > 0 && functions && c10::AutogradState::get_tls_state().get_grad_mode() && !NoSavedTensorHooksGuard::active();
  }
  bool draws_whole() const { return engine_depth > 0 || !c10::AutogradState::get_tls_state().get_grad_mode(); }
  bool verifies() const { return runtime->settings->verify != KOILA_VERIFY_NOTHING; }
  bool verifies_always() const { return runtime->settings->verify == KOILA_VERIFY_EVERY; }
  bool lazy() const { return runtime->settings->mode == KOILA_MODE_LAZY; }
  int64_t forced_micro_batch() const { return runtime->settings->microbatch; }
  void log(int level, const std::string& message) const;
  // To the log, and to the report.
  void warn(const std::string& message) const;
};

// A device as the runtime numbers it.
inline int device_number(at::Device device) { return device.is_cpu() ? static_cast<int>(KOILA_CPU) : static_cast<int>(device.index()); }
inline at::Device device_of_number(int number) {
  return number == KOILA_CPU ? at::Device(at::kCPU) : at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(number));
}

// The session; its runtime is null until attach(). Asked several times for each operator and each piece of memory.
Session& make_session();
inline constinit Session* the_session = nullptr;
inline Session& session() { return the_session != nullptr ? *the_session : make_session(); }

}  // namespace koila
