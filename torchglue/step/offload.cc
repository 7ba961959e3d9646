#include "torchglue/step/offload.h"

#include <utility>

#include "torchglue/base/hot.h"
#include "torchglue/oom/events.h"
#include "torchglue/step/ladder.h"
#include "torchglue/step/session.h"
#include "torchglue/step/spare.h"

namespace koila {

namespace {

constexpr size_t kFewBytes = 1024;

KOILA_HOT thread_local int must_not_fail = 0;
KOILA_HOT thread_local int may_fail = 0;

int64_t lacking(int device, size_t bytes) {
  const koila_runtime& runtime = *session().runtime;
  return runtime.live_bytes(device) + static_cast<int64_t>(bytes) - runtime.budget_bytes(device);
}

}  // namespace

Offload::MustNotFail::MustNotFail(bool must_not) : must_not_(must_not) { must_not_fail += must_not_ ? 1 : 0; }
Offload::MustNotFail::~MustNotFail() { must_not_fail -= must_not_ ? 1 : 0; }

Offload::MayFail::MayFail() { ++may_fail; }
Offload::MayFail::~MayFail() { --may_fail; }

Offload::Backward::Backward(Offload& offload, std::function<bool()> can_be_split)
    : offload_(offload), before_(std::exchange(offload.can_be_split_, std::move(can_be_split))), before_can_(std::exchange(offload.can_, std::nullopt)) {}

Offload::Backward::~Backward() {
  offload_.can_be_split_ = std::move(before_);
  offload_.can_ = before_can_;
}

bool Offload::begin(int device, const std::string& op) {
  if (device != KOILA_CPU || !may(KOILA_RUNG_OFFLOAD)) return false;
  step_ = true;
  with_gradients_ = c10::AutogradState::get_tls_state().get_grad_mode();
  op_ = op;
  return true;
}

bool Offload::begin_in_rows(int device) {
  if (in_rows_ || device != KOILA_CPU || !may(KOILA_RUNG_OFFLOAD) || std::this_thread::get_id() != session().owner) return false;
  with_gradients_ = true;
  return step_ = in_rows_ = true;
}

bool Offload::serves(size_t bytes) {
  if (!may(KOILA_RUNG_OFFLOAD)) return false;
  if (step_ || must_not_fail > 0 || bytes <= kFewBytes) return true;
  if (!can_be_split_) return false;
  if (!can_) {
    const MayFail asking;
    can_ = can_be_split_();
  }
  return !*can_;
}

Offload::Answer Offload::ask(int device, size_t bytes, bool on_purpose) {
  const Session& s = session();
  if (device != KOILA_CPU || !s.rescue || std::this_thread::get_id() != s.owner) return Answer::kFail;
  if (!on_purpose && s.engine_depth > 0 && (spare_first_frames() || spare_gradients(lacking(device, bytes)))) return Answer::kTryAgain;
  if (may_fail > 0 && !in_rows_) return Answer::kFail;
  // Where nobody could try again but the allocator.
  if (on_purpose && may(KOILA_RUNG_RETRY) && (bytes <= kFewBytes || must_not_fail > 0 || (s.engine_depth > 0 && may_fail == 0))) {
    say(describe(device, bytes), KOILA_RUNG_RETRY);
    return Answer::kTryAgain;
  }
  return serves(bytes) ? Answer::kServe : Answer::kFail;
}

void Offload::served(int device, size_t bytes) { say(describe(device, bytes), KOILA_RUNG_OFFLOAD); }

OutOfMemory Offload::describe(int device, size_t bytes) const {
  const Session& s = session();
  OutOfMemory oom = describe_out_of_memory(s.engine_depth > 0 ? "backward" : s.tape.pending() != nullptr ? s.tape.pending()->op.schema().name() : op_);
  oom.device = device;
  oom.requested = static_cast<int64_t>(bytes);
  oom.live = s.runtime->live_bytes(device);
  return oom;
}

void Offload::came_through(const OutOfMemory& oom) { say(oom, KOILA_RUNG_OFFLOAD); }

// Once a step: what is served may be every allocation of it.
void Offload::say(const OutOfMemory& oom, koila_rung rung) {
  if (rung == KOILA_RUNG_RETRY || !std::exchange(said_, true)) report_rescue(oom, rung);
}

void Offload::end() { step_ = in_rows_ = said_ = false; }

}  // namespace koila
