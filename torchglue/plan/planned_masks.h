// Masks and indices of the operators of a plan.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "torchglue/placement/creation.h"
#include "torchglue/placement/masks.h"
#include "torchglue/placement/packed_rows.h"
#include "torchglue/placement/rule.h"
#include "torchglue/plan/on_tape.h"
#include "torchglue/plan/plan.h"
#include "torchglue/tape/tape.h"

namespace koila {

// Stands in for how many entries of each row a mask picked, or an index: which are whose is of no matter to a plan, only that it is the same mask.
class PlannedMasks final : public OpCall::RowCounter {
 public:
  PlannedMasks(const Tape& tape, int64_t batch) : tape_(tape), batch_(batch) {}

  // Whose arguments are spoken of from here on.
  void now_of(const TapeOp& op, const Plan& plan) {
    op_ = &op;
    plan_ = &plan;
    split_ = false;
  }
  // Whether a mask was asked about that is split itself, and has no value when the call is brought over.
  bool asked_of_split() const { return split_; }

  std::shared_ptr<const Ragged> rows_under(OpCall::ArgRef ref, int64_t dim) override {
    if (op_->outputs.empty() || op_->outputs[0] == kNoTapeValue) return nullptr;
    if (const TapeRef* mask = find(ref)) split_ |= !plan_->placements[mask->value].is_replicate();
    return evenly(ref, tape_.values()[op_->outputs[0]].sizes, dim);
  }

  // Of a small one that is there the true ones: whether every row has as many decides what it can be used with.
  std::shared_ptr<const Ragged> rows_of(OpCall::ArgRef ref, int64_t dim, int64_t entries) override {
    const TapeRef* index = find(ref);
    if (index == nullptr) return nullptr;
    constexpr int64_t kReadAtMost = 1 << 16;  // bytes
    const TapeValue& value = tape_.values()[index->value];
    if (const at::Tensor t = value.lock(); t.defined() && version_of(t) == index->version && value.bytes() <= kReadAtMost) return masks_.rows_of(t, dim, entries, batch_);
    if (dim >= static_cast<int64_t>(value.sizes.size()) || value.sizes[static_cast<size_t>(dim)] == batch_ * entries) return nullptr;
    auto& rows = rows_[index->value];
    if (!rows) {
      Ragged uneven{std::vector<int64_t>(static_cast<size_t>(batch_) + 1, 0), {}};
      uneven.first.back() = value.sizes[static_cast<size_t>(dim)];
      rows = std::make_shared<const Ragged>(std::move(uneven));
    }
    return rows;
  }
  std::optional<std::vector<int64_t>> numbers_of(OpCall::ArgRef ref) override {
    const TapeRef* found = find(ref);
    if (found == nullptr || !plan_->placements[found->value].is_replicate()) return std::nullopt;
    const at::Tensor t = tape_.values()[found->value].lock();
    return t.defined() && version_of(t) == found->version ? numbers_in(t) : lengths_of_packed();
  }
  bool sorts(OpCall::ArgRef ref) override {
    const TapeRef* index = find(ref);
    return index != nullptr && sorts_numbers(tape_, index->value);
  }
  bool is_constant(OpCall::ArgRef ref) override {
    const TapeRef* found = find(ref);
    return found != nullptr && is_created(*plan_, found->value) && makes_constant(tape_.ops()[tape_.values()[found->value].producer].op.schema());
  }
  std::shared_ptr<const Ragged> remember(Ragged&& rows) override { return masks_.remembered(std::move(rows)); }

 private:
  // The lengths that a call has packed by. The program drops them, sorted as they are; how many rows each step has says the same.
  std::optional<std::vector<int64_t>> lengths_of_packed() const {
    const bool packs = op_->op.schema().name() == "aten::_pack_padded_sequence" && op_->outputs.size() == 2 && op_->outputs[1] != kNoTapeValue;
    const auto steps = packs ? numbers_in(tape_.values()[op_->outputs[1]].lock()) : std::nullopt;
    return steps ? std::optional(rows_of_steps(*steps)) : std::nullopt;
  }

  const TapeRef* find(OpCall::ArgRef ref) const {
    const auto found = std::find_if(op_->refs.begin(), op_->refs.end(), [&](const TapeRef& r) { return r.arg == ref.arg && (ref.element < 0 || r.element == ref.element); });
    return found == op_->refs.end() ? nullptr : &*found;
  }

  std::shared_ptr<const Ragged> evenly(OpCall::ArgRef ref, at::IntArrayRef sizes, int64_t dim) {
    const TapeRef* mask = find(ref);
    if (mask == nullptr || dim < 0 || dim >= static_cast<int64_t>(sizes.size())) return nullptr;  // -1: what it names is no dimension of the result, and only its values tell
    auto& rows = rows_[mask->value];
    if (!rows) {
      Ragged even;
      for (int64_t r = 0; r <= batch_; ++r) even.first.push_back(sizes[static_cast<size_t>(dim)] * r / batch_);
      rows = std::make_shared<const Ragged>(std::move(even));
    }
    return rows;
  }

  const Tape& tape_;
  int64_t batch_;
  Masks masks_;
  const TapeOp* op_ = nullptr;
  const Plan* plan_ = nullptr;
  bool split_ = false;
  std::map<TapeValueId, std::shared_ptr<const Ragged>> rows_;  // by mask
};

}  // namespace koila
