// What differs between the supported torch versions (2.11 and 2.13), and nothing else.
#pragma once

#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>

#include <memory>
#include <utility>

namespace koila {

// An owning pointer to an autograd node: std::shared_ptr in torch 2.11, c10::intrusive_ptr since nodes have a header of their own.
using NodePtr = decltype(torch::autograd::Edge::function);
// One that does not own it.
#if __has_include(<torch/csrc/autograd/node.h>)
using NodeWeak = c10::weak_intrusive_ptr<torch::autograd::Node>;
#else
using NodeWeak = std::weak_ptr<torch::autograd::Node>;
#endif

template <class T, class... Args>
NodePtr make_node(Args&&... args) {
#if __has_include(<torch/csrc/autograd/node.h>)
  return c10::make_intrusive<T>(std::forward<Args>(args)...);
#else
  return NodePtr(new T(std::forward<Args>(args)...), torch::autograd::deleteNode);
#endif
}

}  // namespace koila
