#include "torchglue/proof/proof.h"

#include <ATen/ATen.h>
#include <c10/util/ScopeExit.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "torchglue/proof/invariants.h"
#include "torchglue/proof/key.h"
#include "torchglue/rescue/oom.h"
#include "torchglue/rescue/python_error.h"
#include "torchglue/session.h"
#include "torchglue/tensor_memory.h"
#include "torchglue/tls.h"

namespace koila {

namespace {

RowRange range(Rows rows) { return {rows.begin, rows.end}; }

double length(const Fingerprint& f) { return std::sqrt(f.squares); }

}  // namespace

// Every result of every operator of a pass.
class Proof::Trace final : public FrameWatch {
 public:
  explicit Trace(const Region& region) : region_(region), tallies_(region.instructions_.size()) {}

  void after(size_t i, Frame& frame) override {
    const auto& outputs = region_.instructions_[i].outputs;
    tallies_[i].resize(outputs.size());
    for (size_t o = 0; o < outputs.size(); ++o) {
      const ValueId id = outputs[o];
      if (id == kNoValue || id >= frame.values.size() || !frame.values[id].defined()) continue;
      tallies_[i][o].add(frame.values[id].detach(), region_.values_[id].placement, region_.batch_, range(frame.rows));
    }
  }

  // The first operator that gives something else than in `other`, in units of `tolerated`; SIZE_MAX: none does.
  size_t first_apart(const Trace& other, double tolerated) const {
    for (size_t i = 0; i < tallies_.size(); ++i) {
      for (size_t o = 0; o < std::min(tallies_[i].size(), other.tallies_[i].size()); ++o) {
        const Tally &a = tallies_[i][o], &b = other.tallies_[i][o];
        if (!a.whole(region_.batch_) || !b.whole(region_.batch_)) continue;
        const Placement& p = region_.values_[region_.instructions_[i].outputs[o]].placement;
        if (distance(a.total(p), b.total(p)) > tolerated) return i;
      }
    }
    return SIZE_MAX;
  }

 private:
  const Region& region_;
  std::vector<Tallies> tallies_;
};

// Every capture, and every operator's result, as if it had been rounded otherwise, and a little more so.
class Proof::Jitter final : public FrameWatch {
 public:
  Jitter(const Region& region, double phase) : region_(region), phase_(phase) {}

  void after(size_t i, Frame& frame) override {
    const Instruction& in = region_.instructions_[i];
    for (ValueId id : in.outputs) {
      if (id == kNoValue || id >= frame.values.size() || !frame.values[id].defined()) continue;
      const at::Tensor& local = frame.values[id];
      if (can_be_shaken(local) && !looks_at_operand(in, frame, id)) shake(local, phase_ + static_cast<double>(i));
    }
  }

  // What sums over rows come to may be zero by nature, and then it is rounding of what was summed.
  at::Tensor read(uint32_t use, const at::Tensor& local) override {
    if (!can_be_shaken(local)) return local;
    at::Tensor copy = local.clone();
    shake(copy, phase_ + 0.5 + static_cast<double>(use));
    return copy;
  }

 private:
  static double rounding_of(const at::Tensor& local) { return koila::rounding(local.scalar_type(), local.device().type()); }
  static bool can_be_shaken(const at::Tensor& local) {
    return local.layout() == at::kStrided && rounding_of(local) != 0 && local.numel() > 0 && local.is_non_overlapping_and_dense();
  }

  static void shake(const at::Tensor& local, double phase) {
    const double rounding = rounding_of(local);
    const double strength = rounding < 1e-5 ? 8 * rounding : 2 * rounding;
    const auto wide = local.options().dtype(c10::toRealValueType(local.scalar_type()) == at::kDouble ? at::kDouble : at::kFloat);
    const at::Tensor pattern = at::arange(local.numel(), wide).add_(1).mul_(phase).sin_().mul_(strength).add_(1);
    if (local.scalar_type() == wide.dtype().toScalarType()) {
      local.mul_(pattern.view(local.sizes()));
    } else {
      local.copy_(local.to(at::isComplexType(local.scalar_type()) ? local.scalar_type() : at::kFloat) * pattern.view(local.sizes()));
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

Proof::Proof(Region& region, const Region::Schedule& plan, const std::vector<ValueId>& keep) : region_(region), plan_(plan), keep_(keep) {
  const Session& s = session();
  if (!s.verifies() || region_.batch_ < 2 || region_.no_room_for_proof_) return;
  bool random = false;
  key_ = combined(static_cast<size_t>(region_.batch_), 0);
  const auto note = [&](const Value& v) {
    rounding_ = std::max(rounding_, rounding(v.dtype, region_.device_.type()));
    key_ = combined(key_, static_cast<size_t>(v.placement.kind) * 64 + static_cast<size_t>(v.placement.dim) * 8 + static_cast<size_t>(v.placement.inner > 1));
    key_ = combined(key_, static_cast<size_t>(v.dtype));
  };
  for (size_t i = 0; i < region_.instructions_.size(); ++i) {
    if (!plan.needed[i]) continue;
    const Instruction& in = region_.instructions_[i];
    random |= in.random || in.makes_fresh_memory();
    key_ = combined(key_, std::hash<const void*>()(&in.op.schema()));
    for (ValueId out : in.outputs) {
      if (out != kNoValue) note(region_.values_[out]);
    }
    for (const Argument& argument : in.arguments) {
      for (const Operand& o : argument.operands) key_ = combined(key_, static_cast<size_t>(o.kind) * 1000003 + o.id);
    }
  }
  again_ = !random && region_.micro_batch_ < region_.batch_ && is_new(key_);
  if (again_) first_.resize(keep_.size());
}

bool Proof::is_new(size_t key) const { return session().verifies_always() || session().proven.steps.count(key) == 0; }

void Proof::add(const Frame& frame) {
  if (!again_) return;
  for (size_t k = 0; k < keep_.size(); ++k) {
    const ValueId id = keep_[k];
    if (id >= frame.values.size() || !frame.values[id].defined()) continue;
    first_[k].add(frame.values[id], region_.values_[id].placement, region_.batch_, range(frame.rows));
  }
}

// A gradient is as it is, here; but its sum over all micro-batches is what the micro-batches gave, each once.
void Proof::add_gradient(uint32_t use, Rows rows, const at::Tensor& gradient) {
  if (!again_ || gradient.layout() != at::kStrided) return;
  const NoInterceptGuard no_intercept;
  gradients_.resize(region_.uses_.size());
  Tally& tally = gradients_[use];
  if (rows.end <= tally.until) return;
  const auto f = fingerprint(gradient.detach(), region_.uses_[use].placement, region_.batch_, range(rows), range(rows));
  tally.usable &= f.has_value();
  if (f) tally.sum += *f;
  tally.until = rows.end;
}

void Proof::check_gradients() {
  for (uint32_t u = 0; u < gradients_.size(); ++u) {
    const at::Tensor& total = region_.totals_[u];
    if (!gradients_[u].usable || !total.defined() || total.layout() != at::kStrided) continue;
    const Placement& p = region_.uses_[u].placement;
    auto f = fingerprint(total.detach(), p, region_.batch_, {0, region_.batch_}, {0, region_.batch_});
    if (!f) continue;
    const Fingerprint parts = p.is_shard() ? gradients_[u].sum : gradients_[u].sum.of_sum(), sum = p.is_shard() ? *f : f->of_sum();
    // Rows without a gradient are zeros; and what overflows does so in one order of summation, and not in another.
    if (!same_shape(parts, sum)) continue;
    // Summands may cancel: their own length is the measure.
    const double bound = std::max(1e-12, tolerance(std::max(rounding(total.scalar_type(), total.device().type()), rounding_)));
    if (difference(parts, sum) <= bound * std::sqrt(std::max(parts.squares, sum.squares))) continue;
    region_.broken(invariant::kSumsReachTheirCount, "a gradient is not the sum of what " + std::to_string(region_.statistics.runs) + " micro-batches gave");
  }
}

void Proof::check_value(ValueId value, const at::Tensor& full) {
  const auto kept = std::find(keep_.begin(), keep_.end(), value);
  if (!again_ || kept == keep_.end()) return;
  const Tally& parts = first_[static_cast<size_t>(kept - keep_.begin())];
  const Placement& p = region_.values_[value].placement;
  if (!parts.whole(region_.batch_) || p.is_replicate()) return;
  const NoInterceptGuard no_intercept;
  const auto f = fingerprint(full, p, region_.batch_, {0, region_.batch_}, {0, region_.batch_});
  if (!f) return;
  const Fingerprint a = parts.total(p), b = p.is_partial() ? f->of_sum() : *f;
  const bool whole = same_shape(a, b) || (p.is_partial() && a.nans + b.nans > 0);
  if (whole && difference(a, b) <= tolerated() * std::sqrt(std::max(a.squares, b.squares))) return;
  region_.broken(p.is_partial() ? invariant::kSumsReachTheirCount : invariant::kRowsOnce, "a value is not what the micro-batches gave");
  if (region_.broken_ != nullptr) {
    region_.broken_->numbers = {{"value", value}, {"entries", static_cast<double>(b.entries)}, {"of micro-batches", a.sums[0]}, {"found", b.sums[0]}, {"square of length", b.squares}, {"entries of micro-batches", static_cast<double>(a.entries)}};
  }
}

double Proof::tolerated() const { return std::max(tolerance(rounding_), 1e-12); }

// What shaking has moved a result by, and then some.
double Proof::margin(double noise, at::ScalarType type, double length) const {
  constexpr double kTimes = 8;
  return kTimes * noise + 4 * std::max(rounding(type, region_.device_.type()), rounding_) * length;
}

int64_t Proof::another_size() const {
  if (region_.micro_batch_ == 1) return 2;
  return std::min(region_.micro_batch_ - 1, (2 * region_.micro_batch_ + 2) / 3);
}

// All rows once more, without gradients.
void Proof::pass(int64_t size, const Region::Schedule& plan, FrameWatch* watch, Tallies* kept) {
  for (int64_t begin = 0; begin < region_.batch_; begin += size) {
    Frame frame{{begin, std::min(begin + size, region_.batch_)}, /*grad=*/false, {}, {}, 0, watch};
    region_.run(frame, region_.instructions_.size(), &plan);
    --region_.statistics.runs;  // none of the step's
    if (kept == nullptr) continue;
    for (size_t k = 0; k < keep_.size(); ++k) {
      if (keep_[k] < frame.values.size() && frame.values[keep_[k]].defined()) {
        (*kept)[k].add(frame.values[keep_[k]], region_.values_[keep_[k]].placement, region_.batch_, range(frame.rows));
      }
    }
  }
}

void Proof::finish() {
  if (region_.broken_ != nullptr) region_.condemn(*region_.broken_);
  if (!session().verifies() || (!again_ && region_.expected_ == nullptr)) return;
  const NoInterceptGuard no_intercept;
  const at::NoGradGuard no_grad;
  const Offload::MayFail may_fail;
  const StepSizes::Aside aside(session().sizes, region_.device_);
  try {
    hold_against_witnesses();
    if (again_) hold_against_another_size();
    hold_against_witnesses();  // of what the second pass was the first to make
  } catch (const std::exception& error) {
    // A refusal of its own making goes on; so does what wants the program to end.
    if (!region_.condemned_.empty() || is_python_interrupt(error)) throw;
    forget_python_error(error);
    take_allocator_ran_out();  // nobody's out-of-memory but the proof's
    region_.no_room_for_proof_ = true;
    session().log(KOILA_LOG_DEBUG, std::string("this step is not proven: ") + error.what());
    return;
  }
  if (region_.broken_ != nullptr) region_.condemn(*region_.broken_);
  if (again_) session().proven.steps.insert(key_);
}

void Proof::hold_against_witnesses() {
  if (region_.expected_ == nullptr) return;
  auto& doubts = region_.expected_->doubts;
  std::sort(doubts.begin(), doubts.end(), [](const Doubt& a, const Doubt& b) { return a.instruction < b.instruction; });
  for (const Doubt& doubt : doubts) {
    if (!is_real(doubt)) continue;
    Finding finding{"what PyTorch had computed", doubt.instruction, "", {}};
    finding.what = "gives other values in micro-batches than PyTorch had computed for the full batch before memory ran out";
    finding.numbers = {{"row", static_cast<double>(doubt.row)},
                       {"distance", distance(doubt.expected, doubt.found)},
                       {"expected", doubt.expected.sums[0]},
                       {"found", doubt.found.sums[0]},
                       {"length", length(doubt.expected)}};
    region_.condemn(finding);
  }
  doubts.clear();
  session().proven.steps.insert(region_.expected_->conversion);
  if (region_.expected_->by_instruction.empty()) region_.expected_.reset();
}

// The value's rows once more, as they are and shaken.
bool Proof::is_real(const Doubt& doubt) {
  if (region_.values_[doubt.value].random) return false;
  const Region::Schedule plan = region_.schedule({doubt.value});
  const Placement& placement = region_.values_[doubt.value].placement;
  const auto run = [&](FrameWatch* watch) {
    Tally tally;
    const int64_t step = doubt.row < 0 ? region_.micro_batch_ : 1, first = std::max<int64_t>(0, doubt.row), end = doubt.row < 0 ? region_.batch_ : first + 1;
    for (int64_t begin = first; begin < end; begin += step) {
      Frame frame{{begin, std::min(begin + step, end)}, /*grad=*/false, {}, {}, 0, watch};
      region_.run(frame, doubt.instruction + 1, &plan);
      --region_.statistics.runs;
      if (begin == first) tally.until = first;
      const auto part = fingerprint(frame.values[doubt.value], placement, region_.batch_, range(frame.rows), range(frame.rows));
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
  const bool real = (same && !same_shape(doubt.expected, base)) || difference(doubt.expected, base) > margin(noise, doubt.dtype, length(doubt.expected));
  session().log(KOILA_LOG_DEBUG, region_.instructions_[doubt.instruction].op.schema().name() + ", row " + std::to_string(doubt.row) + ", is off by " + std::to_string(difference(doubt.expected, base)) +
                                     " of " + std::to_string(length(doubt.expected)) + "; rounding may make " + std::to_string(noise) + (real ? ": wrong" : ""));
  return real;
}

void Proof::hold_against_another_size() {
  const int64_t size = another_size();
  Tallies second(keep_.size());
  pass(size, plan_, nullptr, &second);
  bool apart = false;
  for (size_t k = 0; k < keep_.size(); ++k) {
    if (!first_[k].whole(region_.batch_) || !second[k].whole(region_.batch_)) continue;
    const Placement& p = region_.values_[keep_[k]].placement;
    apart |= distance(first_[k].total(p), second[k].total(p)) > tolerated();
  }
  if (!apart || !is_real(first_, second, plan_, size)) return;
  Finding finding{"another size", at_fault(size), "gives other values in micro-batches of " + std::to_string(region_.micro_batch_) + " rows than of " + std::to_string(size), {}};
  for (size_t k = 0; k < keep_.size(); ++k) {
    const Placement& p = region_.values_[keep_[k]].placement;
    finding.numbers.emplace_back("in " + std::to_string(region_.micro_batch_), first_[k].total(p).sums[0]);
    finding.numbers.emplace_back("in " + std::to_string(size), second[k].total(p).sums[0]);
  }
  region_.condemn(finding);
}

bool Proof::is_real(const Tallies& first, const Tallies& second, const Region::Schedule& plan, int64_t size) {
  std::vector<double> noise(keep_.size(), 0);
  std::vector<char> same(keep_.size(), 1);
  const auto look = [&](FrameWatch* watch) {
    Tallies other(keep_.size());
    pass(size, plan, watch, &other);
    for (size_t k = 0; k < keep_.size(); ++k) {
      const Placement& p = region_.values_[keep_[k]].placement;
      noise[k] = std::max(noise[k], difference(second[k].total(p), other[k].total(p)));
      same[k] &= same_shape(second[k].total(p), other[k].total(p));
    }
  };
  look(nullptr);  // an operator that gives something else each time it is called proves nothing
  for (double phase : {1.0, 2.3}) {
    Jitter jitter(region_, phase);
    look(&jitter);
  }
  for (size_t k = 0; k < keep_.size(); ++k) {
    if (!first[k].whole(region_.batch_) || !second[k].whole(region_.batch_)) continue;
    const Placement& p = region_.values_[keep_[k]].placement;
    const Fingerprint a = first[k].total(p), b = second[k].total(p);
    if (same[k] && !same_shape(a, b)) return true;
    if (difference(a, b) > margin(noise[k], region_.values_[keep_[k]].dtype, length(a))) return true;
  }
  return false;
}

size_t Proof::at_fault(int64_t size) {
  Trace one(region_), other(region_);
  pass(region_.micro_batch_, plan_, &one, nullptr);
  pass(size, plan_, &other, nullptr);
  return one.first_apart(other, tolerated());
}

// --- what the region does for it ---

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
