#include "torchglue/region/launched.h"

#include <c10/core/AutogradState.h>

#include <utility>

#include "torchglue/region/deferred.h"
#include "torchglue/step/session.h"
#include "torchglue/step/step_owner.h"

namespace koila {

namespace {

LaunchFn real_launch = nullptr;

bool is_of_the_step() {
  if (!session().rescue || !follows_this_thread()) return false;
  return c10::AutogradState::get_tls_state().get_grad_mode() || deferred_registry().any();
}

}  // namespace

void set_real_launch(LaunchFn real) { real_launch = real; }

void launch(std::function<void()> task) {
  if (is_of_the_step()) return task();
  real_launch(std::move(task));
}

}  // namespace koila
