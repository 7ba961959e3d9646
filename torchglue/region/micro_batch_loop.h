// The one place that runs micro-batches, and that says what is done when one runs out of memory.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>

namespace koila {

// Note [When a micro-batch runs out]
// What is done is tried in this order. Each is tried only where the one before has found nothing.
// 1. It is made again as it was, where that may do: rung 0, a few times.
// 2. Room is made. What can be made again goes first, then what can be moved. Not for ever: what the next try makes again itself is no room.
// 3. The micro-batch is halved.
// 4. What does not fit is served from outside: rung 2.
// 5. The error that began it goes on to whoever asked for the rows.
// Whatever is chosen, what the failed pass has half made is gone by then.
//
// Thread contract: that of the region it runs for. Nothing here locks.
class MicroBatchLoop {
 public:
  // What the loop asks of whoever holds the memory.
  class Host {
   public:
    virtual ~Host() = default;
    // Whether the error says that memory ran out. Any other ends the loop.
    virtual bool ran_out(const std::exception& error) = 0;
    // The exception being handled, to be kept for step 5.
    virtual std::exception_ptr keep(const std::exception& error) = 0;
    // Step 1. `tries` counts those without a success in between.
    virtual bool try_again(int& tries) = 0;
    // Step 2. False when there was nothing.
    virtual bool make_room() = 0;
    // Step 3, after a pass over so many rows. False when the micro-batch cannot be smaller.
    virtual bool shrink(int64_t rows) = 0;
    // Step 4. False when it is so already, or cannot be.
    virtual bool serve() = 0;
    // Lets go of what a failed pass has half made. Comes after steps 1 and 2 have been asked, and before anything is made again.
    virtual void clean_up() = 0;
  };

  // The passes over a batch, row after row.
  class Passes {
   public:
    virtual ~Passes() = default;
    // Where the pass that begins with row `begin` ends; asked before each try.
    virtual int64_t end_of(int64_t begin) = 0;
    virtual void run(int64_t begin, int64_t end) = 0;
    // Whether micro-batches of another size would not go with what the rows before `begin`, or parts of a failed pass, have given.
    virtual bool depends_on_size(int64_t begin) = 0;
    // Forgets what all passes so far have given.
    virtual void start_over() = 0;
  };

  explicit MicroBatchLoop(Host& host) : host_(host) {}

  // Runs `pass`, which is over `rows()` rows, until it comes through.
  void once(const std::function<int64_t()>& rows, const std::function<void()>& pass);
  // Runs what is as large as the batch whatever the size of a micro-batch: step 3 is left out.
  void whole(const std::function<void()>& work);
  // Runs passes over rows [0, batch).
  void over(int64_t batch, Passes& passes);

 private:
  enum class Then { kAgain, kSmaller };
  // What was done since a pass came through, or was made smaller.
  struct Done {
    int tries = 0;
    int rooms = 0;
    int serves = 0;
  };
  // What comes after a failed pass over so many rows; 0: they cannot be fewer. Throws `error` when nothing helps.
  Then recover(const std::exception_ptr& error, int64_t rows, Done& done);
  // The error that says that memory ran out, or null.
  std::exception_ptr attempt(const std::function<void()>& work);

  Host& host_;
};

}  // namespace koila
