#include "fallback.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>

#include "bridge.h"
#include "generator.h"

namespace sim {
namespace {

enum class Takes : uint8_t { kOther, kTensors, kDevice, kGenerator };

// What the schema says, worked out once an operator.
struct Facts {
  struct Argument {
    Takes takes = Takes::kOther;
    bool written = false;
    bool restored = false;  // to what it was, when there is no memory for the results
  };
  std::vector<Argument> arguments;
  size_t results = 0;
};

bool holds_tensors(const c10::Type& type) {
  if (type.kind() == c10::TypeKind::TensorType) return true;
  for (const auto& inner : type.containedTypes())
    if (holds_tensors(*inner)) return true;
  return false;
}

bool holds(const c10::Type& type, c10::TypeKind kind) {
  if (type.kind() == kind) return true;
  const auto* optional = type.castRaw<c10::OptionalType>();
  return optional && holds(*optional->getElementType(), kind);
}

// Of a list, what its elements say.
bool writes(const c10::AliasInfo* info) {
  if (!info) return false;
  bool found = info->isWrite();
  for (const c10::AliasInfo& inner : info->containedTypes()) found |= writes(&inner);
  return found;
}

Facts facts_from(const c10::FunctionSchema& schema) {
  Facts facts;
  facts.results = schema.returns().size();
  bool makes_results = false;
  for (const c10::Argument& result : schema.returns()) makes_results |= !result.alias_info() && holds_tensors(*result.type());
  // The one operator whose schema hides what it writes to.
  const bool hidden = schema.name() == "aten::native_batch_norm";
  for (const c10::Argument& argument : schema.arguments()) {
    Facts::Argument found;
    if (holds_tensors(*argument.type())) {
      found.takes = Takes::kTensors;
      found.written = writes(argument.alias_info()) || (hidden && argument.name().rfind("running_", 0) == 0);
      found.restored = found.written && makes_results;
    } else if (holds(*argument.type(), c10::TypeKind::DeviceObjType)) {
      found.takes = Takes::kDevice;
    } else if (holds(*argument.type(), c10::TypeKind::GeneratorType)) {
      found.takes = Takes::kGenerator;
    }
    facts.arguments.push_back(found);
  }
  return facts;
}

const Facts& facts_of(const c10::OperatorHandle& op) {
  static std::shared_mutex mutex;
  // Never destroyed: threads of the autograd engine outlive static objects.
  static auto& known = *new std::unordered_map<const c10::FunctionSchema*, std::unique_ptr<Facts>>;
  const c10::FunctionSchema* schema = &op.schema();
  {
    std::shared_lock lock(mutex);
    if (auto found = known.find(schema); found != known.end()) return *found->second;
  }
  std::unique_lock lock(mutex);
  auto& entry = known[schema];
  if (!entry) entry = std::make_unique<Facts>(facts_from(*schema));
  return *entry;
}

// Every tensor in a value replaced; a list anew, as the caller may hold the old one.
template <class Replace>
void replace_tensors(c10::IValue& value, const Replace& replace) {
  if (value.isTensor()) {
    value = replace(value.toTensor());
  } else if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(replace(tensor));
    value = std::move(list);
  } else if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector())
      list.push_back(tensor ? std::optional(replace(*tensor)) : std::nullopt);
    value = std::move(list);
  } else if (value.isList()) {
    auto list = value.toList().copy();
    for (size_t i = 0; i < list.size(); i++) {
      c10::IValue item = list.get(i);
      replace_tensors(item, replace);
      list.set(i, item);
    }
    value = std::move(list);
  }
}

// What an argument was, to be written back.
struct Snapshot {
  at::Tensor lent, before;

  explicit Snapshot(const at::Tensor& lent) : lent(lent), before(lent.clone()) {}
  void restore() const { lent.copy_(before); }
};

}  // namespace

void run_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const Facts& facts = facts_of(op);
  // Inner calls of the CPU kernel are no business of autograd.
  at::AutoDispatchBelowADInplaceOrView below;
  Bridge bridge;
  Draw draw;
  std::vector<Snapshot> snapshots;
  std::optional<c10::Device> device;
  bool stays_on_host = false;

  const size_t first = stack->size() - facts.arguments.size();
  for (size_t i = 0; i < facts.arguments.size(); i++) {
    const Facts::Argument& argument = facts.arguments[i];
    c10::IValue& value = (*stack)[first + i];
    if (argument.takes == Takes::kTensors) {
      replace_tensors(value, [&](const at::Tensor& tensor) {
        at::Tensor lent = bridge.lend(tensor, argument.written);
        if (argument.restored && lent.defined()) snapshots.emplace_back(lent);
        return lent;
      });
    } else if (argument.takes == Takes::kDevice && value.isDevice()) {
      if (value.toDevice().is_cuda()) {
        device = value.toDevice();
        value = c10::Device(c10::kCPU);
      } else {
        stays_on_host = value.toDevice().is_cpu();
      }
    }
  }
  if (!device) device = bridge.device();
  const c10::OptionalDeviceGuard guard(device);
  for (size_t i = 0; i < facts.arguments.size(); i++)
    if (facts.arguments[i].takes == Takes::kGenerator) draw.replace((*stack)[first + i]);

  try {
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
    draw.done();
    if (stays_on_host) return;
    bridge.settle();
    const size_t first_result = stack->size() - facts.results;
    for (size_t i = 0; i < facts.results; i++)
      replace_tensors((*stack)[first_result + i], [&](const at::Tensor& result) { return bridge.give(result); });
  } catch (...) {
    for (const Snapshot& snapshot : snapshots) snapshot.restore();
    draw.undo();
    throw;
  }
}

TORCH_LIBRARY_IMPL(_, CUDA, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_host>()); }

}  // namespace sim
