// Operators under saved-tensor hooks while a part of the step is split.
#pragma once

#include <utility>

#include "torchglue/base/saved_hooks.h"
#include "torchglue/base/tls.h"
#include "torchglue/region/deferred.h"
#include "torchglue/step/session.h"

namespace koila {

// Note [Saved-tensor hooks beside a region]
// A checkpoint counts what its operators save, and matches that by number with what its second run saves. Split operators save nothing
// through the hooks; so that the numbers agree up to there, nothing after the first of them does.
struct InCheckpoint {
  ~InCheckpoint() { session().in_checkpoint = before; }

  // Whether the next operator is such a one.
  static bool begins() {
    return DeferredRegistry::any() && session().engine_depth == 0 && NoSavedTensorHooksGuard::active() && !foreign_saved_tensor_hooks();
  }

  NoSavedTensorHooksGuard no_hooks;
  const at::impl::SavedTensorDefaultHooksTLS* const before = std::exchange(session().in_checkpoint, &no_hooks.hooks());
};

}  // namespace koila
