// Any operator on the simulated device: its CPU kernel, on the same memory.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

namespace sim {

// A boxed kernel for the dispatch key CUDA. It leaves nothing changed when the caching allocator runs out of memory for the results.
void run_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack);

}  // namespace sim
