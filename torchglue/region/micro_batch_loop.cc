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

MicroBatchLoop::Then MicroBatchLoop::recover(const std::exception_ptr& error, int64_t rows, int& tries) {
  const bool again = host_.try_again(tries) || host_.make_room();
  host_.clean_up();
  if (again) return Then::kAgain;
  if (rows > 0 && host_.shrink(rows)) return Then::kSmaller;
  if (host_.serve()) return Then::kAgain;
  std::rethrow_exception(error);
}

void MicroBatchLoop::once(const std::function<int64_t()>& rows, const std::function<void()>& pass) {
  int tries = 0;
  while (const std::exception_ptr error = attempt(pass)) recover(error, rows(), tries);
}

void MicroBatchLoop::whole(const std::function<void()>& work) {
  int tries = 0;
  while (const std::exception_ptr error = attempt(work)) recover(error, 0, tries);
}

void MicroBatchLoop::over(int64_t batch, Passes& passes) {
  int tries = 0;
  for (int64_t begin = 0; begin < batch;) {
    const int64_t end = passes.end_of(begin);
    const std::exception_ptr error = attempt([&] { passes.run(begin, end); });
    if (!error) {
      begin = end;
      tries = 0;
    } else if (recover(error, end - begin, tries) == Then::kSmaller && passes.depends_on_size(begin)) {
      passes.start_over();
      begin = 0;
    }
  }
}

}  // namespace koila
