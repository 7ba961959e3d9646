// Values that PyTorch had computed for the full batch, held against those of micro-batches.

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "torchglue/proof/watches.h"
#include "torchglue/step/session.h"

namespace koila {

void Proof::hold_against_witnesses() {
  if (region_.expected_ == nullptr) return;
  auto& doubts = region_.expected_->doubts;
  std::sort(doubts.begin(), doubts.end(), [](const Doubt& a, const Doubt& b) { return a.instruction < b.instruction; });
  bool rounding = false;  // an earlier value was off, by no more than rounding makes
  for (const Doubt& doubt : doubts) {
    const std::optional<bool> real = is_real(doubt);
    rounding |= real == false;
    if (!real.value_or(!rounding)) continue;
    Finding finding{"what PyTorch had computed", doubt.instruction, "", {}};
    finding.what = "gives other values in micro-batches than PyTorch had computed for the full batch before memory ran out";
    finding.numbers = {{"row", static_cast<double>(doubt.row)},
                       {"distance", distance(doubt.expected, doubt.found)},
                       {"expected", doubt.expected.sums[0]},
                       {"found", doubt.found.sums[0]},
                       {"length", doubt.expected.length()}};
    region_.condemn(finding);
  }
  doubts.clear();
  session().proven.steps.insert(region_.expected_->conversion);
  if (region_.expected_->by_instruction.empty()) region_.expected_.reset();
}

// The value's rows once more, as they are and shaken. Nothing where no instruction makes it any more, since nobody holds it.
std::optional<bool> Proof::is_real(const Doubt& doubt) {
  if (region_.values_[doubt.value].random) return false;
  const Schedule plan = region_.schedule({doubt.value});
  if (!plan.needed[doubt.instruction]) return std::nullopt;
  const Placement& placement = region_.values_[doubt.value].placement;
  const auto run = [&](FrameWatch* watch) {
    Tally tally;
    const int64_t step = doubt.row < 0 ? region_.micro_batch_ : 1, first = std::max<int64_t>(0, doubt.row), end = doubt.row < 0 ? region_.batch_ : first + 1;
    for (int64_t begin = first; begin < end; begin += step) {
      Frame frame{{begin, std::min(begin + step, end)}, /*grad=*/false, {}, {}, 0, watch};
      region_.run(frame, doubt.instruction + 1, &plan);
      --region_.statistics.runs;
      if (begin == first) tally.until = first;
      const auto part = fingerprint(frame.values[doubt.value], placement, region_.batch_, {frame.rows.begin, frame.rows.end}, {frame.rows.begin, frame.rows.end});
      if (part) tally.sum += *part;
    }
    return tally.total(placement);
  };
  const Fingerprint base = run(nullptr);
  double noise = difference(base, doubt.found);
  bool same = same_shape(base, doubt.found);
  for (double phase : {1.0, 2.3, 3.7, 5.1}) {
    Jitter jitter(region_, phase);
    const Fingerprint shaken = run(&jitter);
    noise = std::max(noise, difference(base, shaken));
    same &= same_shape(base, shaken);
  }
  const bool real = (same && !same_shape(doubt.expected, base)) || difference(doubt.expected, base) > margin(noise, doubt.dtype, doubt.expected.length());
  session().log(KOILA_LOG_DEBUG, region_.instructions_[doubt.instruction].op.schema().name() + ", row " + std::to_string(doubt.row) + ", is off by " + std::to_string(difference(doubt.expected, base)) +
                                     " of " + std::to_string(doubt.expected.length()) + "; rounding may make " + std::to_string(noise) + (real ? ": wrong" : ""));
  return real;
}

void Region::expect(ValueId id, Witness witness) {
  if (values_[id].random || values_[id].placement != witness.placement) return;
  size_t last = SIZE_MAX;
  for (size_t i = instructions_.size(); i-- > 0 && last == SIZE_MAX;) {
    const Instruction& in = instructions_[i];
    const bool makes = std::any_of(in.outputs.begin(), in.outputs.end(), [&](ValueId out) {
      return out == id || (out != kNoValue && in.in_place && values_[out].group == values_[id].group);
    });
    if (makes) last = i;
  }
  if (last == SIZE_MAX) return;
  if (expected_ == nullptr) expected_ = std::make_shared<Expectations>();
  expected_->conversion = witness.conversion;
  expected_->by_instruction[last].push_back({id, std::move(witness), {}});
}

void Region::meet(size_t i, Frame& frame) {
  const auto found = expected_->by_instruction.find(i);
  if (found == expected_->by_instruction.end() || (frame.watch != nullptr)) return;
  constexpr size_t kDoubtsAtMost = 16;
  for (Expectations::Of& of : found->second) {
    if (of.value >= frame.values.size() || !frame.values[of.value].defined()) continue;
    const Value& value = values_[of.value];
    const at::Tensor& local = frame.values[of.value];
    const double tolerated = std::max(tolerance(std::max(rounding(value.dtype, device_.type()), rounding(local.scalar_type(), device_.type()))), 1e-12);
    const auto compare = [&](int64_t row, const Fingerprint& expected, const Fingerprint& has) {
      if (distance(expected, has) > tolerated && expected_->doubts.size() < kDoubtsAtMost) expected_->doubts.push_back({i, of.value, row, value.dtype, expected, has});
    };
    if (of.witness.placement.is_partial()) {
      of.sum.add(local, value.placement, batch_, {frame.rows.begin, frame.rows.end});
      if (of.sum.whole(batch_)) compare(-1, of.witness.sum, of.sum.total(value.placement));
      continue;
    }
    std::erase_if(of.witness.rows, [&](const auto& expected) {
      const int64_t row = expected.first;
      if (row < frame.rows.begin || row >= frame.rows.end) return false;
      if (const auto has = fingerprint(local, value.placement, batch_, {frame.rows.begin, frame.rows.end}, {row, row + 1})) compare(row, expected.second, *has);
      return true;
    });
  }
  std::erase_if(found->second, [&](const Expectations::Of& of) { return of.witness.placement.is_partial() ? of.sum.whole(batch_) : of.witness.rows.empty(); });
  if (found->second.empty()) expected_->by_instruction.erase(found);
}

}  // namespace koila
