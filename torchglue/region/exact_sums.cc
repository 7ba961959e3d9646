// Small sums over the rows come out as plain's do: what follows a sum runs once, on the sum of all rows.

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "torchglue/proof/invariants.h"
#include "torchglue/region/region.h"

namespace koila {

// Note [Sums before what follows]
// The accuracy of a batch that is all right is 1, to the last bit: programs compare it with 1.0, take the root of what is missing, draw with it, and balance their experts by the sign of a load less its mean. The quotients of
// micro-batches are rounded, and their sum is not the quotient of the sum. So it is not the value that is added up over the micro-batches, but the sums over rows that it comes from (its origin), undivided and in double precision; what
// makes the value of them has no rows, and runs once more, on the sums of all. Where plain's sums are exact, these are the same, and so is what follows. (A mean on a CUDA device is the sum times a rounded 1 / n, and may differ in
// its last bit.) Values of more entries than metrics and losses have, and what is written to in place, are added up as they are.

namespace {

constexpr int64_t kEntriesAtMost = 4096;

at::ScalarType wide(at::ScalarType type) {
  if (at::isComplexType(type)) return at::kComplexDouble;
  return at::isFloatingType(type) ? at::kDouble : type;
}

}  // namespace

at::Tensor Region::divided(Frame& frame, const Instruction& in, const at::Tensor& sum) {
  return (sum / use_local(frame, static_cast<uint32_t>(in.denominator))).to(sum.scalar_type());
}

// That of the sum which a constant joins.
at::ScalarType Region::type_of_sum(const Instruction& in) const {
  at::ScalarType type = at::typeMetaToScalarType(at::get_default_dtype());
  for_each_value_read(in, [&](ValueId id) {
    if (values_[id].placement.is_partial() && at::isFloatingType(values_[id].dtype)) type = values_[id].dtype;
  });
  return type;
}

// What has no graph, so that it keeps none.
void Region::note_sum(Frame& frame, ValueId id, const at::Tensor& local) const {
  const at::Tensor undivided = std::exchange(frame.undivided, {});
  if (!values_[id].placement.is_partial() || local.numel() > kEntriesAtMost || local.layout() != at::kStrided || !local.has_storage()) return;
  const ValueId base = groups_[values_[id].group].base;
  if (base != id && (base >= frame.sums.size() || !frame.sums[base].defined())) return;  // a view of what may be large
  if (frame.sums.size() <= id) frame.sums.resize(id + 1);
  frame.sums[id] = (undivided.defined() ? undivided : local).variable_data();
}

bool Region::is_small_sum(ValueId id) const {
  const Value& value = values_[id];
  const auto is_small = [&](ValueId v) { return c10::multiply_integers(values_[v].sizes) <= kEntriesAtMost; };
  return value.placement.is_partial() && written_groups_.count(value.group) == 0 && is_small(id) && is_small(groups_[value.group].base);
}

// Whether it makes what it makes of small sums alone, and of what is the same for all rows.
bool Region::is_without_rows(const Instruction& in) const {
  if (in.random || in.gradient || in.by_user || in.in_place || in.scale_by_rows || in.denominator >= 0) return false;
  bool of_sums = false;
  for (const Argument& argument : in.arguments) {
    for (const Operand& o : argument.operands) {
      if (o.kind == Operand::Kind::kValue && !is_small_sum(o.id)) return false;
      if (o.kind == Operand::Kind::kUse && !uses_[o.id].placement.is_replicate()) return false;
      of_sums |= o.kind == Operand::Kind::kValue;
    }
  }
  return of_sums;
}

Origin Region::origin_of(ValueId id) const {
  Origin origin;
  if (!is_small_sum(id)) return origin;
  std::vector<char> wanted(values_.size(), 0);
  wanted[id] = 1;
  for (size_t i = instructions_.size(); i-- > 0;) {
    const Instruction& in = instructions_[i];
    const auto is_wanted = [&](ValueId out) { return out != kNoValue && wanted[out] != 0; };
    if (std::none_of(in.outputs.begin(), in.outputs.end(), is_wanted)) continue;
    if (is_without_rows(in)) {
      origin.after.push_back(i);
      for_each_value_read(in, [&](ValueId read) { wanted[read] = 1; });
      continue;
    }
    for (ValueId out : in.outputs) {
      if (is_wanted(out)) origin.sums.push_back({out, i});
    }
  }
  std::reverse(origin.after.begin(), origin.after.end());
  return origin;
}

bool Region::has_sums(const Frame& frame, const Origin& origin) const {
  return std::all_of(origin.sums.begin(), origin.sums.end(), [&](const Origin::Sum& sum) { return sum.value < frame.sums.size() && frame.sums[sum.value].defined(); });
}

// May run out of memory, and has then done nothing.
void Region::add_sums(Held& held, const Frame& frame) {
  if (!has_sums(frame, held.origin)) {
    broken(invariant::kSumsReachTheirCount, "a micro-batch has not made a sum that the others have made");
    check_sound();  // there is nothing to add
  }
  std::vector<at::Tensor> totals;
  for (size_t k = 0; k < held.origin.sums.size(); ++k) {
    const at::Tensor& part = frame.sums[held.origin.sums[k].value];
    totals.push_back(held.until == 0 ? part.to(wide(part.scalar_type()), /*non_blocking=*/false, /*copy=*/true) : held.totals[k] + part);
  }
  if (frame.rows.end == batch_) {
    Frame all{{0, batch_}, /*grad=*/false, {}, {}, 0};
    for (size_t k = 0; k < totals.size(); ++k) {
      const auto [value, made_by] = held.origin.sums[k];
      const at::Tensor total = totals[k].to(frame.sums[value].scalar_type());
      set_local(all, value, instructions_[made_by].denominator >= 0 ? divided(all, instructions_[made_by], total) : total);
    }
    for (size_t i : held.origin.after) {
      size_t flat = 0;
      for_each_local(call_instruction(all, instructions_[i]), [&](const at::Tensor& result) {
        const ValueId id = instructions_[i].outputs[flat++];
        if (id != kNoValue) set_local(all, id, result);
      });
    }
    const at::Tensor& value = all.values[held.base];
    held.full._set_conj(value.is_conj());
    held.full._set_neg(value.is_neg());
    held.full.copy_(value);
  }
  held.totals = std::move(totals);
}

}  // namespace koila
