#include "torchglue/region/micro_batch_loop.h"

namespace koila {

std::exception_ptr MicroBatchLoop::attempt(const std::function<void()>& work) {
  try {
    work();
    return nullptr;
  } catch (const std::exception& error) {
    if (!host_.ran_out(error)) throw;
    return host_.keep(error);
  }
}

MicroBatchLoop::Then MicroBatchLoop::recover(const std::exception_ptr& error, int64_t rows, Done& done) {
  constexpr int kRoomsAtMost = 16;
  const bool again = host_.try_again(done.tries) || (done.rooms++ < kRoomsAtMost && host_.make_room());
  host_.clean_up();
  if (again) return Then::kAgain;
  if (rows > 0 && host_.shrink(rows)) {
    done.rooms = 0;
    return Then::kSmaller;
  }
  if (done.serves++ < kRoomsAtMost && host_.serve()) return Then::kAgain;
  std::rethrow_exception(error);
}

void MicroBatchLoop::once(const std::function<int64_t()>& rows, const std::function<void()>& pass) {
  Done done;
  while (const std::exception_ptr error = attempt(pass)) recover(error, rows(), done);
}

void MicroBatchLoop::whole(const std::function<void()>& work) {
  Done done;
  while (const std::exception_ptr error = attempt(work)) recover(error, 0, done);
}

void MicroBatchLoop::over(int64_t batch, Passes& passes) {
  Done done;
  for (int64_t begin = 0; begin < batch;) {
    const int64_t end = passes.end_of(begin);
    const std::exception_ptr error = attempt([&] { passes.run(begin, end); });
    if (!error) {
      begin = end;
      done = {};
    } else if (recover(error, end - begin, done) == Then::kSmaller && passes.depends_on_size(begin)) {
      passes.start_over();
      begin = 0;
    }
  }
}

}  // namespace koila
