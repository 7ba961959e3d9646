#include "torchglue/step/session.h"

namespace koila {

Session& session() {
  static auto* the_session = new Session;  // never destroyed: tensors may outlive static destruction
  return *the_session;
}

Process& process() { return session(); }
Moment& moment() { return session(); }

void Session::forget_step() {
  tape.cut();
  marks.clear();
  named.step_over();
  current.reset();
}

}  // namespace koila
