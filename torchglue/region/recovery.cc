// What a region does about memory that ran out, and how large its micro-batches are.

#include "torchglue/region/recovery.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "torchglue/oom/events.h"
#include "torchglue/oom/oom.h"
#include "torchglue/oom/python_error.h"
#include "torchglue/region/boundary_store.h"
#include "torchglue/step/ladder.h"
#include "torchglue/step/session.h"

namespace koila {

bool Recovery::ran_out(const std::exception& error) { return is_out_of_memory(error); }

std::exception_ptr Recovery::keep(const std::exception& error) { return kept_exception(error); }

bool Recovery::try_again(int& tries) {
  const OutOfMemory oom = describe_out_of_memory("a micro-batch");
  if (!worth_another_try(oom, tries, /*micro_batch=*/true)) return false;
  report_rescue(oom, KOILA_RUNG_RETRY);
  return true;
}

bool Recovery::make_room() { return (first_frame_ == FirstFrame::kStandsBy && region_.drop_first_frame()) || region_.make_room(); }

bool Recovery::shrink(int64_t rows) { return region_.shrink(rows); }

bool Recovery::serve() { return boundaries().evict(region_.device()) || session().offload.begin_in_rows(device_number(region_.device())); }

void Recovery::clean_up() {
  if (first_frame_ == FirstFrame::kFails) region_.drop_first_frame();
}

// As long as nothing better is known, passes are eight.
int64_t Region::enough_rows() const {
  const int64_t known = session().sizes.enough_rows(batch_);
  return known > 0 ? known : std::max<int64_t>(1, batch_ / 8);
}

// Before a micro-batch shrinks: what can be had otherwise. Graphs of earlier stages' first micro-batches, which can be made again, and then
// boundaries, which can be moved.
bool Region::make_room() {
  ahead_.clear();
  bool dropped = false;
  for (const auto& region : session().live_regions()) dropped |= region.get() != this && !region->open() && region->drop_first_frame();
  return dropped || ((may(KOILA_RUNG_OFFLOAD) || micro_batch_ <= enough_rows()) && boundaries().evict(device_));
}

bool Region::drop_first_frame() {
  const bool had = first_.next > 0;
  first_ = Frame{{0, lead()}, /*grad=*/true, {}, {}, 0};
  return had;
}

bool Region::shrink() { return shrink(micro_batch_); }

bool Region::shrink(int64_t failed) {
  if (micro_batch_ <= 1 || failed <= 1 || observed_random_) return false;
  halve(failed);
  return true;
}

void Region::halve(int64_t failed) {
  session().sizes.failed(batch_, std::min(micro_batch_, failed));
  micro_batch_ = std::max<int64_t>(1, std::min(micro_batch_, failed) / 2);
  if (lead_ >= micro_batch_) lead_ = 0;
  ++statistics.halvings;
  drop_first_frame();
  report_rescue(describe_out_of_memory("a micro-batch"), micro_batch_, batch_);
}

// What the first rows have left, activations, and their gradients on the way back, grow with the rows: three quarters as much as they, or two of the
// largest. What they had at their peak beyond that is a kernel's workspace, and does not; and there is what is as large whatever the rows: the gradients of parameters,
// one of them twice while it is summed, and what the program reads. Without gradients nothing is left, and the peak is what grows. All this is a guess: the step is measured, and the next one will know.
void Region::choose_size() {
  Session& s = session();
  const auto policy = s.sizes.policy_of(batch_);
  if (policy == nullptr || !policy->probing() || lead_ > 0 || micro_batch_ != kLazyRows || observed_random_) return;
  const auto available = s.sizes.available_to(batch_);
  const auto taken = s.sizes.taken(batch_);
  double growing = static_cast<double>(taken.peak);
  if (differentiable()) {
    double largest = 0;  // over the full batch
    for (const Value& value : values_) {
      const double bytes = static_cast<double>(c10::multiply_integers(value.sizes)) * static_cast<double>(c10::elementSize(value.dtype));
      if (value.placement.is_shard()) largest = std::max(largest, bytes);
    }
    const double now = static_cast<double>(taken.now);
    growing = std::max(1.75 * now, now + 2 * largest * static_cast<double>(micro_batch_) / static_cast<double>(batch_));
  }
  if (!available || growing <= 0) return;
  int64_t standing = 0;
  if (differentiable()) {
    int64_t largest = 0;
    for (const Capture& capture : captures_) {
      if (!capture.requires_grad || !capture.tensor.defined()) continue;
      standing += static_cast<int64_t>(capture.tensor.nbytes());
      largest = std::max(largest, static_cast<int64_t>(capture.tensor.nbytes()));
    }
    standing += taken.peak - taken.now + largest;
  }
  for (ValueId id : held_deferred()) {
    if (groups_[values_[id].group].base == id) standing += static_cast<int64_t>(groups_[values_[id].group].storage.nbytes());
  }
  const double rows = (static_cast<double>(*available) * 0.95 - static_cast<double>(standing)) / (growing / static_cast<double>(micro_batch_));
  if (rows <= static_cast<double>(micro_batch_)) return;
  lead_ = micro_batch_;
  const int64_t rest = batch_ - lead_;
  const int64_t passes = static_cast<int64_t>(std::ceil(static_cast<double>(rest) / rows));
  micro_batch_ = std::max(micro_batch_, (rest + passes - 1) / passes);
  policy->use(micro_batch_);
  s.log(KOILA_LOG_DEBUG, "the first " + std::to_string(lead_) + " rows took " + std::to_string(differentiable() ? taken.now : taken.peak) + " bytes: micro-batches of " + std::to_string(micro_batch_));
}

}  // namespace koila
