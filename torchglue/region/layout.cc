#include "torchglue/region/layout.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <exception>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "torchglue/base/tensor_memory.h"
#include "torchglue/base/tls.h"
#include "torchglue/oom/oom.h"
#include "torchglue/oom/python_error.h"
#include "torchglue/op_traits.h"
#include "torchglue/operators/saved.h"

namespace koila {

namespace {

// What the operator would give at the full batch, as meta tensors; nothing when it has no meta kernel.
// One row does not show where the batch dimension lies in memory.
std::optional<torch::jit::Stack> run_on_meta(const c10::OperatorHandle& op, at::ArrayRef<c10::IValue> arguments) {
  const auto meta = [](const c10::IValue& v) -> c10::IValue {
    if (!v.isTensor() || !v.toTensor().defined()) return v;
    const at::Tensor& t = v.toTensor();
    return at::empty_strided(t.sizes(), t.strides(), t.options().device(at::kMeta));
  };
  NoInterceptGuard no_intercept;
  at::AutoDispatchBelowADInplaceOrView no_autograd;
  try {
    torch::jit::Stack stack;
    for (const c10::IValue& v : arguments) {
      if (v.isTensorList()) {
        c10::List<at::Tensor> list;
        for (const at::Tensor& t : v.toTensorVector()) list.push_back(meta(t).toTensor());
        stack.emplace_back(std::move(list));
      } else if (v.isOptionalTensorList()) {
        return std::nullopt;
      } else if (v.isDevice()) {
        stack.emplace_back(at::Device(at::kMeta));
      } else {
        stack.push_back(meta(v));
      }
    }
    op.callBoxed(stack);
    return stack;
  } catch (const std::exception& error) {
    if (is_python_interrupt(error) || is_out_of_memory(error)) throw;  // which says nothing about the operator
    forget_python_error(error);
    return std::nullopt;
  }
}

// What tells one call from another as far as run_on_meta() goes; empty when that is not known.
std::vector<int64_t> key_on_meta(const c10::OperatorHandle& op, at::ArrayRef<c10::IValue> arguments) {
  std::vector<int64_t> key{reinterpret_cast<int64_t>(&op.schema())};
  bool strided = true;
  const auto add = [&](const at::Tensor& t) {
    key.push_back(t.defined() ? t.dim() : -1);
    if (!t.defined()) return;
    strided &= t.layout() == at::kStrided;
    if (!strided) return;
    key.push_back(static_cast<int64_t>(t.scalar_type()));
    key.insert(key.end(), t.sizes().begin(), t.sizes().end());
    key.insert(key.end(), t.strides().begin(), t.strides().end());
  };
  for (const c10::IValue& v : arguments) {
    key.push_back(v.isTensor() ? 1 : v.isTensorList() ? 2 : v.isInt() ? 3 : v.isBool() ? 4 : v.isIntList() ? 5 : v.isNone() ? 6 : 7);
    if (v.isTensor()) {
      add(v.toTensor());
    } else if (v.isTensorList()) {
      const auto list = v.toTensorVector();
      key.push_back(static_cast<int64_t>(list.size()));
      for (const at::Tensor& t : list) add(t);
    } else if (v.isInt()) {
      key.push_back(v.toInt());
    } else if (v.isBool()) {
      key.push_back(v.toBool());
    } else if (v.isIntList()) {
      const auto list = v.toIntVector();
      key.push_back(static_cast<int64_t>(list.size()));
      key.insert(key.end(), list.begin(), list.end());
    } else if (!v.isNone() && !v.isDouble()) {  // a factor changes no shape
      return {};
    }
  }
  if (!strided) return {};
  return key;
}

// The dimensions from the outermost to the innermost. An expanded one has no stride to go by, and stays where it is among the others, as TensorIterator has it.
std::vector<int64_t> order_of(at::IntArrayRef strides) {
  std::vector<int64_t> order(strides.size());
  std::iota(order.begin(), order.end(), 0);
  for (size_t i = 1; i < order.size(); ++i) {
    size_t at = i;
    for (size_t before = i; before-- > 0;) {
      const int64_t outer = strides[order[before]], inner = strides[order[at]];
      if (outer == 0 || inner == 0) continue;
      if (outer >= inner) break;
      std::swap(order[before], order[at]);
      at = before;
    }
  }
  return order;
}

}  // namespace

std::vector<int64_t> dense_strides_like(const at::Tensor& local, at::IntArrayRef sizes) {
  const std::vector<int64_t> order = order_of(local.strides());
  std::vector<int64_t> strides(sizes.size());
  int64_t next = 1;
  for (auto dim = order.rbegin(); dim != order.rend(); ++dim) {
    strides[*dim] = next;
    next *= std::max<int64_t>(1, sizes[*dim]);
  }
  return strides;
}

std::vector<Layout> layouts_on_meta(const c10::OperatorHandle& op, at::ArrayRef<c10::IValue> arguments) {
  constexpr size_t kAtMost = 4096;
  static thread_local auto* known = new std::map<std::vector<int64_t>, std::vector<Layout>>;  // no lock that a forked child would wait for
  const auto key = key_on_meta(op, arguments);
  if (const auto it = known->find(key); it != known->end() && !key.empty()) return it->second;
  std::vector<Layout> layouts;
  if (const auto results = run_on_meta(op, arguments)) {
    const auto add = [&](const at::Tensor& t) {
      layouts.push_back(t.defined() && t.layout() == at::kStrided ? Layout{t.sizes().vec(), t.strides().vec(), t.is_non_overlapping_and_dense()} : Layout{});
    };
    for (const c10::IValue& v : *results) {
      if (v.isTensor()) add(v.toTensor());
      if (v.isTensorList()) {
        for (const at::Tensor& t : v.toTensorVector()) add(t);
      }
    }
  }
  if (known->size() >= kAtMost) known->clear();
  if (!key.empty()) known->emplace(key, layouts);
  return layouts;
}

bool order_depends_on_sizes(const c10::OperatorHandle& op) {
  static const std::set<std::string> broadcasting{"aten::mul", "aten::add", "aten::sub", "aten::div", "aten::where", "aten::maximum", "aten::minimum", "aten::pow", "aten::atan2"};
  return broadcasting.count(op.schema().name()) > 0;
}

bool may_lie_as(const Layout& meta, const c10::OperatorHandle& op, const at::Tensor& local) {
  // On the meta device one_hot() is a comparison, which keeps its argument's order; elsewhere it fills new zeros. A single row shows no difference.
  static const auto one_hot = c10::Dispatcher::singleton().findSchemaOrThrow("aten::one_hot", "");
  return meta.dense && op != one_hot && (order_depends_on_sizes(op) || lies_in_order(meta.strides, local));
}

bool is_about_layout(const c10::Error& error) {
  const std::string_view said = error.what_without_backtrace();
  return said.rfind("unsupported operation: ", 0) == 0 || said.rfind("view size is not compatible", 0) == 0;
}

void copy_what_lies_ahead(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  const at::Tensor written = stack[0].isTensor() ? stack[0].toTensor() : at::Tensor();
  if (storage_of(written) == nullptr) return;
  for (size_t i = 1; i < stack.size(); ++i) {
    if (!stack[i].isTensor() || !stack[i].toTensor().defined()) continue;
    const at::Tensor& read = stack[i].toTensor();
    if (storage_of(read) != storage_of(written) || read.storage_offset() <= written.storage_offset() || at::get_overlap_status(written, read) != at::MemOverlapStatus::Partial) continue;
    if (may_save_operands(op.schema()) || (!op_traits(op).pointwise && op.schema().name() != "aten::copy_")) return;
    stack[i] = read.clone();
  }
}

// Dimensions of size 1 lie anywhere.
bool lies_in_order(at::IntArrayRef strides, const at::Tensor& local) {
  if (static_cast<int64_t>(strides.size()) != local.dim()) return true;
  for (int64_t i = 0; i < local.dim(); ++i) {
    for (int64_t j = i + 1; j < local.dim(); ++j) {
      if (local.size(i) <= 1 || local.size(j) <= 1) continue;
      if ((strides[i] > strides[j] && local.stride(i) < local.stride(j)) || (strides[i] < strides[j] && local.stride(i) > local.stride(j))) return false;
    }
  }
  return true;
}

at::Tensor in_order_of(at::IntArrayRef strides, const at::Tensor& local) {
  if (!local.is_non_overlapping_and_dense()) return local;
  const std::vector<int64_t> order = order_of(strides);
  std::vector<int64_t> back(strides.size());
  for (size_t i = 0; i < order.size(); ++i) back[order[i]] = static_cast<int64_t>(i);
  return local.permute(order).contiguous().permute(back);
}

at::Tensor zeros_in_order(at::IntArrayRef sizes, at::IntArrayRef strides, const at::TensorOptions& options) {
  std::vector<int64_t> held(sizes.begin(), sizes.end());
  for (size_t i = 0; i < held.size(); ++i) {
    if (strides[i] == 0) held[i] = std::min<int64_t>(held[i], 1);
  }
  return in_order_of(strides, at::zeros(held, options)).expand(sizes);
}

}  // namespace koila
