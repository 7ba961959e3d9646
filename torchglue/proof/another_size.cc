// Some rows once more, in micro-batches of another size.

#include <ATen/ATen.h>
#include <c10/util/ScopeExit.h>

#include <algorithm>
#include <cmath>

#include "torchglue/base/tls.h"
#include "torchglue/proof/watches.h"
#include "torchglue/step/session.h"

namespace koila {

namespace {

// Of a stretch whose largest micro-batch has `largest` rows.
int64_t another_size(int64_t largest) { return largest == 1 ? 2 : std::min(largest - 1, (2 * largest + 2) / 3); }

}  // namespace

// The rows of `like`, with gradients where there is a `backward`.
Proof::Stretch Proof::pass(const Stretch& like, int64_t size, FrameWatch* watch, const Backward& backward) {
  Stretch made = begun_at(like.rows.begin);
  for (int64_t begin = like.rows.begin; begin < like.rows.end; begin += size) {
    Frame frame{{begin, std::min(begin + size, like.rows.end)}, /*grad=*/static_cast<bool>(backward), {}, {}, 0, watch};
    {
      const at::AutoGradMode grad(frame.grad);
      region_.run(frame, region_.instructions_.size(), &plan_);
    }
    --region_.statistics.runs;  // none of the step's
    note(made, frame);
    if (!backward) continue;
    taking_ = &made;
    const auto taken = c10::make_scope_exit([this] { taking_ = nullptr; });
    backward(frame);
  }
  return made;
}

bool Proof::takes(uint32_t use, Rows rows, const at::Tensor& gradient) {
  if (taking_ == nullptr) return false;
  if (gradient.defined() && region_.wanted_[region_.uses_[use].capture]) {
    const NoInterceptGuard no_intercept;
    add_part(taking_->gradients[use], use, rows, gradient);
  }
  return true;
}

// In the order of the values that are kept, then of uses. What either of the two has not whole is left out.
std::vector<Proof::Difference> Proof::differences(const Stretch& one, const Stretch& other) const {
  std::vector<Difference> found;
  const auto compare = [&](const Tally& a, const Tally& b, const Placement& p, at::ScalarType type, uint32_t use) {
    Difference d{{}, {}, type, false, use};
    if (a.whole(one.rows.end) && b.whole(other.rows.end)) {
      d.one = a.total(p);
      d.other = b.total(p);
      d.apart = distance(d.one, d.other) > tolerated();
    }
    found.push_back(d);
  };
  for (size_t k = 0; k < keep_.size(); ++k) compare(one.values[k], other.values[k], region_.values_[keep_[k]].placement, region_.values_[keep_[k]].dtype, kNoUse);
  for (uint32_t u = 0; u < std::min(one.gradients.size(), other.gradients.size()); ++u) {
    const Placement& p = region_.uses_[u].placement;
    compare(one.gradients[u], other.gradients[u], p.is_shard() ? p : Placement::partial(), region_.captures_[region_.uses_[u].capture].tensor.scalar_type(), u);
  }
  return found;
}

void Proof::hold_against_another_size(const Backward& backward) {
  if (session().verifies_always()) {
    if (complete(whole_)) hold_against_another_size(whole_, backward);
    return;
  }
  if (!complete(first_) || !complete(last_)) return;
  // In forward passes over all rows; backward takes twice as long as forward.
  const auto batch = static_cast<double>(region_.batch_);
  const double bound = 2.0 / 3, first = static_cast<double>(first_.rows.count()) / batch, last = static_cast<double>(last_.rows.count()) / batch;
  hold_against_another_size(first_, {});
  if (last_.rows.begin < first_.rows.end || first + last > bound) return;
  hold_against_another_size(last_, first + 3 * last <= bound ? backward : Backward());
}

void Proof::hold_against_another_size(const Stretch& stretch, const Backward& backward) {
  const int64_t size = another_size(stretch.largest);
  const Stretch other = pass(stretch, size, nullptr, backward);
  const auto found = differences(stretch, other);
  if (std::none_of(found.begin(), found.end(), [](const Difference& d) { return d.apart; })) return;
  const int64_t real = first_real(stretch, other, size, backward);
  if (real < 0) return;
  const Difference& d = found[static_cast<size_t>(real)];
  const std::string sizes = "in micro-batches of " + std::to_string(stretch.largest) + " rows than of " + std::to_string(size);
  Finding finding{"another size", SIZE_MAX, "", {}};
  if (d.use == kNoUse) {
    finding.instruction = at_fault(stretch, size);
    finding.what = "gives other values " + sizes;
  } else {
    finding.instruction = reader_of(d.use);
    finding.what = "has another gradient for what it reads " + sizes;
  }
  finding.numbers = {{"first row", static_cast<double>(stretch.rows.begin)}, {"rows", static_cast<double>(stretch.rows.count())},
                     {"in " + std::to_string(stretch.largest), d.one.sums[0]}, {"in " + std::to_string(size), d.other.sums[0]}, {"length", d.one.length()}};
  region_.condemn(finding);
}

int64_t Proof::first_real(const Stretch& one, const Stretch& other, int64_t size, const Backward& backward) {
  const auto found = differences(one, other);
  std::vector<double> noise(found.size(), 0);
  std::vector<char> same(found.size(), 1);
  const auto look = [&](FrameWatch* watch) {
    const auto again = differences(other, pass(other, size, watch, backward));
    for (size_t i = 0; i < again.size(); ++i) {
      noise[i] = std::max(noise[i], difference(again[i].one, again[i].other));
      same[i] &= same_shape(again[i].one, again[i].other);
    }
  };
  look(nullptr);  // an operator that gives something else each time it is called proves nothing
  for (double phase : {1.0, 2.3, 3.7}) {
    Jitter jitter(region_, phase);
    look(&jitter);
  }
  for (size_t i = 0; i < found.size(); ++i) {
    const Difference& d = found[i];
    if (!d.apart) continue;
    if (same[i] && !same_shape(d.one, d.other)) return static_cast<int64_t>(i);
    if (difference(d.one, d.other) > margin(noise[i], d.dtype, d.one.length())) return static_cast<int64_t>(i);
  }
  return -1;
}

size_t Proof::at_fault(const Stretch& stretch, int64_t size) {
  Trace one(region_, stretch.rows.begin), other(region_, stretch.rows.begin);
  for (size_t i = 0; i < stretch.starts.size(); ++i) {
    const int64_t end = i + 1 < stretch.starts.size() ? stretch.starts[i + 1] : stretch.rows.end;
    Frame frame{{stretch.starts[i], end}, /*grad=*/false, {}, {}, 0, &one};
    region_.run(frame, region_.instructions_.size(), &plan_);
    --region_.statistics.runs;
  }
  pass(stretch, size, &other, {});
  return one.first_apart(other, tolerated(), stretch.rows.end);
}

size_t Proof::reader_of(uint32_t use) const {
  for (size_t i = 0; i < region_.instructions_.size(); ++i) {
    for (const Argument& argument : region_.instructions_[i].arguments) {
      for (const Operand& o : argument.operands) {
        if (o.kind == Operand::Kind::kUse && o.id == use) return i;
      }
    }
  }
  return SIZE_MAX;
}

}  // namespace koila
