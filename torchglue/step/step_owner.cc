#include "torchglue/step/step_owner.h"

#include <ATen/Parallel.h>
#include <c10/core/AutogradState.h>

#include <algorithm>
#include <exception>
#include <thread>

#include "torchglue/base/engine_task.h"
#include "torchglue/base/hot.h"
#include "torchglue/base/python_thread.h"
#include "torchglue/base/tls.h"
#include "torchglue/memory/origin.h"
#include "torchglue/op_traits.h"
#include "torchglue/step/session.h"

namespace koila {

namespace {

const std::thread::id kNobody;

KOILA_HOT thread_local bool is_of_program = false;
std::atomic<int> passes_of_owner{0};
std::atomic<bool> wanted{false};  // by a thread that found the steps taken
std::atomic<std::thread::id> made_a_thread{kNobody};  // the owner of before, while nobody has taken its steps
std::atomic<std::thread::id> lender{kNobody};         // the owner of before, while a thread that it made has them

bool is_owner() { return process().is_owner(); }

void set_included(bool included) { c10::impl::tls_set_dispatch_key_included(kInterceptorKey, included); }

// Whether backward could start from something that is on the tape.
bool holds_a_graph(const Tape& tape) {
  if (!tape.differentiable()) return false;
  return std::any_of(tape.values().begin(), tape.values().end(), [](const TapeValue& value) { return !value.is_capture() && value.differentiable() && value.lock().defined(); });
}

// Nothing lives that another thread would have to know of.
bool between_steps() {
  Session& s = session();
  if (s.engine_depth > 0 || passes_of_owner.load(std::memory_order_relaxed) > 0 || s.converting || operator_in_progress() || !s.outer_tapes.empty()) return false;
  return !s.holds_region() && !holds_a_graph(s.tape);
}

void give_away(std::thread::id first_to_take = kNobody) {
  session().forget_step();
  session().named.clear();
  made_a_thread.store(first_to_take, std::memory_order_relaxed);
  session().owner.store(kNobody, std::memory_order_release);
}

bool is_of_a_step(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  if (!c10::AutogradState::get_tls_state().get_grad_mode() || at::in_parallel_region() || engine_task() != -1) return false;
  return any_requires_grad(torch::jit::last(stack, op.schema().arguments().size()));
}

}  // namespace

void own_steps() {
  is_of_program = true;
  session().owner.store(std::this_thread::get_id(), std::memory_order_release);
}

void join_threads_of_program() {
  is_of_program = true;
  set_included(true);
}

bool works_for_owner() {
  if (is_owner()) return true;
  if ((session().engine_depth == 0 && passes_of_owner.load(std::memory_order_acquire) == 0) || is_of_program) return false;
  // The engine has handed its thread the owner's state; koila's own work on that thread, such as a micro-batch, has put the key out.
  return c10::impl::tls_is_dispatch_key_included(kInterceptorKey) || c10::impl::tls_is_dispatch_key_excluded(kInterceptorKey);
}

bool take_steps() {
  std::thread::id nobody = kNobody;
  if (!is_of_program || !session().owner.compare_exchange_strong(nobody, std::this_thread::get_id(), std::memory_order_acq_rel)) return is_owner();
  wanted.store(false, std::memory_order_relaxed);
  const std::thread::id before = made_a_thread.exchange(kNobody, std::memory_order_relaxed);
  lender.store(before == std::this_thread::get_id() ? kNobody : before, std::memory_order_relaxed);
  at_python_thread_end(&thread_ends);  // see Note [The end of a Python thread]
  return true;
}

bool follows_this_thread() { return is_owner() && !wanted.load(std::memory_order_relaxed); }

bool is_followed(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  if (is_owner()) {
    if (!wanted.load(std::memory_order_relaxed) || is_of_a_step(op, stack) || !between_steps()) return true;
    give_away();
    return false;
  }
  if (!is_of_program) return works_for_owner();
  if (made_a_thread.load(std::memory_order_relaxed) == std::this_thread::get_id() && take_steps()) return true;
  if (!is_of_a_step(op, stack)) return false;
  if (take_steps()) return true;
  wanted.store(true, std::memory_order_relaxed);
  return false;
}

PassOfOwner::PassOfOwner() { passes_of_owner.fetch_add(1, std::memory_order_release); }
PassOfOwner::~PassOfOwner() { passes_of_owner.fetch_sub(1, std::memory_order_release); }

PassOfAnother::PassOfAnother() : was_included_(c10::impl::tls_is_dispatch_key_included(kInterceptorKey)) {
  if (was_included_) set_included(false);
}

PassOfAnother::~PassOfAnother() {
  if (was_included_) set_included(true);
}

void before_thread() {
  if (session().rescue && is_owner() && between_steps()) give_away(std::this_thread::get_id());
}

void thread_begins() {
  watch_optimizers();
  join_threads_of_program();
}

// What the program still holds of the last step has its value before another thread reads it.
void thread_ends() {
  if (!is_owner()) return;
  try {
    session().settle();
  } catch (const std::exception& error) {
    session().log(KOILA_LOG_INFO, std::string("a thread ended in the middle of a step that could not be completed: ") + error.what());
  }
  give_away(lender.exchange(kNobody, std::memory_order_relaxed));
}

}  // namespace koila
