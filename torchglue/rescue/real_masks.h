// Masks and indices that have their values.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "torchglue/placement/masks.h"
#include "torchglue/placement/rule.h"
#include "torchglue/plan/on_tape.h"
#include "torchglue/region/deferred.h"
#include "torchglue/step/session.h"

namespace koila {

// Who asks says which have one (read()).
class RealMasks : public OpCall::RowCounter {
 public:
  RealMasks(at::ArrayRef<c10::IValue> arguments, int64_t batch) : arguments_(arguments), batch_(batch) {}

  std::shared_ptr<const Ragged> rows_under(OpCall::ArgRef mask, int64_t) final {
    const at::Tensor t = read(mask);
    return t.defined() ? session().masks.rows_under(t, batch_) : nullptr;
  }
  std::shared_ptr<const Ragged> rows_of(OpCall::ArgRef index, int64_t dim, int64_t entries) final {
    const at::Tensor t = read(index);
    return t.defined() ? session().masks.rows_of(t, dim, entries, batch_) : nullptr;
  }
  std::optional<std::vector<int64_t>> numbers_of(OpCall::ArgRef ref) final { return numbers_in(read(ref)); }
  bool sorts(OpCall::ArgRef index) final {
    const at::Tensor t = read(index);
    return t.defined() && session().masks.sorts(t, sorts_numbers(session().tape, session().tape.find(t.unsafeGetTensorImpl())));
  }
  bool is_constant(OpCall::ArgRef ref) final {
    const auto entry = deferred_registry().find(argument(ref).unsafeGetTensorImpl());
    return entry.region != nullptr && entry.region->is_constant(entry.value);
  }
  std::shared_ptr<const Ragged> remember(Ragged&& rows) final { return session().masks.remembered(std::move(rows)); }

 protected:
  ~RealMasks() = default;
  at::Tensor argument(OpCall::ArgRef ref) const {
    const c10::IValue& argument = arguments_[static_cast<size_t>(ref.arg)];
    return ref.element < 0 ? argument.toTensor() : argument.toListRef()[static_cast<size_t>(ref.element)].toTensor();
  }
  // Undefined where it has no value yet.
  virtual at::Tensor read(OpCall::ArgRef ref) = 0;

 private:
  const at::ArrayRef<c10::IValue> arguments_;
  const int64_t batch_;
};

// Of the operators that a conversion brings over.
class MasksBroughtOver final : public RealMasks {
 public:
  using RealMasks::RealMasks;

 private:
  at::Tensor read(OpCall::ArgRef ref) override {
    const at::Tensor t = argument(ref);
    return deferred_registry().find(t.unsafeGetTensorImpl()).region == nullptr ? t : at::Tensor();
  }
};

}  // namespace koila
