#include "runtime/event_feed.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <thread>
#include <utility>

namespace koila {
namespace {

std::atomic<std::uint64_t> last_number{0};

thread_local const EventFeed* telling = nullptr;

}  // namespace

std::uint64_t EventFeed::add(int kinds, Function function, void* context) {
  const std::lock_guard lock(mutex_);
  if (stopped_ || (!has_thread_ && !start_thread())) return 0;
  const std::uint64_t number = last_number.fetch_add(1) + 1;
  listeners_.push_back({number, kinds, function, context});
  update_kinds();
  return number;
}

void EventFeed::remove(std::uint64_t number) {
  std::unique_lock lock(mutex_);
  const auto is_it = [&](const Listener& l) { return l.number == number; };
  const bool known = std::any_of(listeners_.begin(), listeners_.end(), is_it);
  if (known && !is_telling()) {
    const std::uint64_t up_to = taken_;
    progress_.wait(lock, [&] { return drained(up_to); });
  }
  std::erase_if(listeners_, is_it);
  update_kinds();
  if (!is_telling()) progress_.wait(lock, [&] { return in_call_ != number; });
}

void EventFeed::post(FeedEvent event) {
  {
    const std::lock_guard lock(mutex_);
    if (stopped_ || (kinds_.load(std::memory_order_relaxed) & event.figures.kind) == 0) return;
    if (waiting_.size() >= kMaxWaitingEvents) {
      ++lost_;
      return;
    }
    event.figures.lost = lost_;
    waiting_.push_back(std::move(event));
    lost_ = 0;
    ++taken_;
  }
  posted_.notify_one();
}

void EventFeed::stop() {
  const std::lock_guard lock(mutex_);
  stopped_ = true;
  waiting_.clear();
  progress_.notify_all();
}

bool EventFeed::is_telling() const { return telling == this; }

// Signals are for the program's threads.
bool EventFeed::start_thread() {
  sigset_t all, before;
  sigfillset(&all);
  if (pthread_sigmask(SIG_SETMASK, &all, &before) != 0) return false;
  try {
    std::thread([this] { run(); }).detach();
    has_thread_ = true;
  } catch (const std::exception&) {
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return has_thread_;
}

void EventFeed::run() {
  pthread_setname_np(pthread_self(), "koila events");
  telling = this;
  std::unique_lock lock(mutex_);
  for (;;) {
    posted_.wait(lock, [&] { return !waiting_.empty(); });
    const FeedEvent event = std::move(waiting_.front());
    waiting_.pop_front();
    tell(event, lock);
    ++told_;
    progress_.notify_all();
  }
}

// The list may change while somebody is called: numbers only go up, so the last that was called says where to go on.
void EventFeed::tell(const FeedEvent& event, std::unique_lock<std::mutex>& lock) {
  koila_event figures = event.figures;
  figures.size = sizeof figures;
  figures.op = event.op.c_str();
  figures.reason = event.reason.c_str();
  const std::uint64_t newest = listeners_.empty() ? 0 : listeners_.back().number;
  for (std::uint64_t last = 0; !stopped_;) {
    const auto next = std::find_if(listeners_.begin(), listeners_.end(), [&](const Listener& l) { return l.number > last && (l.kinds & figures.kind) != 0; });
    if (next == listeners_.end() || next->number > newest) return;
    const Listener listener = *next;
    last = in_call_ = listener.number;
    lock.unlock();
    try {
      listener.function(listener.context, &figures);
    } catch (...) {  // it was not to throw
    }
    lock.lock();
    in_call_ = 0;
    progress_.notify_all();
  }
}

void EventFeed::update_kinds() {
  int kinds = 0;
  for (const Listener& l : listeners_) kinds |= l.kinds;
  kinds_.store(kinds, std::memory_order_relaxed);
}

}  // namespace koila
