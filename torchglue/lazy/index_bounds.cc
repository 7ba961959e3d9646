#include "torchglue/lazy/index_bounds.h"

#include <ATen/ATen.h>
#include <ATen/WrapDimUtils.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <string_view>
#include <unordered_map>

#include "torchglue/base/tensor_memory.h"
#include "torchglue/base/tls.h"
#include "torchglue/placement/rule.h"

namespace koila {
namespace {

enum class Kind : uint8_t {
  kRows,     // (weight, indices): rows of the weight
  kDim,      // (self, dim, index)
  kDimLast,  // (self, indices, dim?)
  kList,     // (self, indices[]): one for each dimension
  kClasses,  // (self, target) and what else; a fifth that is a number is ignored. The class is dimension 1, or 0 of a single sample
  kOneHot,   // (indices, num_classes)
};

// In-place twins have their operators' entries.
const std::unordered_map<std::string_view, Kind>& kinds() {
  static const auto* table = new std::unordered_map<std::string_view, Kind>{
      {"aten::embedding", Kind::kRows},
      {"aten::gather", Kind::kDim},
      {"aten::index_add", Kind::kDim},
      {"aten::index_copy", Kind::kDim},
      {"aten::index_fill", Kind::kDim},
      {"aten::index_reduce", Kind::kDim},
      {"aten::index_select", Kind::kDim},
      {"aten::scatter", Kind::kDim},
      {"aten::scatter_add", Kind::kDim},
      {"aten::scatter_reduce", Kind::kDim},
      {"aten::take_along_dim", Kind::kDimLast},
      {"aten::index", Kind::kList},
      {"aten::index_put", Kind::kList},
      {"aten::cross_entropy_loss", Kind::kClasses},
      {"aten::nll_loss", Kind::kClasses},
      {"aten::nll_loss2d", Kind::kClasses},
      {"aten::nll_loss_forward", Kind::kClasses},
      {"aten::nll_loss_nd", Kind::kClasses},
      {"aten::multi_margin_loss", Kind::kClasses},
      {"aten::one_hot", Kind::kOneHot},
  };
  return *table;
}

struct Index {
  at::Tensor tensor;
  int64_t size;        // of what it points into
  bool wraps = false;  // whether -1 is the last one
  std::optional<int64_t> ignored = std::nullopt;
};

bool can_be_read(const at::Tensor& t) {
  return t.defined() && t.device().is_cpu() && t.layout() == at::kStrided && (t.scalar_type() == at::kLong || t.scalar_type() == at::kInt) && t.numel() > 0 && memory_of(t) != nullptr;
}

// Without memory of its own: whoever asks may have run out of it.
template <class T>
bool lies_outside(const Index& index, const T* entries, int64_t count) {
  const int64_t least = index.wraps ? -index.size : 0;
  return std::any_of(entries, entries + count, [&](T i) { return (i < least || i >= index.size) && i != index.ignored; });
}

bool lies_outside(const Index& index) {
  if (!can_be_read(index.tensor)) return false;
  const NoInterceptGuard no_intercept;
  const at::Tensor entries = index.tensor.contiguous();
  return entries.scalar_type() == at::kLong ? lies_outside(index, entries.const_data_ptr<int64_t>(), entries.numel()) : lies_outside(index, entries.const_data_ptr<int32_t>(), entries.numel());
}

int64_t size_at(const at::Tensor& t, int64_t dim) {
  if (t.dim() == 0) return 1;
  return dim >= -t.dim() && dim < t.dim() ? t.size(at::maybe_wrap_dim(dim, t.dim())) : std::numeric_limits<int64_t>::max();
}

bool list_lies_outside(const at::Tensor& self, const c10::IValue& indices) {
  if (!indices.isList()) return false;
  int64_t dim = 0;
  for (const c10::IValue& element : indices.toListRef()) {
    const at::Tensor index = element.isTensor() ? element.toTensor() : at::Tensor();
    const bool mask = index.defined() && (index.scalar_type() == at::kBool || index.scalar_type() == at::kByte);
    if (!mask && dim < self.dim() && lies_outside({index, self.size(dim), /*wraps=*/true})) return true;
    dim += mask ? index.dim() : 1;
  }
  return false;
}

}  // namespace

bool has_index_outside(const c10::OperatorHandle& op, at::ArrayRef<c10::IValue> arguments) {
  const std::string_view name = op.schema().name(), twin = functional_twin(name);
  const auto found = kinds().find(twin.empty() ? name : twin);
  if (found == kinds().end() || arguments.size() < 2 || !arguments[0].isTensor() || !arguments[0].toTensor().defined()) return false;
  const at::Tensor& self = arguments[0].toTensor();
  const auto tensor = [&](size_t i) { return arguments.size() > i && arguments[i].isTensor() ? arguments[i].toTensor() : at::Tensor(); };
  const auto dim = [&](size_t i) { return arguments.size() > i && arguments[i].isInt() ? size_at(self, arguments[i].toInt()) : std::numeric_limits<int64_t>::max(); };
  switch (found->second) {
    case Kind::kRows:
      return lies_outside({tensor(1), size_at(self, 0)});
    case Kind::kDim:
      return lies_outside({tensor(2), dim(1), /*wraps=*/found->first == "aten::index_fill"});
    case Kind::kDimLast:
      return lies_outside({tensor(1), dim(2), /*wraps=*/true});
    case Kind::kList:
      return list_lies_outside(self, arguments[1]);
    case Kind::kClasses:
      return lies_outside({tensor(1), size_at(self, self.dim() > 1 ? 1 : 0), /*wraps=*/false, arguments.size() > 4 && arguments[4].isInt() ? std::optional(arguments[4].toInt()) : std::nullopt});
    case Kind::kOneHot:
      return lies_outside({self, arguments[1].isInt() && arguments[1].toInt() > 0 ? arguments[1].toInt() : std::numeric_limits<int64_t>::max()});
  }
  return false;
}

}  // namespace koila
