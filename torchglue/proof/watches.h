// Who looks at a pass of the proof's own while it runs. For proof/ alone.
#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <vector>

#include "torchglue/base/tensor_memory.h"
#include "torchglue/proof/proof.h"

namespace koila {

// Every result of every operator of a pass.
class Proof::Trace final : public FrameWatch {
 public:
  Trace(const Region& region, int64_t first_row) : region_(region), first_row_(first_row), tallies_(region.instructions_.size()) {}

  void after(size_t i, Frame& frame) override {
    const auto& outputs = region_.instructions_[i].outputs;
    tallies_[i].resize(outputs.size());
    for (size_t o = 0; o < outputs.size(); ++o) {
      const ValueId id = outputs[o];
      if (id == kNoValue || id >= frame.values.size() || !frame.values[id].defined()) continue;
      if (frame.rows.begin == first_row_) tallies_[i][o].until = first_row_;
      tallies_[i][o].add(frame.values[id].detach(), region_.values_[id].placement, region_.batch_, {frame.rows.begin, frame.rows.end});
    }
  }

  // The first operator that gives something else than in `other`, by more than `tolerated`, for the rows up to `end`; SIZE_MAX: none does.
  size_t first_apart(const Trace& other, double tolerated, int64_t end) const {
    for (size_t i = 0; i < tallies_.size(); ++i) {
      for (size_t o = 0; o < std::min(tallies_[i].size(), other.tallies_[i].size()); ++o) {
        const Tally &a = tallies_[i][o], &b = other.tallies_[i][o];
        if (!a.whole(end) || !b.whole(end)) continue;
        const Placement& p = region_.values_[region_.instructions_[i].outputs[o]].placement;
        if (distance(a.total(p), b.total(p)) > tolerated) return i;
      }
    }
    return SIZE_MAX;
  }

 private:
  const Region& region_;
  const int64_t first_row_;
  std::vector<Tallies> tallies_;
};

// Every capture, every operator's result and every gradient that backward starts from, as if it had been rounded otherwise, and a little more so.
class Proof::Jitter final : public FrameWatch {
 public:
  Jitter(const Region& region, double phase) : region_(region), phase_(phase) {}

  void after(size_t i, Frame& frame) override {
    const Instruction& in = region_.instructions_[i];
    for (ValueId id : in.outputs) {
      if (id == kNoValue || id >= frame.values.size() || !frame.values[id].defined()) continue;
      const at::Tensor& local = frame.values[id];
      const at::NoGradGuard no_grad;
      if (can_be_shaken(local) && local.is_non_overlapping_and_dense() && !looks_at_operand(in, frame, id)) shake(local, phase_ + static_cast<double>(i), region_.coarsest(in));
    }
  }

  // What sums over rows come to may be zero by nature, and then it is rounding of what was summed. The rows of what is split along another dimension than the
  // first do not lie densely: the copy does.
  at::Tensor read(uint32_t use, const at::Tensor& local) override { return shaken(local, phase_ + 0.5 + static_cast<double>(use)); }

  // The sum of these may be zero by nature as well: the gradient of a bias that a softmax takes away again.
  at::Tensor start_from(ValueId value, const at::Tensor& gradient) override { return shaken(gradient, phase_ + 0.25 + static_cast<double>(value)); }

 private:
  static at::Tensor shaken(const at::Tensor& local, double phase) {
    if (!can_be_shaken(local)) return local;
    const at::NoGradGuard no_grad;
    at::Tensor copy = local.clone();
    shake(copy, phase, 0);
    return copy;
  }

  static double rounding_of(const at::Tensor& local) { return koila::rounding(local.scalar_type(), local.device().type()); }
  static bool can_be_shaken(const at::Tensor& local) {
    return local.layout() == at::kStrided && rounding_of(local) != 0 && local.numel() > 0;
  }

  // In its memory: what autograd has saved of it is the same tensor, and no version tells.
  static void shake(const at::Tensor& local, double phase, double coarsest) {
    const at::Tensor data = local.variable_data(), pattern = roundings(data, phase, coarsest);
    if (data.scalar_type() == pattern.scalar_type()) {
      data.mul_(pattern);
    } else {
      data.copy_(data.to(at::isComplexType(data.scalar_type()) ? data.scalar_type() : at::kFloat) * pattern);
    }
  }

  // A view, or an argument handed back: it may be the program's own memory.
  bool looks_at_operand(const Instruction& in, const Frame& frame, ValueId id) const {
    const auto* storage = storage_of(frame.values[id]);
    for (const Argument& argument : in.arguments) {
      for (const Operand& o : argument.operands) {
        if (o.kind == Operand::Kind::kValue && o.id != id && o.id < frame.values.size() && frame.values[o.id].defined() && storage_of(frame.values[o.id]) == storage) return true;
        if (o.kind == Operand::Kind::kUse && o.id < frame.uses.size() && frame.uses[o.id].defined() && storage_of(frame.uses[o.id]) == storage) return true;
      }
    }
    return in.denominator >= 0 && static_cast<size_t>(in.denominator) < frame.uses.size() && storage_of(frame.uses[in.denominator]) == storage;
  }

  const Region& region_;
  const double phase_;
};

}  // namespace koila
