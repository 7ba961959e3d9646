// Named seeds (step/named_seeds.h) among the arguments of a call.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <cstdint>

namespace koila {

// Takes what the call reads of them for seeds. To be called before learned seeds are marked. Rows of the batch; 0: it reads none.
int64_t take_named_seeds(const c10::OperatorHandle& op, at::ArrayRef<c10::IValue> arguments);

}  // namespace koila
