// What a training step changes besides its results, so that it can be run again: gradients, generators, and tensors written to by the way. Not for
// programs to include; koila/step.h does.
//
// C++17; header-only over LibTorch. Objects belong to one thread.
#ifndef KOILA_DETAIL_UNDO_H_
#define KOILA_DETAIL_UNDO_H_

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include <cstdint>
#include <cstring>
#include <mutex>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "koila/detail/memory.h"

namespace koila::detail {

// Where the default generators of some devices stand.
class RandomState {
 public:
  explicit RandomState(const std::vector<c10::Device>& devices) {
    for (const c10::Device device : devices) {
      at::Generator generator = at::globalContext().defaultGenerator(device);
      const std::lock_guard<std::mutex> lock(generator.mutex());
      at::Tensor state = generator.get_state();
      states_.emplace_back(std::move(generator), std::move(state));
    }
  }
  void restore() const {
    for (auto [generator, state] : states_) {
      const std::lock_guard<std::mutex> lock(generator.mutex());
      generator.set_state(state);
    }
  }
  // Whether numbers have been drawn from them since.
  bool moved() const {
    for (auto [generator, state] : states_) {
      const std::lock_guard<std::mutex> lock(generator.mutex());
      const at::Tensor now = generator.get_state();
      if (now.nbytes() != state.nbytes() || std::memcmp(now.const_data_ptr(), state.const_data_ptr(), now.nbytes()) != 0) return true;
    }
    return false;
  }

 private:
  std::vector<std::pair<at::Generator, at::Tensor>> states_;
};

// The gradients of leaves while parts of one gradient are added up. What they had is put aside when the leaf is first seen, and added to at the end; or
// comes back, when it is not.
class Gradients {
 public:
  Gradients() = default;
  Gradients(const Gradients&) = delete;
  Gradients& operator=(const Gradients&) = delete;
  ~Gradients() {
    for (auto& [leaf, before] : aside_) leaf.mutable_grad() = std::move(before);
  }

  // What stands against running the graph's backward in parts, or a second time.
  struct Graph {
    std::string hook;   // a node or leaf whose gradient a hook looks at
    std::string older;  // a node from before `first`
  };

  // To be called before backward is run from `roots`. Nodes of this thread are numbered; those from `first` on were made in this step. Where there is a hook,
  // nothing is put aside: it is to find what it would have found.
  Graph put_aside(const std::vector<at::Tensor>& roots, std::uint64_t first) {
    std::vector<at::Tensor> leaves;
    Graph graph = look(roots, first, &leaves);
    if (!graph.hook.empty()) return graph;
    for (at::Tensor& leaf : leaves) {
      if (!known_.insert(leaf.unsafeGetTensorImpl()).second) continue;
      at::Tensor before = std::move(leaf.mutable_grad());
      leaf.mutable_grad().reset();
      aside_.emplace_back(leaf, std::move(before));
    }
    return graph;
  }

  static Graph look(const std::vector<at::Tensor>& roots, std::uint64_t first, std::vector<at::Tensor>* leaves = nullptr) {
    Graph graph;
    std::vector<torch::autograd::Node*> next;
    for (const at::Tensor& root : roots) {
      if (root.defined() && root.requires_grad()) next.push_back(torch::autograd::impl::gradient_edge(root).function.get());
    }
    std::unordered_set<torch::autograd::Node*> seen;
    while (!next.empty()) {
      torch::autograd::Node* node = next.back();
      next.pop_back();
      if (node == nullptr || !seen.insert(node).second) continue;
      const auto* accumulate = dynamic_cast<const torch::autograd::AccumulateGrad*>(node);
      const bool hooked = !node->tensor_pre_hooks().empty() || !node->pre_hooks().empty() || !node->post_hooks().empty();
      if (hooked || (accumulate != nullptr && has_hooks(accumulate->variable))) graph.hook = node->name();
      if (accumulate == nullptr && node->sequence_nr() < first) graph.older = node->name();
      if (accumulate != nullptr && leaves != nullptr) leaves->push_back(accumulate->variable);
      for (const auto& edge : node->next_edges()) next.push_back(edge.function.get());
    }
    return graph;
  }

  // All parts are there.
  void add_up() {
    const at::NoGradGuard no_grad;
    // First what needs memory, then what cannot fail.
    std::vector<at::Tensor> sums(aside_.size());
    for (std::size_t i = 0; i < aside_.size(); ++i) {
      const auto& [leaf, before] = aside_[i];
      const at::Tensor& now = leaf.grad();
      if (before.defined() && now.defined() && !in_place(before, now)) sums[i] = now + before;
    }
    for (std::size_t i = 0; i < aside_.size(); ++i) {
      auto& [leaf, before] = aside_[i];
      if (!before.defined()) continue;
      at::Tensor& now = leaf.mutable_grad();
      if (sums[i].defined()) {
        now = std::move(sums[i]);
      } else {
        if (now.defined()) before.add_(now);
        now = std::move(before);
      }
    }
    aside_.clear();
    known_.clear();
  }

 private:
  static bool has_hooks(const at::Tensor& leaf) {
    return !torch::autograd::impl::hooks(leaf).empty() || torch::autograd::impl::post_acc_grad_hooks(leaf) != nullptr;
  }
  // As torch::autograd::AccumulateGrad decides.
  static bool in_place(const at::Tensor& before, const at::Tensor& now) {
    return !before.is_sparse() && before.scalar_type() == now.scalar_type() && before.device() == now.device();
  }

  std::vector<std::pair<at::Tensor, at::Tensor>> aside_;  // a leaf, and the gradient that it had
  std::unordered_set<const c10::TensorImpl*> known_;
};

}  // namespace koila::detail

#endif  // KOILA_DETAIL_UNDO_H_
