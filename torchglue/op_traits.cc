#include "torchglue/op_traits.h"

#include <c10/util/flat_hash_map.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "runtime/fork_lock.h"
#include "torchglue/base/hot.h"
#include "torchglue/base/process.h"
#include "torchglue/operators/collective.h"
#include "torchglue/placement/creation.h"
#include "torchglue/placement/schema_types.h"
#include "torchglue/placement/user_rules.h"

namespace koila {

// FNV-1a.
uint64_t hash_of_name(const std::string& name) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

namespace {

// A recurrent layer over a packed sequence. Each of its steps has as many rows as there are sequences that go on, so that taken apart each would be split by
// itself, into hundreds of small regions along whatever dimension it has.
bool is_packed_layer(const c10::FunctionSchema& schema) {
  if (schema.overload_name() != "data") return false;
  const std::string& name = schema.name();
  return name == "aten::lstm" || name == "aten::gru" || name == "aten::rnn_tanh" || name == "aten::rnn_relu";
}

// Operators that have drawn without saying so, by name. Any thread.
class Drawing {
 public:
  void add(const c10::OperatorHandle& op) {
    const std::lock_guard lock(mutex_);
    names_.insert(c10::toString(op.operator_name()));
  }
  bool has(const c10::OperatorHandle& op) const {
    const std::lock_guard lock(mutex_);
    return !names_.empty() && names_.count(c10::toString(op.operator_name())) > 0;
  }

 private:
  mutable ForkLock mutex_;
  std::set<std::string> names_;
};

Drawing& drawing() {
  static auto* ops = new Drawing;  // never destroyed: operators run while a thread ends
  return *ops;
}

OpTraits examine(const c10::OperatorHandle& op) {
  const c10::FunctionSchema& schema = op.schema();
  OpTraits traits;
  traits.name = hash_of_name(c10::toString(schema.operator_name()));
  if (process().runtime != nullptr) traits.number = process().runtime->op_number(schema.name().c_str());
  traits.rule = find_rule(schema);
  for (const c10::Argument& argument : schema.arguments()) {
    traits.kinds.push_back(!is_tensor_type(*argument.type()) ? ArgumentKind::kOther
                           : is_list_type(*argument.type())  ? ArgumentKind::kTensorList
                                                             : ArgumentKind::kTensor);
  }
  size_t written = 0;
  for (const c10::Argument& argument : schema.arguments()) {
    const c10::AliasInfo* alias = argument.alias_info();
    if (alias == nullptr) continue;
    if (alias->isWrite()) {
      ++written;
    } else {
      traits.may_view = true;
    }
  }
  traits.writes = written > 0;
  traits.out = written > 0 && std::all_of(schema.arguments().begin(), schema.arguments().end(), [](const c10::Argument& a) {
    return a.alias_info() == nullptr || !a.alias_info()->isWrite() || a.is_out();
  });
  traits.in_place = written == 1 && schema.arguments()[0].alias_info() != nullptr && schema.arguments()[0].alias_info()->isWrite();
  for (const c10::Argument& result : schema.returns()) traits.tensor_result |= is_tensor_type(*result.type());
  traits.composite = op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) &&
                     !op.hasKernelForDispatchKey(c10::DispatchKey::CPU) && !op.hasKernelForDispatchKey(c10::DispatchKey::CUDA) &&
                     !op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) &&
                     !op.hasKernelForDispatchKey(c10::DispatchKey::AutogradCPU) && !op.hasKernelForDispatchKey(c10::DispatchKey::AutogradCUDA) &&
                     !is_packed_layer(schema);
  traits.reads_value = schema.name() == "aten::resolve_conj" || schema.name() == "aten::resolve_neg";
  if (schema.name() == "aten::record_stream") {  // tells the allocator who else uses the memory: there has to be some, and it is no write, whatever the schema says
    traits.reads_value = true;
    traits.writes = traits.in_place = false;
  }
  // What the schema does not say of its arguments: they look at the result's memory afterwards. See Note [Weights that are put together].
  traits.gives_memory = schema.name() == "aten::_cudnn_rnn_flatten_weight";
  for (const char* name : {"aten::batch_norm", "aten::instance_norm", "aten::native_batch_norm", "aten::cudnn_batch_norm", "aten::miopen_batch_norm",
                           "aten::_batch_norm_impl_index", "aten::batch_norm_update_stats", "aten::batch_norm_gather_stats", "aten::batch_norm_gather_stats_with_counts"}) {
    traits.silent_effect |= schema.name() == name;
  }
  traits.forward_mode = schema.name() == "aten::_make_dual";
  traits.random = (traits.rule != nullptr && (traits.rule->flags & kRandom) != 0) || op.hasTag(at::Tag::nondeterministic_seeded) || drawing().has(op);
  traits.opaque = traits.rule == nullptr && !traits.random && !schema.name().starts_with("aten::");
  traits.metadata = op.hasTag(at::Tag::inplace_view);
  traits.pointwise = op.hasTag(at::Tag::pointwise);
  traits.makes_zeros = schema.overload_name().empty() && (schema.name() == "aten::zeros" || schema.name() == "aten::new_zeros" || schema.name() == "aten::zeros_like");
  traits.creates = created_sizes_argument(schema);
  traits.foreach = schema.name().starts_with("aten::_foreach_");
  traits.fused = schema.name().starts_with("aten::_fused_");
  for (const char* name : {"aten::diagonal", "aten::select", "aten::slice", "aten::narrow", "aten::as_strided", "aten::unfold"}) traits.takes_part |= schema.name() == name;
  traits.attention = schema.name().find("attention") != std::string::npos || schema.name().find("transformer_encoder") != std::string::npos;
  traits.collective = is_collective(schema);
  return traits;
}

std::atomic<uint32_t> changes{0};  // operators that are not what they were

// An operator that is defined anew (a notebook's cell run again) may lie where the old one lay.
class Deregistrations : public c10::OpRegistrationListener {
  void onOperatorRegistered(const c10::OperatorHandle&) override {}
  void onOperatorDeregistered(const c10::OperatorHandle&) override { changes.fetch_add(1, std::memory_order_release); }
};

// One small cache per thread: no lock on the way of every operator. The few hundred operators that a program uses are found by a look at one slot.
class Cache {
 public:
  const OpTraits& find(const c10::OperatorHandle& op) {
    const uint64_t now = (uint64_t{user_rules_version()} << 32) | changes.load(std::memory_order_acquire);
    if (now != version_) forget(now);
    const void* key = &op.schema();
    Slot& slot = near_[reinterpret_cast<uintptr_t>(key) * 0x9e3779b97f4a7c15 >> (64 - kSlotBits)];
    if (slot.key != key) slot = {key, &look_up(key, op)};
    return *slot.traits;
  }

 private:
  static constexpr int kSlotBits = 10;
  struct Slot {
    const void* key = nullptr;
    const OpTraits* traits = nullptr;
  };
  using All = ska::flat_hash_map<const void*, std::unique_ptr<OpTraits>>;

  void forget(uint64_t now) {
    version_ = now;
    std::fill(std::begin(near_), std::end(near_), Slot{});
    if (!all_.empty()) outdated_.push_back(std::exchange(all_, {}));
  }

  const OpTraits& look_up(const void* key, const c10::OperatorHandle& op) {
    static const auto* listening = new c10::RegistrationHandleRAII(c10::Dispatcher::singleton().addRegistrationListener(std::make_unique<Deregistrations>()));
    (void)listening;
    const auto found = all_.find(key);
    return found != all_.end() ? *found->second : *all_.emplace(key, std::make_unique<OpTraits>(examine(op))).first->second;
  }

  uint64_t version_ = 0;
  Slot near_[size_t{1} << kSlotBits];
  All all_;
  std::vector<All> outdated_;  // whoever is in the middle of a call goes on with what it has
};

KOILA_HOT thread_local Cache* cache = nullptr;  // never destroyed: operators run while a thread ends

}  // namespace

const OpTraits& op_traits(const c10::OperatorHandle& op) {
  if (cache == nullptr) cache = new Cache;
  return cache->find(op);
}

void note_draws(const c10::OperatorHandle& op) {
  drawing().add(op);
  changes.fetch_add(1, std::memory_order_release);
}

OpCall call_of(const c10::OperatorHandle& op, at::ArrayRef<c10::IValue> arguments, int64_t batch) {
  const OpTraits& traits = op_traits(op);
  OpCall call(op.schema(), batch);
  call.args().resize(arguments.size());
  for (size_t i = 0; i < arguments.size(); ++i) {
    OpCall::Arg& arg = call.args()[i];
    arg.is_tensor = traits.kinds[i] == ArgumentKind::kTensor;
    arg.is_tensor_list = traits.kinds[i] == ArgumentKind::kTensorList;
    if (arg.is_tensor) {
      arg.tensors.resize(1);
    } else if (arg.is_tensor_list && arguments[i].isList()) {
      arg.tensors.resize(arguments[i].toListRef().size());
    } else {
      arg.value = arguments[i];
    }
  }
  for_each_tensor(arguments, [&](const at::Tensor& t, int i, int j) {
    TensorSpec& spec = call.args()[i].tensors[j < 0 ? 0 : j];
    spec.defined = true;
    spec.sizes.assign(t.sizes().begin(), t.sizes().end());
    spec.dtype = t.scalar_type();
    spec.device = t.device();
  });
  return call;
}

std::optional<c10::OperatorHandle> view_instead(const c10::OperatorHandle& op) {
  const OpTraits& traits = op_traits(op);
  if (!traits.metadata || !traits.in_place) return std::nullopt;
  const std::string twin(functional_twin(op.schema().name()));
  if (twin.empty()) return std::nullopt;
  auto view = c10::Dispatcher::singleton().findSchema({twin, op.schema().overload_name()});
  if (!view && twin == "aten::transpose") view = c10::Dispatcher::singleton().findSchema({twin, "int"});  // the one whose overloads have other names
  // `resize` makes a copy, and detach_ changes the graph.
  if (!view || twin == "aten::detach" || view->schema().returns().size() != 1 || view->schema().returns()[0].alias_info() == nullptr) return std::nullopt;
  return view;
}

}  // namespace koila
