// Who holds a tensor, or a node.
#pragma once

#include <c10/core/TensorImpl.h>

#include <cstddef>

namespace koila {

// References to the tensor but for that of its object in Python, where the program does not hold that object itself. torch 2.13 keeps the object for as long as there are other references to the
// tensor, and counts it among them; in torch 2.11 the tensor owns the object by then, and does not count it.
template <class Impl>
size_t holders_of(Impl* impl) {
  const size_t count = c10::raw::intrusive_ptr::use_count(impl);
  if constexpr (requires { impl->pyobj_slot()->has_unique_reference(); }) {
    if (count > 1 && impl->pyobj_slot()->has_unique_reference()) return count - 1;
  }
  return count;
}

// Whether the program holds the object in Python that stands for the node.
template <class Node>
bool is_held_in_python(const Node& node) {
  if constexpr (requires { node.pyobj_slot()->has_unique_reference(); }) {
    return node.pyobj_slot()->load_pyobj() != nullptr && !node.pyobj_slot()->has_unique_reference();
  } else {
    return const_cast<Node&>(node).pyobj() != nullptr;
  }
}

}  // namespace koila
