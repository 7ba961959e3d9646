// To hear of what koila does:
//
//     const auto subscription = koila::on_event(koila::EventKind::kOutOfMemory | koila::EventKind::kStep, [](const koila::Event& event) {
//       std::cerr << event.op << " ran out of memory in step " << event.step << ": " << (event.kind == koila::EventKind::kRescue ? "rescued" : event.reason) << '\n';
//     });
//
// C++17; header-only over LibTorch.
#ifndef KOILA_EVENTS_H_
#define KOILA_EVENTS_H_

#include <c10/core/Device.h>
#include <c10/util/Exception.h>

#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "koila/detail/abi.h"

namespace koila {

// Kinds may be joined with |.
enum class EventKind {
  kRescue = KOILA_EVENT_RESCUE,                // an out-of-memory that koila rescued
  kRefusal = KOILA_EVENT_REFUSAL,              // one that it handed on to the program
  kOutOfMemory = KOILA_EVENT_OUT_OF_MEMORY,    // either
  kStep = KOILA_EVENT_STEP,                    // the end of an outermost backward pass
};
inline constexpr EventKind operator|(EventKind a, EventKind b) { return static_cast<EventKind>(static_cast<int>(a) | static_cast<int>(b)); }

enum class Phase { kForward = KOILA_FORWARD, kBackward = KOILA_BACKWARD, kNoGrad = KOILA_NO_GRAD /* evaluation, an optimizer: outside backward */ };

// Bytes and rows are 0 where they are unknown.
struct Event {
  EventKind kind = EventKind::kStep;           // kRescue, kRefusal or kStep
  c10::Device device = c10::DeviceType::CPU;   // of a step: whose tensors took most
  Phase phase = Phase::kBackward;              // in which memory ran out
  std::string op;                              // that ran out, such as "aten::linear"; "" when unknown, and of a step
  std::string reason;                          // of a refusal, one sentence; else ""
  std::int64_t requested_bytes = 0;            // of an out-of-memory
  std::int64_t live_bytes = 0;                 // on the device: when it ran out; at the end of the step
  std::int64_t peak_bytes = 0;                 // of a step: the most within it
  std::int64_t budget_bytes = 0;               // 0: none
  std::int64_t micro_batch = 0;                // rows; 0 where nothing was split
  std::int64_t batch = 0;                      // rows of the full batch
  std::int64_t step = 0;                       // the number of a step that ended, from 1; of an out-of-memory, steps that had ended by then
  std::int64_t rescues = 0;                    // of a step: how many there were in it
  std::int64_t lost = 0;                       // events before this one that nobody was told of: more had come than were listened to
};

namespace detail {

// Outlives its subscription for as long as it is being called: it may end its own.
class Listener : public std::enable_shared_from_this<Listener> {
 public:
  explicit Listener(std::function<void(const Event&)> function) : function_(std::move(function)) {}

  static void call(void* context, const koila_event* said) {
    const std::shared_ptr<Listener> self = static_cast<Listener*>(context)->shared_from_this();
    try {
      self->function_({static_cast<EventKind>(said->kind), device_of_number(said->device), static_cast<Phase>(said->phase), said->op, said->reason,
                       said->requested_bytes, said->live_bytes, said->peak_bytes, said->budget_bytes, said->micro_batch, said->batch, said->step,
                       said->rescues, said->lost});
    } catch (const c10::Error& error) {
      self->complain(error.what_without_backtrace());
    } catch (const std::exception& error) {
      self->complain(error.what());
    } catch (...) {
      self->complain("something that is no std::exception");
    }
  }

 private:
  void complain(const char* what) {
    if (!std::exchange(complained_, true)) std::fprintf(stderr, "koila::on_event: the function threw: %s (said once)\n", what);
  }

  const std::function<void(const Event&)> function_;
  bool complained_ = false;
};

}  // namespace detail

// Ends what on_event() began when it ends itself, or before with cancel(). Movable. An empty one does nothing.
//
// The end: events that came before it are still told, then no more, and once it has returned the function is not running. So it must not be ended with a lock held
// that the function takes. Within the function it waits for nothing, and what has not been told is not told.
class [[nodiscard]] Subscription {
 public:
  Subscription() = default;
  ~Subscription() { cancel(); }
  Subscription(Subscription&& other) noexcept : number_(std::exchange(other.number_, 0)), listener_(std::move(other.listener_)) {}
  Subscription& operator=(Subscription&& other) noexcept {
    if (this == &other) return *this;
    cancel();
    number_ = std::exchange(other.number_, 0);
    listener_ = std::move(other.listener_);
    return *this;
  }

  // Whether there may be events: not where koila is not in the process, or stays out of it.
  explicit operator bool() const { return number_ != 0; }

  void cancel() {
    if (number_ != 0) detail::Abi::get().remove_listener(std::exchange(number_, 0));
    listener_.reset();
  }

 private:
  friend Subscription on_event(EventKind, std::function<void(const Event&)>);

  std::uint64_t number_ = 0;
  std::shared_ptr<detail::Listener> listener_;
};

// From now on `function` is called for each event of these kinds, in the order in which they happen. Without koila nothing ever happens, and the subscription is empty.
// Throws c10::ValueError for an empty function.
//
// Threads: the calls come one at a time, on a thread of koila's own, and the program does not wait for them: by then it has gone on. So the function may take its
// time, make tensors, run out of memory and call koila, all of which would break a step that it was called in the middle of; and what it shares with the
// program it must share as threads do. What happens on that thread within a call is in the report and is no event. What the function throws goes to stderr, once,
// and no further. At most 1000 events wait; Event::lost counts those beyond.
//
// An event is in the report before it comes here. When the program exits the calls end (as a handler of std::atexit does that was registered when the process
// subscribed first): end the subscription before, to have heard everything. The child of a fork has no subscriptions.
inline Subscription on_event(EventKind kinds, std::function<void(const Event&)> function) {
  TORCH_CHECK_VALUE(function != nullptr, "koila::on_event: the function is empty; pass one that takes a const koila::Event&");
  Subscription subscription;
  const detail::Abi& koila = detail::Abi::get();
  if (!koila) return subscription;
  subscription.listener_ = std::make_shared<detail::Listener>(std::move(function));
  subscription.number_ = koila.add_listener(static_cast<int>(kinds), &detail::Listener::call, subscription.listener_.get());
  if (subscription.number_ == 0) subscription.listener_.reset();
  return subscription;
}

}  // namespace koila

#endif  // KOILA_EVENTS_H_
