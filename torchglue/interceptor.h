// The fallback on the interceptor's dispatch key: every operator call of the owner thread comes here first.
#pragma once

#include <c10/core/DispatchKeySet.h>

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
    c10::DispatchKey::NestedTensor,
});

// Puts the interceptor in for the calling thread, for good.
void intercept_this_thread();

}  // namespace koila
