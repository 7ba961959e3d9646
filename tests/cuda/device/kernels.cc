// Kernels of the simulated device that are no matter of running the CPU's: new memory, views, storages, streams.

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/NativeFunctions.h>
#include <c10/core/DeviceGuard.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <torch/library.h>
#include <cstring>

#include "fallback.h"

namespace sim {
namespace {

using at::IntArrayRef;
using at::Tensor;
template <class T>
using Maybe = std::optional<T>;

c10::Allocator* allocator() { return c10::cuda::CUDACachingAllocator::get(); }

// ---- new memory: as in PyTorch, what makes the first tensor initialises the device -------------------------------------------

constexpr c10::DispatchKeySet kDeviceKeys(c10::DispatchKey::CUDA);

Tensor empty(IntArrayRef size, Maybe<at::ScalarType> dtype, Maybe<at::Layout>, Maybe<at::Device> device, Maybe<bool> pinned,
             Maybe<at::MemoryFormat> format) {
  TORCH_CHECK(!pinned.value_or(false), "Only dense CPU tensors can be pinned");
  at::globalContext().lazyInitDevice(c10::kCUDA);
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_generic(size, allocator(), kDeviceKeys, c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(IntArrayRef size, IntArrayRef stride, Maybe<at::ScalarType> dtype, Maybe<at::Layout>, Maybe<at::Device> device,
                     Maybe<bool> pinned) {
  TORCH_CHECK(!pinned.value_or(false), "Only dense CPU tensors can be pinned");
  at::globalContext().lazyInitDevice(c10::kCUDA);
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_strided_generic(size, stride, allocator(), kDeviceKeys, c10::dtype_or_default(dtype));
}

// ---- storages ----------------------------------------------------------------------------------------------------------------

void grow(const c10::Storage& storage, size_t bytes) {
  if (storage.nbytes() >= bytes) return;
  c10::DataPtr data = allocator()->allocate(bytes);
  if (storage.nbytes() > 0) std::memcpy(data.get(), storage.data(), storage.nbytes());
  storage.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(data));
  storage.unsafeGetStorageImpl()->set_nbytes(bytes);
}

const Tensor& resize_(const Tensor& self, IntArrayRef size, Maybe<at::MemoryFormat> format) {
  const c10::OptionalDeviceGuard guard(self.device());
  if (self.sizes() != size) {
    grow(self.storage(), at::detail::computeStorageNbytesContiguous(size, self.itemsize(), self.storage_offset()));
    self.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  }
  if (format) self.unsafeGetTensorImpl()->empty_tensor_restride(*format);
  return self;
}

Tensor& set_storage(Tensor& self, at::Storage source, int64_t offset, IntArrayRef size, IntArrayRef stride) {
  const c10::OptionalDeviceGuard guard(self.device());
  c10::TensorImpl* impl = self.unsafeGetTensorImpl();
  if (!self.storage().is_alias_of(source)) impl->set_storage_keep_dtype(std::move(source));
  if (stride.data() == nullptr) {
    impl->set_storage_offset(offset);
    impl->set_sizes_contiguous(size);
  } else {
    impl->set_sizes_and_strides(size, stride, offset);
  }
  grow(self.storage(), at::detail::computeStorageNbytes(self.sizes(), self.strides(), self.itemsize(), offset));
  return self;
}

Tensor& set_whole_storage(Tensor& self, at::Storage source) {
  const int64_t elements = static_cast<int64_t>(source.nbytes() / self.itemsize());
  return set_storage(self, std::move(source), 0, {elements}, {});
}

Tensor& set_nothing(Tensor& self) {
  const c10::OptionalDeviceGuard guard(self.device());
  return set_storage(self, at::Storage(at::Storage::use_byte_size_t(), 0, allocator()->allocate(0), allocator(), true), 0, {0}, {});
}

void record_stream(Tensor& self, at::Stream stream) {
  c10::cuda::CUDACachingAllocator::recordStream(self.storage().data_ptr(), c10::cuda::CUDAStream(stream));
}

// ---- random numbers ----------------------------------------------------------------------------------------------------------

// The CPU's kernel takes no generator. Its arithmetic, on the device; as on a GPU, nothing is drawn before there is memory for the results.
std::tuple<Tensor, Tensor> native_dropout(const Tensor& input, double p, Maybe<bool> train) {
  if (input.numel() == 0) return {input, at::empty_like(input, input.options())};
  if (train.has_value() && !*train) return {input.clone(), at::ones_like(input, input.options().dtype(c10::kBool))};
  Tensor out = at::empty_like(input);
  Tensor mask = at::empty_like(input, input.options().dtype(c10::kBool));
  mask.bernoulli_(1 - p);
  const double scale = p == 1 ? 0 : 1 / (1 - p);
  at::mul_out(out, input, mask).mul_(scale);
  return {out, mask};
}


}  // namespace

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("_efficientzerotensor", at::native::_efficientzerotensor);

  m.impl("resize_", resize_);
  m.impl("set_.source_Storage_storage_offset", set_storage);
  m.impl("set_.source_Storage", set_whole_storage);
  m.impl("set_.source_Tensor", at::native::set_tensor_);
  m.impl("set_", set_nothing);
  m.impl("record_stream", record_stream);

  m.impl("as_strided", at::native::as_strided_tensorimpl);
  m.impl("view", at::native::view);
  m.impl("_reshape_alias", at::native::_reshape_alias);
  m.impl("unfold", at::native::unfold);
  m.impl("view_as_real", at::native::view_as_real);
  m.impl("view_as_complex", at::native::view_as_complex);

  m.impl("native_dropout", native_dropout);
  for (const char* name : {"_use_cudnn_ctc_loss", "_use_miopen_ctc_loss"})
    m.impl(name, [](const Tensor&, const Tensor&, IntArrayRef, IntArrayRef, int64_t) { return false; });
  for (const char* name : {"_use_cudnn_ctc_loss.Tensor", "_use_miopen_ctc_loss.Tensor"})
    m.impl(name, [](const Tensor&, const Tensor&, const Tensor&, const Tensor&, int64_t) { return false; });

  // Composites that would look for a CUDA kernel of their own (copies between devices, depthwise convolutions), or round differently from
  // the CPU's kernel. The losses resize what is to be their result on the way, and warn when it is an out argument.
  for (const char* name : {"copy_", "_copy_from", "_copy_from_and_resize", "convolution", "convolution_backward", "native_layer_norm",
                           "native_group_norm", "addr", "addr.out", "silu_backward", "mish_backward", "native_channel_shuffle",
                           "mse_loss", "smooth_l1_loss"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
  }
}

}  // namespace sim
