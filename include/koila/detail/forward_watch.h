// What a function does besides computing its result: tensors that were there before and are written to, and statistics over its rows. Not for programs to
// include; koila/step.h does.
//
// C++17; header-only over LibTorch.
#ifndef KOILA_DETAIL_FORWARD_WATCH_H_
#define KOILA_DETAIL_FORWARD_WATCH_H_

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/clone.h>
#include <ATen/record_function.h>

#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

namespace koila::detail {

// Note [The arguments of a recorded call]
// RecordFunction::inputs() cannot be called from a program built without NDEBUG: there it asserts a flag that PyTorch's own libraries, built with it, never
// set. What it returns otherwise is the private member that this reaches, as explicit instantiations may.
c10::ArrayRef<const c10::IValue> arguments_of(const at::RecordFunction& call);
template <c10::ArrayRef<const c10::IValue> at::RecordFunction::* inputs>
struct ArgumentsOf {
  friend c10::ArrayRef<const c10::IValue> arguments_of(const at::RecordFunction& call) { return call.*inputs; }
};
template struct ArgumentsOf<&at::RecordFunction::inputs_>;

// Tensors as they were before they were written to.
class Effects {
 public:
  // Before the first write to a tensor's memory.
  void keep(const at::Tensor& tensor) {
    if (!known_.insert(tensor.unsafeGetTensorImpl()).second) return;
    try {
      const at::DisableRecordFunctionGuard not_watched;
      const at::NoGradGuard no_grad;
      before_.emplace_back(tensor, tensor.clone());
    } catch (const std::exception&) {
      complete_ = false;
    }
  }
  void restore() {
    const at::NoGradGuard no_grad;
    for (auto entry = before_.rbegin(); entry != before_.rend(); ++entry) entry->first.copy_(entry->second);
    before_.clear();
    known_.clear();
  }
  bool empty() const { return before_.empty() && complete_; }
  // Whether there was memory to keep all of them.
  bool complete() const { return complete_; }

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> before_;
  std::unordered_set<const c10::TensorImpl*> known_;
  bool complete_ = true;
};

// Watches the operators that this thread calls while it lives. One at a time on a thread.
class ForwardWatch {
 public:
  explicit ForwardWatch(Effects& effects) : effects_(effects), outer_(std::exchange(current(), this)) {
    handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(begin, end).needsInputs(true).needsOutputs(true).scopes({at::RecordScope::FUNCTION}));
  }
  ~ForwardWatch() {
    at::removeCallback(handle_);
    current() = outer_;
  }
  ForwardWatch(const ForwardWatch&) = delete;
  ForwardWatch& operator=(const ForwardWatch&) = delete;

  // An operator whose result for a row depends on the other rows: "" when there was none that is known.
  const std::string& over_rows() const { return over_rows_; }
  // An operator that wrote to a tensor which was there before: "" when there was none.
  const std::string& writes() const { return writes_; }

 private:
  enum class Statistics : unsigned char { kNo, kBatch, kInstance };
  // What there is to look at in the calls of an operator.
  struct Kind {
    std::string name;
    std::vector<std::size_t> written;  // its arguments that are
    Statistics statistics = Statistics::kNo;
    std::size_t training = 0;  // the argument that says whether statistics are made
    std::size_t running_mean = 0;
  };
  struct Call : at::ObserverContext {
    explicit Call(bool closed) : inside(closed) {}
    bool inside;  // what it calls is its own affair
  };

  static ForwardWatch*& current() {
    thread_local ForwardWatch* watch = nullptr;
    return watch;
  }

  static std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& call) {
    ForwardWatch* watch = current();
    if (watch == nullptr) return nullptr;
    const Kind& kind = kind_of(call);
    if (watch->inside_ == 0) watch->look(call, kind);
    // What PyTorch's operators call is their own affair; operators of somebody's own are looked into.
    const bool inside = kind.name.compare(0, 6, "aten::") == 0;
    watch->inside_ += inside ? 1 : 0;
    return std::make_unique<Call>(inside);
  }
  static void end(const at::RecordFunction& call, at::ObserverContext* context) {
    ForwardWatch* watch = current();
    if (watch == nullptr || context == nullptr) return;
    if (static_cast<Call*>(context)->inside) --watch->inside_;
    if (watch->inside_ > 0) return;
    for (const c10::IValue& value : call.outputs()) {
      each_tensor_of(value, [&](const at::Tensor& tensor) {
        if (const c10::StorageImpl* memory = memory_of(tensor); memory != nullptr) watch->made_.insert(memory);
      });
    }
  }

  template <class F>
  static void each_tensor_of(const c10::IValue& value, F&& f) {
    if (value.isTensor()) {
      f(value.toTensor());
    } else if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) f(tensor);
    }
  }

  static const c10::StorageImpl* memory_of(const at::Tensor& tensor) {
    return tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();  // to ask has_storage() would be an access, for a preloaded koila
  }

  void look(const at::RecordFunction& call, const Kind& kind) {
    const c10::ArrayRef<const c10::IValue> inputs = arguments_of(call);
    for (const c10::IValue& input : inputs) {
      each_tensor_of(input, [&](const at::Tensor& tensor) {
        if (const c10::StorageImpl* memory = memory_of(tensor); memory != nullptr && made_.count(memory) == 0) there_.insert(memory);
      });
    }
    for (const std::size_t i : kind.written) {
      if (i >= inputs.size()) continue;
      each_tensor_of(inputs[i], [&](const at::Tensor& tensor) {
        if (there_.count(memory_of(tensor)) == 0) return;
        effects_.keep(tensor);
        writes_ = kind.name;
      });
    }
    if (kind.statistics == Statistics::kNo || kind.training >= inputs.size()) return;
    if (!inputs[kind.training].isBool() || !inputs[kind.training].toBool()) return;
    bool running = false;
    for (std::size_t i = kind.running_mean; i < kind.running_mean + 2; ++i) {  // and running_var
      if (!inputs[i].isTensor() || !inputs[i].toTensor().defined()) continue;
      effects_.keep(inputs[i].toTensor());
      running = true;
    }
    if (kind.statistics == Statistics::kBatch || running) over_rows_ = kind.name;
  }

  // By the operator's name in its schema, whose place in memory is one for each operator.
  static const Kind& kind_of(const at::RecordFunction& call) {
    thread_local std::unordered_map<const char*, Kind> kinds;
    Kind& kind = kinds[call.name()];
    if (kind.name == call.name()) return kind;
    kind = Kind();
    kind.name = call.name();
    const auto schema = call.operator_schema();
    if (!schema) return kind;
    if (kind.name == "aten::batch_norm" || kind.name == "aten::native_batch_norm" || kind.name == "aten::cudnn_batch_norm" ||
        kind.name == "aten::miopen_batch_norm" || kind.name == "aten::_batch_norm_impl_index") {
      kind.statistics = Statistics::kBatch;
    } else if (kind.name == "aten::instance_norm") {
      kind.statistics = Statistics::kInstance;
    }
    const auto& arguments = schema->arguments();
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      if (arguments[i].alias_info() != nullptr && arguments[i].alias_info()->isWrite()) kind.written.push_back(i);
      if (arguments[i].name() == "training" || arguments[i].name() == "use_input_stats") kind.training = i;
      if (arguments[i].name() == "running_mean") kind.running_mean = i;
    }
    return kind;
  }

  Effects& effects_;
  ForwardWatch* const outer_;
  at::CallbackHandle handle_ = 0;
  int inside_ = 0;
  std::unordered_set<const c10::StorageImpl*> there_, made_;  // memory of arguments that was there before, and of results that was not
  std::string over_rows_, writes_;
};

}  // namespace koila::detail

#endif  // KOILA_DETAIL_FORWARD_WATCH_H_
