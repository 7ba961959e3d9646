// What koila knows of the process it is in: one session, owned by one thread at a time.
#pragma once

#include <c10/core/AutogradState.h>
#include <c10/core/Device.h>
#include <c10/util/flat_hash_map.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "torchglue/base/process.h"
#include "torchglue/base/tls.h"
#include "torchglue/placement/masks.h"
#include "torchglue/sizing/signatures.h"
#include "torchglue/sizing/size_file.h"
#include "torchglue/sizing/sizing.h"
#include "torchglue/step/marks.h"
#include "torchglue/step/fresh_zeros.h"
#include "torchglue/step/named_seeds.h"
#include "torchglue/step/offload.h"
#include "torchglue/step/proven_calls.h"
#include "torchglue/step/saved_results.h"
#include "torchglue/tape/tape.h"

namespace koila {

class Region;

// Thread contract: the owner of the step, or an engine thread that works for it. Process is of any thread.
struct Session : Process, Moment {
  Tape tape;
  std::vector<Tape> outer_tapes;  // of the passes that the one in progress runs within
  Marks marks;
  NamedSeeds named;
  Signatures signatures;
  StepSizes sizes;
  Offload offload;
  SizeFile size_file;
  Masks masks;
  FreshZeros fresh_zeros;
  SavedResults saved_results;
  ProvenCalls proven;
  ska::flat_hash_set<const void*> updated;  // parameters written to since the last backward pass: an optimizer is at work
  std::vector<std::string> run_whole;  // operators that ran at full batch; read by api/by_hand.cc
  std::shared_ptr<Region> current;            // the region that operators join
  std::vector<std::weak_ptr<Region>> regions;  // all that may still hold captures
  std::vector<std::shared_ptr<Region>> looked_at;  // see Note [Tensors that no operator made]

  // --- region/of_session.cc ---
  // Regions still alive; forgets the others.
  std::vector<std::shared_ptr<Region>> live_regions();
  // The region for rows of this batch: the current one when it fits, else a new one.
  std::shared_ptr<Region> region_for(int64_t batch, int64_t micro_batch, at::Device device);

  // An in-place write to `storage` (or null: to none) is about to happen. Regions that read it do so before.
  void before_write(const c10::StorageImpl* storage);

  // Forgets the step, and gives everything that is deferred its value.
  void settle();
  // The same, and leaves the rest of the process alone.
  void stay_out(const char* why);

  // Rows of the batch that this step is split by already; 0: it is not.
  int64_t batch_in_use();
  // Whether anything of a region is left, or deferred.
  bool holds_region();

  // What comes next has nothing to do with what was recorded.
  void forget_step(bool but_for_tape = false);

  bool owned_by_this_thread() const { return works_for_owner(); }
  // To every tape of the steps under way. The program may look at memory, or something writes to it that no operator shows.
  template <class F>
  void pin(F&& f) {
    fresh_zeros.forget();
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
};

// The session; its runtime is null until attach(). Asked several times for each operator and each piece of memory.
Session& make_session();
inline constinit Session* the_session = nullptr;
inline Session& session() { return the_session != nullptr ? *the_session : make_session(); }

}  // namespace koila
