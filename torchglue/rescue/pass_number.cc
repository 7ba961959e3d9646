#include "torchglue/rescue/pass_number.h"

#include <torch/csrc/autograd/engine.h>

#include <atomic>
#include <thread>

#include "torchglue/base/engine_task.h"
#include "torchglue/step/session.h"
#include "torchglue/tape/node_kind.h"

namespace koila {

namespace {

constexpr int kOutside = -1;  // as the engine says it
constexpr int kUnknown = -2;  // nobody has asked yet in this pass

std::atomic<int> number{kOutside};  // of the owner's pass, which it waits for while threads of the engine's work

// Whether the thread works for the pass of the step's thread: itself, or one of the engine's for a device.
bool works_for_pass(torch::autograd::Node& node) { return std::this_thread::get_id() == session().owner || !node.device().is_cpu(); }

}  // namespace

PassOfProgram::PassOfProgram() : of_owner_(std::this_thread::get_id() == session().owner) {
  if (of_owner_) outer_ = number.exchange(kUnknown);
}

PassOfProgram::~PassOfProgram() {
  if (of_owner_) number.store(outer_);
}

int pass_number() {
  const int task = engine_task();
  if (task == kOutside || number.load() == kOutside) return task;
  const auto node = torch::autograd::get_current_node();
  if (node == nullptr || !works_for_pass(*node)) return task;
  int first = kUnknown;
  if (number.compare_exchange_strong(first, task)) return task;
  const NodeKind kind = kind_of(*node);
  return kind == NodeKind::kLeaf || kind == NodeKind::kRegion ? first : task;
}

}  // namespace koila
