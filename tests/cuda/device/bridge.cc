#include "bridge.h"

#include <c10/core/CPUAllocator.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <cstring>

namespace sim {
namespace {

constexpr c10::DispatchKeySet kKept({c10::DispatchKey::Conjugate, c10::DispatchKey::Negative});

// A tensor over `storage` with everything else of `like`.
at::Tensor over(const c10::Storage& storage, c10::DispatchKey backend, const at::Tensor& like) {
  const c10::DispatchKeySet keys = c10::DispatchKeySet(backend) | (like.key_set() & kKept);
  at::Tensor made = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storage), keys, like.dtype());
  c10::TensorImpl* impl = made.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  if (like.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
  return made;
}

// Resizable, with the allocator of its side: kernels resize what they are given as out arguments.
c10::Storage storage_of(size_t bytes, c10::DataPtr data, c10::Allocator* allocator) {
  return c10::Storage(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes, std::move(data), allocator, true));
}

c10::DataPtr copy_to_device(const c10::Storage& host) {
  c10::DataPtr data = c10::cuda::CUDACachingAllocator::get()->allocate(host.nbytes());
  if (host.nbytes() > 0) std::memcpy(data.get(), host.data(), host.nbytes());
  return data;
}

}  // namespace

const c10::Storage& Bridge::lent_storage(const c10::Storage& original) {
  for (const LentStorage& pair : storages_)
    if (pair.original.is_alias_of(original)) return pair.lent;
  c10::DataPtr data(const_cast<void*>(original.data()), c10::Device(c10::kCPU));
  storages_.push_back({original, storage_of(original.nbytes(), std::move(data), c10::GetCPUAllocator())});
  return storages_.back().lent;
}

at::Tensor Bridge::lend(const at::Tensor& tensor, bool written) {
  if (!tensor.defined()) return tensor;
  for (LentTensor& pair : tensors_) {
    if (!pair.original.is_same(tensor)) continue;
    pair.written |= written;
    return pair.lent;
  }
  if (!tensor.is_cuda()) {
    // Remembered so that it is known when it comes back.
    if (tensor.is_cpu()) tensors_.push_back({tensor, tensor, false});
    return tensor;
  }
  TORCH_CHECK_NOT_IMPLEMENTED(tensor.layout() == c10::kStrided, "the simulated device has strided tensors only");
  if (!device_) device_ = tensor.device();
  at::Tensor lent = over(lent_storage(tensor.storage()), c10::DispatchKey::CPU, tensor);
  tensors_.push_back({tensor, lent, written});
  return lent;
}

void Bridge::settle() {
  for (const LentTensor& pair : tensors_)
    if (pair.written) settle(pair);
}

void Bridge::settle(const LentTensor& pair) {
  const c10::Storage& to = pair.original.storage();
  const c10::Storage& from = pair.lent.storage();
  if (from.data() != to.data()) {
    c10::DataPtr data = copy_to_device(from);
    to.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(data));
    to.unsafeGetStorageImpl()->set_nbytes(from.nbytes());
  }
  if (pair.lent.sizes() != pair.original.sizes() || pair.lent.strides() != pair.original.strides() ||
      pair.lent.storage_offset() != pair.original.storage_offset()) {
    pair.original.unsafeGetTensorImpl()->set_sizes_and_strides(pair.lent.sizes(), pair.lent.strides(), pair.lent.storage_offset());
  }
}

const c10::Storage& Bridge::moved_storage(const c10::Storage& host) {
  for (const MovedStorage& pair : moved_)
    if (pair.host.is_alias_of(host)) return pair.device;
  moved_.push_back({host, storage_of(host.nbytes(), copy_to_device(host), c10::cuda::CUDACachingAllocator::get())});
  return moved_.back().device;
}

at::Tensor Bridge::give(const at::Tensor& result) {
  if (!result.defined() || !result.is_cpu()) return result;
  for (const LentTensor& pair : tensors_) {
    if (pair.lent.is_same(result)) return pair.original;
    if (pair.original.is_cpu() && pair.original.is_alias_of(result)) return result;
  }
  for (const LentStorage& pair : storages_)
    if (pair.lent.is_alias_of(result.storage())) return over(pair.original, c10::DispatchKey::CUDA, result);
  return over(moved_storage(result.storage()), c10::DispatchKey::CUDA, result);
}

}  // namespace sim
