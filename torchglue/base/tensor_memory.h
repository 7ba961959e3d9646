// What a tensor's memory is, without asking for access to it.
#pragma once

#include <ATen/core/Tensor.h>

namespace koila {

// Its storage object; null when it has none. Does not ask has_storage(), which is what a program does before it takes a pointer.
inline c10::StorageImpl* storage_of(const at::Tensor& t) { return t.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl(); }

// Where its storage lies. Bypasses the access check: the tensor may be a deferred one.
inline const void* memory_of(const at::Tensor& t) {
  c10::StorageImpl* storage = storage_of(t);
  return storage != nullptr ? storage->_mutable_data_ptr_no_checks().get() : nullptr;
}

// The same memory and the same version, without a base or a graph.
inline at::Tensor handle_of(const at::Tensor& t) {
  const c10::TensorImpl* impl = t.unsafeGetTensorImpl();
  return at::Tensor(impl->shallow_copy_and_detach(impl->version_counter(), /*allow_tensor_metadata_change=*/true));
}

}  // namespace koila
