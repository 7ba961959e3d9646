#include "torchglue/memory/origin.h"

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <c10/core/AutogradState.h>
#include <c10/util/Type.h>
#include <c10/util/flat_hash_map.h>
#include <torch/csrc/autograd/function.h>

#include <atomic>
#include <cstring>
#include <string>
#include <typeinfo>
#include <utility>

#include "torchglue/base/engine_task.h"
#include "torchglue/base/hot.h"
#include "torchglue/base/process.h"
#include "torchglue/base/source_line.h"
#include "torchglue/op_traits.h"

namespace koila {

namespace {

struct ThisThread {
  uint32_t place = 0;
  uint32_t recorded_place = 0;
  int when = -1;              // enum koila_when; -1: as it looks
  int optimizers = 0;         // steps of optimizers under way
  uint64_t optimized = 0;     // steps of optimizers that are over
  uint64_t graph_began = 0;   // autograd's sequence number when the last step ended: as long as it stands there, no graph has been begun
};

KOILA_HOT constinit thread_local ThisThread this_thread;

std::atomic<bool> stepped{false};  // there was a backward pass

koila_when when_now() {
  if (this_thread.when >= 0) return static_cast<koila_when>(this_thread.when);
  if (engine_task() != -1) return KOILA_IN_BACKWARD;
  if (this_thread.optimizers > 0) return KOILA_IN_OPTIMIZER;
  const bool later = stepped.load(std::memory_order_relaxed);
  if (!c10::AutogradState::get_tls_state().get_grad_mode()) return later ? KOILA_WITHOUT_GRAPH : KOILA_SETUP;
  if (at::sequence_number::peek() != this_thread.graph_began) return KOILA_IN_FORWARD;
  return later ? KOILA_BEFORE_GRAPH : KOILA_SETUP;
}

// Not Node::name(): a Python function's takes the GIL.
uint16_t number_of(const std::type_info& node) {
  KOILA_HOT static constinit thread_local ska::flat_hash_map<const std::type_info*, uint16_t>* numbers = nullptr;  // never destroyed: memory is given back while a thread ends
  if (numbers == nullptr) numbers = new ska::flat_hash_map<const std::type_info*, uint16_t>;
  const auto found = numbers->find(&node);
  if (found != numbers->end()) return found->second;
  const std::string name = c10::demangle(node.name());
  const size_t last = name.rfind("::");
  return (*numbers)[&node] = process().runtime->op_number(name.c_str() + (last == std::string::npos ? 0 : last + 2));
}

uint16_t op_now(koila_when when) {
  if (when == KOILA_IN_BACKWARD) {
    if (const auto node = torch::autograd::get_current_node()) {
      const torch::autograd::Node& evaluated = *node;
      return number_of(typeid(evaluated));
    }
  }
  return detail::op_in_progress == nullptr ? 0 : op_traits(*detail::op_in_progress).number;
}

bool is_optimizer_step(const at::RecordFunction& function) { return std::strncmp(function.name(), "Optimizer.step#", 15) == 0; }

std::unique_ptr<at::ObserverContext> scope_begins(const at::RecordFunction& function) {
  if (is_optimizer_step(function)) ++this_thread.optimizers;
  return nullptr;
}

void scope_ends(const at::RecordFunction& function, at::ObserverContext*) {
  if (!is_optimizer_step(function) || this_thread.optimizers == 0) return;
  if (--this_thread.optimizers == 0) ++this_thread.optimized;
}

// PyTorch's engine sets a thread's observers anew twice for each node, so there is none in a backward pass. This thread's list of them is changed, never the process's: each
// change of that has every thread fetch it again, under a lock of PyTorch's that a fork may find taken.
class Watch {
 public:
  void begin() {
    if (std::exchange(on_, true)) return;
    if (passes_ == 0) add();
  }
  void pass_begins() {
    if (passes_++ == 0 && on_) at::removeCallback(handle_);
  }
  void pass_ends() {
    if (--passes_ == 0 && on_) add();
  }

 private:
  void add() {
    // Of its own scope only: operators go on to find no observer.
    handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(&scope_begins, &scope_ends).scopes({at::RecordScope::USER_SCOPE}));
  }

  at::CallbackHandle handle_ = 0;
  int passes_ = 0;  // under way on this thread
  bool on_ = false;
};

thread_local Watch watch;

}  // namespace

koila_origin origin_now(bool with_place) {
  koila_origin origin{};
  const koila_when when = when_now();
  origin.when = static_cast<uint8_t>(when);
  origin.op = op_now(when);
  // An operator's line is known, and an operator that a region runs again is not at the line that the thread is at.
  origin.place = with_place && this_thread.place == 0 && process().runtime->settings->stacks != 0 ? source_line_now() : this_thread.place;
  return origin;
}

uint32_t place_in_progress() { return this_thread.place; }

OpInProgress::OpInProgress(const c10::OperatorHandle& op)
    : before_(std::exchange(detail::op_in_progress, &op)), place_before_(this_thread.place) {
  if (process().runtime->settings->stacks != 0) this_thread.place = this_thread.recorded_place != 0 ? this_thread.recorded_place : source_line_now();
}

OpInProgress::OpInProgress(const c10::OperatorHandle& op, uint32_t place)
    : before_(std::exchange(detail::op_in_progress, &op)), place_before_(std::exchange(this_thread.place, place)) {}

OpInProgress::~OpInProgress() {
  detail::op_in_progress = before_;
  this_thread.place = place_before_;
}

PlaceScope::PlaceScope(uint32_t place) : before_(std::exchange(this_thread.recorded_place, place)) {}
PlaceScope::~PlaceScope() { this_thread.recorded_place = before_; }

WhenScope::WhenScope(koila_when when) : before_(std::exchange(this_thread.when, static_cast<int>(when))) {}
WhenScope::~WhenScope() { this_thread.when = before_; }

uint64_t optimizer_steps_over() { return this_thread.optimized; }

bool optimizer_at_work() { return this_thread.optimizers > 0; }

void watch_optimizers() { watch.begin(); }

NoWatchInBackward::NoWatchInBackward() { watch.pass_begins(); }
NoWatchInBackward::~NoWatchInBackward() { watch.pass_ends(); }

void origin_step_over() {
  this_thread.graph_began = at::sequence_number::peek();
  stepped.store(true, std::memory_order_relaxed);
}

}  // namespace koila
