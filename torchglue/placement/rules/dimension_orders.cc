// Orders of dimensions: where the batch's dimension goes. All are linear: Partial stays Partial.
#include <algorithm>

#include "torchglue/placement/operands.h"
#include "torchglue/placement/rearranged.h"

namespace koila {
namespace {

Verdict permute(OpCall&);      // (self, dims)
Verdict transpose(OpCall&);    // (self, dim0, dim1)
Verdict reverse_dims(OpCall&); // (self): t, T
Verdict swap_last(OpCall&);    // (self): mT, mH
Verdict movedim(OpCall&);      // (self, source, destination)

const RegisterRules kTable{
    {"aten::adjoint", swap_last},
    {"aten::mH", swap_last},
    {"aten::mT", swap_last},
    {"aten::matrix_H", swap_last},
    {"aten::moveaxis", movedim},
    {"aten::movedim", movedim},
    {"aten::numpy_T", reverse_dims},
    {"aten::permute", permute},
    {"aten::swapaxes", transpose},
    {"aten::swapdims", transpose},
    {"aten::t", reverse_dims},
    {"aten::transpose", transpose},
};

const RegisterRagged kRagged{permute, reverse_dims, transpose};

Verdict permute(OpCall& call) {
  return rearranged(call, [&](const TensorSpec& self) -> std::optional<Placement> {
    auto dims = call.integers(1);
    if (!dims) return std::nullopt;
    for (size_t i = 0; i < dims->size(); ++i) {
      if (wrap_dim((*dims)[i], self.dim()) == self.placement.dim) return self.placement.at(static_cast<int64_t>(i));
    }
    return std::nullopt;
  });
}

Placement swapped(const Placement& p, int64_t a, int64_t b) {
  return p.dim == a ? p.at(b) : p.dim == b ? p.at(a) : p;
}

Verdict transpose(OpCall& call) {
  return rearranged(call, [&](const TensorSpec& self) -> std::optional<Placement> {
    auto a = wrap_dim(call.integer(1), self.dim()), b = wrap_dim(call.integer(2), self.dim());
    if (!a || !b) return std::nullopt;
    return swapped(self.placement, *a, *b);
  });
}

Verdict reverse_dims(OpCall& call) {
  return rearranged(call, [&](const TensorSpec& self) -> std::optional<Placement> {
    return self.placement.at(self.dim() - 1 - self.placement.dim);
  });
}

Verdict swap_last(OpCall& call) {
  return rearranged(call, [&](const TensorSpec& self) -> std::optional<Placement> {
    if (self.dim() < 2) return std::nullopt;
    return swapped(self.placement, self.dim() - 2, self.dim() - 1);
  });
}

Verdict movedim(OpCall& call) {
  return rearranged(call, [&](const TensorSpec& self) -> std::optional<Placement> {
    auto source = call.integers(1), destination = call.integers(2);
    if (!source || !destination || source->size() != destination->size()) return std::nullopt;
    std::vector<int64_t> order(self.dim(), -1);  // order[new] = old
    std::vector<bool> moved(self.dim(), false);
    for (size_t i = 0; i < source->size(); ++i) {
      auto from = wrap_dim((*source)[i], self.dim()), to = wrap_dim((*destination)[i], self.dim());
      if (!from || !to) return std::nullopt;
      order[*to] = *from;
      moved[*from] = true;
    }
    int64_t next = 0;
    for (int64_t& old : order) {
      if (old >= 0) continue;
      while (moved[next]) ++next;
      old = next++;
    }
    const auto place = std::find(order.begin(), order.end(), self.placement.dim) - order.begin();
    return self.placement.at(place);
  });
}

}  // namespace
}  // namespace koila
