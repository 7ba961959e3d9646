#include "torchglue/rescue/offload.h"

#include <utility>

#include "torchglue/rescue/events.h"
#include "torchglue/rescue/ladder.h"
#include "torchglue/session.h"

namespace koila {

namespace {

thread_local int must_not_fail = 0;
thread_local int may_fail = 0;

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

bool Offload::serves(int device, size_t bytes) {
  const Session& s = session();
  if (device != KOILA_CPU || !s.rescue || may_fail > 0 || !may(KOILA_RUNG_OFFLOAD) || std::this_thread::get_id() != s.owner) return false;
  if (!step_ && must_not_fail == 0) {
    if (!can_be_split_) return false;
    if (!can_) {
      const MayFail asking;
      can_ = can_be_split_();
    }
    if (*can_) return false;
  }
  if (!std::exchange(said_, true)) {
    OutOfMemory oom = describe_out_of_memory(s.engine_depth > 0 ? "backward" : s.tape.pending() != nullptr ? s.tape.pending()->op.schema().name() : op_);
    oom.device = device;
    oom.requested = static_cast<int64_t>(bytes);
    oom.live = s.runtime->live_bytes(device);
    report_rescue(oom, KOILA_RUNG_OFFLOAD);
  }
  return true;
}

void Offload::end() { step_ = said_ = false; }

}  // namespace koila
