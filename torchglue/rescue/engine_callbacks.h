// What hooks queue on the autograd engine to be called at the end of a backward pass (Engine::queue_callback).
#pragma once

#include <torch/csrc/autograd/engine.h>

#include <functional>
#include <memory>
#include <vector>

namespace koila {

// Note [Callbacks of a pass that ran out]
// The engine calls them when the pass is done, and forgets them when it fails. What queued them, a reducer of DistributedDataParallel whose gradients are
// all there, does not do so again in the pass that takes over. So they are kept, and queued again there: before the first one of its own, or in
// a pass of theirs at the end. One that has begun is not called again: the failure was its own, and that out-of-memory is refused.
class EngineCallbacks {
 public:
  // Watches what is queued in the pass that the caller begins on this thread, for as long as it lives.
  EngineCallbacks();
  ~EngineCallbacks();
  EngineCallbacks(const EngineCallbacks&) = delete;
  EngineCallbacks& operator=(const EngineCallbacks&) = delete;

  // Whether the engine has begun to call them.
  bool begun() const;
  // The pass has failed, and the caller is about to run another one in its place.
  void pass_over();
  // That one is done: what is still to be called.
  std::vector<std::function<void()>> take();

 private:
  friend void queue_callback(torch::autograd::Engine* engine, std::function<void()> callback);
  friend void note_pass_within(int id);

  struct Queued {
    std::function<void()> callback;
    bool begun = false;
  };

  int id_ = -1;  // of the engine's task; -1: not known yet
  std::vector<std::shared_ptr<Queued>> queued_;
  std::vector<std::function<void()>> from_before_;
};

using QueueCallbackFn = void (*)(torch::autograd::Engine*, std::function<void()>);

// Stands in for torch::autograd::Engine::queue_callback; `set_real_queue_callback` names the real one first.
void set_real_queue_callback(QueueCallbackFn real);
void queue_callback(torch::autograd::Engine* engine, std::function<void()> callback);

// A pass begins within the engine's task of that number.
void note_pass_within(int id);

// Calls them at the end of a backward pass with nothing else in it. `execute`: the engine's own.
void run_callbacks(std::vector<std::function<void()>> callbacks, const std::function<void(const torch::autograd::edge_list&, const torch::autograd::variable_list&)>& execute);

}  // namespace koila
