// Which tensors koila follows. Decided here, and nowhere else.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/TensorImpl.h>

namespace koila {

// Note [Staying out]
// Tensor subclasses, tracing and functorch transforms give operators another meaning; what they do is not put on the tape. Their
// results look like tensors from nowhere to it, that is, like captures.
inline constexpr c10::DispatchKeySet kStayOut({
    c10::DispatchKey::Python,
    c10::DispatchKey::PythonTLSSnapshot,
    c10::DispatchKey::FuncTorchDynamicLayerBackMode,
    c10::DispatchKey::FuncTorchDynamicLayerFrontMode,
    c10::DispatchKey::FuncTorchBatched,
    c10::DispatchKey::FuncTorchGradWrapper,
    c10::DispatchKey::Tracer,
    c10::DispatchKey::Functionalize,
});

// Note [Where koila works]
// On the CPU and on CUDA devices, with tensors that have sizes. A call that reads, writes or makes anything else (device="meta", an XPU, a device of the
// program's own, a nested tensor) runs as it would without koila: what koila has put off of its arguments gets its value first, what the tape has recorded
// of them ends there, and neither a generator nor a size is asked for.
inline bool works_on(c10::Device device) { return device.is_cpu() || device.is_cuda(); }

// Dense and sparse layouts of PyTorch's own, on a device that koila works on. Asks for no size.
inline bool follows(const c10::TensorImpl& tensor) {
  const c10::DispatchKeySet keys = tensor.key_set();
  return works_on(tensor.device()) && !keys.has_any(kStayOut) && !keys.has(c10::DispatchKey::NestedTensor) && !tensor.has_symbolic_sizes_strides();
}

// Whether a call is one of those that koila leaves alone, by Note [Where koila works]. `keys`: of the call, which tell of all its tensors.
inline bool is_elsewhere(c10::DispatchKeySet keys, at::ArrayRef<c10::IValue> arguments) {
  constexpr c10::DispatchKeySet kElsewhere({c10::DispatchKey::FPGA, c10::DispatchKey::Vulkan, c10::DispatchKey::Metal});
  static const uint64_t here = (c10::DispatchKeySet(c10::BackendComponent::CPUBit) | c10::DispatchKeySet(c10::BackendComponent::CUDABit)).raw_repr();
  if (keys.has_any(kElsewhere) || keys.has(c10::DispatchKey::NestedTensor) || (keys.raw_repr() & c10::full_backend_mask & ~here) != 0) return true;
  for (const c10::IValue& v : arguments) {
    if (v.isDevice() && !works_on(v.toDevice())) return true;
    if (v.isGenerator() && v.toGenerator().defined() && !works_on(v.toGenerator().device())) return true;
  }
  return false;
}

}  // namespace koila
