#include "torchglue/base/saved_hooks.h"

#include <ATen/SavedTensorHooks.h>

#include <string_view>

#include "torchglue/base/python_function.h"
#include "torchglue/base/python_object.h"
#include "torchglue/base/seen_in_step.h"

namespace koila {

namespace {

enum class Maker { kProgram, kCheckpoint, kTorch };

Maker maker_of(const PythonObject& function) {
  const PythonObject module = function.attribute("__module__");
  const std::string_view name = module.text();
  const Maker maker = name == "torch.utils.checkpoint" ? Maker::kCheckpoint : name == "torch.autograd.graph" ? Maker::kTorch : Maker::kProgram;
  if (maker == Maker::kCheckpoint) SeenInStep::note(seen_in_step.checkpoint);
  return maker;
}

// A variable that a function of Python's has from around it; empty where it has none of that name.
PythonObject variable_around(const PythonObject& function, std::string_view name) {
  const PythonObject names = function.attribute("__code__").attribute("co_freevars");
  for (long i = 0;; ++i) {
    const PythonObject its = names.item(i);
    if (!its) return {};  // past the last
    if (its.text() == name) return function.attribute("__closure__").item(i).attribute("cell_contents");
  }
}

// The function that packs has the checkpoint's frame, that the function which runs again, and that the arguments of checkpoint().
bool draws_anew(const PythonObject& pack) {
  const PythonObject again = variable_around(pack, "frame").attribute("recompute_fn");
  return variable_around(again, "preserve_rng_state").is_false();
}

// What is needed of CPython beside its objects.
struct Lock {
  int (*take)() = python_function<int (*)()>("PyGILState_Ensure");
  void (*give_back)(int) = python_function<void (*)(int)>("PyGILState_Release");
};

const Lock& lock() {
  static const Lock functions;
  return functions;
}

bool has_python() { return PythonObject::here() && lock().take != nullptr && lock().give_back != nullptr; }

// Of the hooks in force, of which there are some.
template <class F>
auto ask_packing(const at::impl::SavedTensorDefaultHooksTLS& hooks, F&& f) {
  const int gil = lock().take();
  const c10::SafePyObject& pack = hooks.stack.top().first;
  const auto answer = f(PythonObject::borrowed(pack.ptr(&pack.pyinterpreter())));
  lock().give_back(gil);
  return answer;
}

}  // namespace

bool is_hook_of_torch(PyObject* function) { return has_python() && maker_of(PythonObject::borrowed(function)) != Maker::kProgram; }

bool foreign_saved_tensor_hooks() {
  const at::impl::SavedTensorDefaultHooksTLS& hooks = at::SavedTensorDefaultHooks::get_tls_state();
  if (hooks.stack.empty()) return false;
  return !has_python() || ask_packing(hooks, maker_of) == Maker::kProgram;
}

bool is_of_checkpoint(const at::impl::SavedTensorDefaultHooksTLS& hooks) { return !hooks.stack.empty() && has_python() && ask_packing(hooks, maker_of) == Maker::kCheckpoint; }

bool draws_anew_in_checkpoint(const at::impl::SavedTensorDefaultHooksTLS& hooks) { return !hooks.stack.empty() && has_python() && ask_packing(hooks, draws_anew); }

}  // namespace koila
