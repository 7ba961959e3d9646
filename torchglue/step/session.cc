#include "torchglue/step/session.h"

#include "torchglue/base/inference_writes.h"

namespace koila {

Session& make_session() {
  static auto* made = new Session;  // never destroyed: tensors may outlive static destruction
  the_process = made;
  the_moment = made;
  return *(the_session = made);
}

Process& make_process() { return make_session(); }
Moment& make_moment() { return make_session(); }

void Session::forget_step(bool but_for_tape) {
  if (!but_for_tape) tape.cut();
  marks.clear();
  named.step_over();
  current.reset();
  fresh_zeros.forget();
  saved_results.forget();
  inference_writes().forget_the_dead();
}

}  // namespace koila
