#include "torchglue/proof/proof.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "torchglue/base/tls.h"
#include "torchglue/oom/error_text.h"
#include "torchglue/oom/oom.h"
#include "torchglue/oom/python_error.h"
#include "torchglue/proof/invariants.h"
#include "torchglue/proof/key.h"
#include "torchglue/step/session.h"

namespace koila {

namespace {

RowRange range(Rows rows) { return {rows.begin, rows.end}; }

}  // namespace

Proof::Proof(Region& region, const Schedule& plan, const std::vector<ValueId>& keep) : region_(region), plan_(plan), keep_(keep) {
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
    rounding_ = std::max(rounding_, region_.coarsest(in));
    for (ValueId out : in.outputs) {
      if (out != kNoValue) note(region_.values_[out]);
    }
    for (const Argument& argument : in.arguments) {
      for (const Operand& o : argument.operands) key_ = combined(key_, static_cast<size_t>(o.kind) * 1000003 + o.id);
    }
  }
  again_ = !random && region_.micro_batch_ < region_.batch_ && is_new(key_);
  if (again_) held_.resize(keep_.size());
}

bool Proof::is_new(size_t key) const { return session().verifies_always() || session().proven.steps.count(key) == 0; }

int64_t Proof::entries_at_most() const {
  constexpr int64_t kOfAGradient = 4096;  // whatever goes wrong with a gradient does so for many entries
  return session().verifies_always() ? INT64_MAX : kOfAGradient;
}

Proof::Stretch Proof::begun_at(int64_t row) const {
  Tally none;
  none.until = row;
  return {{row, row}, 0, {}, Tallies(keep_.size(), none), Tallies(region_.uses_.size(), none)};
}

void Proof::note(Stretch& stretch, const Frame& frame) const {
  if (frame.rows.end <= stretch.rows.end) return;  // run again: its rows have been there
  for (size_t k = 0; k < keep_.size(); ++k) {
    const ValueId id = keep_[k];
    if (id >= frame.values.size() || !frame.values[id].defined()) continue;
    stretch.values[k].add(frame.values[id], region_.values_[id].placement, region_.batch_, range(frame.rows));
  }
  stretch.starts.push_back(frame.rows.begin);
  stretch.largest = std::max(stretch.largest, frame.rows.count());
  stretch.rows.end = frame.rows.end;
}

// A stretch of one row cannot be divided: it takes in the next, and the last the one before.
void Proof::add(const Frame& frame) {
  if (!again_) return;
  const Rows rows = frame.rows;
  if (session().verifies_always()) {
    if (whole_.values.empty()) whole_ = begun_at(0);
    return note(whole_, frame);
  }
  if (rows.begin == 0) first_ = begun_at(0);
  if (rows.begin == 0 || (rows.begin == first_.rows.end && first_.rows.count() < 2)) note(first_, frame);
  if (rows.end == region_.batch_ - 1) {
    before_last_ = begun_at(rows.begin);
    note(before_last_, frame);
  }
  if (rows.end != region_.batch_) return;
  const bool alone = rows.count() == 1 && complete(before_last_) && before_last_.rows.end == rows.begin;
  last_ = alone ? before_last_ : begun_at(rows.begin);
  note(last_, frame);
}

void Proof::stored(ValueId value, Rows rows, const at::Tensor& part) {
  const auto kept = std::find(keep_.begin(), keep_.end(), value);
  if (!again_ || kept == keep_.end()) return;
  held_[static_cast<size_t>(kept - keep_.begin())].add(part, region_.values_[value].placement, region_.batch_, range(rows));
}

void Proof::add_part(Tally& gradient, uint32_t use, Rows rows, const at::Tensor& part) const {
  const Placement& p = region_.uses_[use].placement;
  if (rows.end <= gradient.until) return;
  const auto f = part.layout() == at::kStrided && rows.begin >= gradient.until
                     ? fingerprint(part.detach(), p.is_shard() ? p : Placement::partial(), region_.batch_, range(rows), range(rows), entries_at_most())
                     : std::nullopt;
  gradient.usable &= f.has_value();
  if (f) gradient.sum += *f;
  gradient.until = rows.end;
}

// A gradient is as it is, here; but its sum over all micro-batches is what the micro-batches gave, each once.
void Proof::add_gradient(uint32_t use, Rows rows, const at::Tensor& gradient) {
  if (!again_) return;
  const NoInterceptGuard no_intercept;
  gradients_.resize(region_.uses_.size());
  add_part(gradients_[use], use, rows, gradient);
  for (Stretch* stretch : {&before_last_, &last_, &whole_}) {
    if (complete(*stretch) && rows.begin >= stretch->rows.begin && rows.end <= stretch->rows.end) add_part(stretch->gradients[use], use, rows, gradient);
  }
}

void Proof::start_over() {
  gradients_.clear();
  for (Stretch* stretch : {&first_, &before_last_, &last_, &whole_}) *stretch = {};
}

void Proof::check_gradients() {
  for (uint32_t u = 0; u < gradients_.size(); ++u) {
    const at::Tensor& total = region_.totals_[u];
    if (!gradients_[u].usable || gradients_[u].until == 0 || !total.defined() || total.layout() != at::kStrided) continue;
    const Placement& p = region_.uses_[u].placement;
    auto f = fingerprint(total.detach(), p, region_.batch_, {0, region_.batch_}, {0, region_.batch_}, entries_at_most());
    if (!f) continue;
    const Fingerprint parts = p.is_shard() ? gradients_[u].sum : gradients_[u].sum.of_sum(), sum = p.is_shard() ? *f : f->of_sum();
    // Rows without a gradient are zeros; and what overflows does so in one order of summation, and not in another.
    if (!same_shape(parts, sum)) continue;
    // Summands may cancel: their own length is the measure.
    const double bound = std::max(1e-12, tolerance(std::max(rounding(total.scalar_type(), total.device().type()), rounding_)));
    if (difference(parts, sum) <= bound * std::max(parts.length(), sum.length())) continue;
    region_.broken(invariant::kSumsReachTheirCount, "a gradient is not the sum of what " + std::to_string(region_.statistics.runs) + " micro-batches gave", reader_of(u));
  }
  given_.assign(region_.captures_.size(), {});
  for (uint32_t u = 0; u < gradients_.size(); ++u) {
    const int64_t edge = region_.captures_[region_.uses_[u].capture].edge;
    const at::Tensor& total = region_.totals_[u];
    if (edge < 0 || !total.defined()) continue;
    const auto f = fingerprint(total.detach(), Placement::partial(), region_.batch_, {0, region_.batch_}, {0, region_.batch_}, entries_at_most());
    auto& [sum, count] = given_[static_cast<size_t>(edge)];
    if (f) sum += f->of_sum();
    count = f ? count + 1 : -static_cast<int>(gradients_.size());  // one that has none spoils it
  }
}

// Of what is read in several ways.
void Proof::check_results(const std::vector<at::Tensor>& results) {
  for (size_t edge = 0; edge < std::min(given_.size(), results.size()); ++edge) {
    const auto& [sum, count] = given_[edge];
    if (count < 2 || !results[edge].defined() || sum.nans > 0) continue;
    const auto f = fingerprint(results[edge].detach(), Placement::partial(), region_.batch_, {0, region_.batch_}, {0, region_.batch_}, entries_at_most());
    if (!f || f->of_sum().nans > 0) continue;
    const double bound = std::max(1e-12, tolerance(std::max(rounding(results[edge].scalar_type(), region_.device_.type()), rounding_)));
    if (difference(sum, *f) <= bound * std::max(sum.length(), f->length())) continue;
    region_.broken(invariant::kSumsReachTheirCount, "a gradient is not the sum of those of the " + std::to_string(count) + " ways in which its tensor is read");
  }
}

void Proof::check_value(const Held& held) {
  const ValueId value = held.base;
  const at::Tensor& full = held.full;
  if (!held.origin.after.empty()) return;  // not the sum of what micro-batches gave, but made of sums, whose entries may cancel: see Note [Sums before what follows]
  const auto kept = std::find(keep_.begin(), keep_.end(), value);
  if (!again_ || kept == keep_.end()) return;
  const Tally& parts = held_[static_cast<size_t>(kept - keep_.begin())];
  const Placement& p = region_.values_[value].placement;
  if (!parts.whole(region_.batch_) || p.is_replicate()) return;
  const NoInterceptGuard no_intercept;
  const auto f = fingerprint(full, p, region_.batch_, {0, region_.batch_}, {0, region_.batch_});
  if (!f) return;
  const Fingerprint a = parts.total(p), b = p.is_partial() ? f->of_sum() : *f;
  const bool whole = same_shape(a, b) || (p.is_partial() && a.nans + b.nans > 0);
  // Summands may cancel: their own length is the measure.
  if (whole && difference(a, b) <= tolerated() * std::max(a.length(), b.length())) return;
  region_.broken(p.is_partial() ? invariant::kSumsReachTheirCount : invariant::kRowsOnce, "a value is not what the micro-batches gave");
  if (region_.broken_ != nullptr) {
    region_.broken_->numbers = {{"value", value}, {"entries", static_cast<double>(b.entries)}, {"of micro-batches", a.sums[0]}, {"found", b.sums[0]}, {"length", b.length()}, {"entries of micro-batches", static_cast<double>(a.entries)}};
  }
}

double Proof::tolerated() const { return std::max(tolerance(rounding_), 1e-12); }

// What shaking has moved a result by, and then some.
double Proof::margin(double noise, at::ScalarType type, double length) const {
  constexpr double kTimes = 8;
  return kTimes * noise + 4 * std::max(rounding(type, region_.device_.type()), rounding_) * length;
}

void Proof::finish(const Backward& backward) {
  if (region_.broken_ != nullptr) region_.condemn(*region_.broken_);
  if (!session().verifies() || (!again_ && region_.expected_ == nullptr)) return;
  const NoInterceptGuard no_intercept;
  const at::NoGradGuard no_grad;
  const Offload::MayFail may_fail;
  const StepSizes::Aside aside(session().sizes, region_.device_);
  try {
    hold_against_witnesses();
    if (again_) hold_against_another_size(backward);
    hold_against_witnesses();  // of what the second pass was the first to make
  } catch (const std::exception& error) {
    // A refusal of its own making goes on; so does what wants the program to end.
    if (!region_.condemned_.empty() || is_python_interrupt(error)) throw;
    forget_python_error(error);
    take_allocator_ran_out();  // nobody's out-of-memory but the proof's
    region_.no_room_for_proof_ = true;
    session().log(KOILA_LOG_DEBUG, std::string("this step is not proven: ") + error_text(error));
    return;
  }
  if (region_.broken_ != nullptr) region_.condemn(*region_.broken_);
  if (again_) session().proven.steps.insert(key_);
}

}  // namespace koila
