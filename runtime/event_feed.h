// Tells the program's own functions what happens, on a thread that there is for nothing else.
//
// Note [Why a thread]
// An out-of-memory is dealt with in the middle of an operator, of a backward pass, of an allocator that PyTorch calls: under its locks and koila's, with
// thread-local state that says how operators are to be taken, and with a step half rebuilt. Whatever the program did there (a tensor, a log line that
// formats one, another out-of-memory) would be done within that. So what happens is only noted there, and told elsewhere.
#ifndef KOILA_RUNTIME_EVENT_FEED_H_
#define KOILA_RUNTIME_EVENT_FEED_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <vector>

#include "koila/koila.h"

namespace koila {

constexpr std::size_t kMaxWaitingEvents = 1000;

// A koila_event that owns its strings.
struct FeedEvent {
  koila_event figures = {};
  std::string op;
  std::string reason;
};

// Thread-safe. Never destroyed, for its thread does not end: in the child of a fork, where there is no such thread, another takes its place.
class EventFeed {
 public:
  using Function = void (*)(void* context, const koila_event* event);

  // Returns its number, which no other has in this process or its forks; 0 when the thread cannot be started.
  std::uint64_t add(int kinds, Function function, void* context);
  // What was posted before is still told. Once it has returned the function is not called any more; within a call it waits for nothing.
  void remove(std::uint64_t number);

  // Whether an event of that kind, posted by this thread, would be told to anybody.
  bool wants(int kind) const { return (kinds_.load(std::memory_order_relaxed) & kind) != 0 && !is_telling(); }
  // Calls nobody. Whatever is posted within a call is left out: it could go on for ever.
  void post(FeedEvent event);

  // From now on nobody is called: the process ends.
  void stop();

 private:
  struct Listener {
    std::uint64_t number = 0;
    int kinds = 0;
    Function function = nullptr;
    void* context = nullptr;
  };

  bool is_telling() const;
  bool start_thread();
  void run();
  void tell(const FeedEvent& event, std::unique_lock<std::mutex>& lock);
  void update_kinds();
  bool drained(std::uint64_t up_to) const { return stopped_ || told_ >= up_to; }

  std::atomic<int> kinds_{0};
  std::mutex mutex_;  // of all below; held while nobody is called
  std::condition_variable posted_;
  std::condition_variable progress_;
  std::vector<Listener> listeners_;
  std::deque<FeedEvent> waiting_;
  std::uint64_t taken_ = 0;    // events in, since the beginning
  std::uint64_t told_ = 0;     // of these
  std::uint64_t in_call_ = 0;  // number of the listener that is being called
  std::int64_t lost_ = 0;      // since the last that got in
  bool has_thread_ = false;
  bool stopped_ = false;
};

}  // namespace koila

#endif  // KOILA_RUNTIME_EVENT_FEED_H_
