#include "torchglue/base/saved_hooks.h"

#include <ATen/SavedTensorHooks.h>

#include <string_view>

#include "torchglue/base/python_function.h"
#include "torchglue/base/seen_in_step.h"

namespace koila {

namespace {

// What is needed of CPython; looked up, so that LibTorch programs need none of it.
struct Python {
  int (*gil_ensure)();
  void (*gil_release)(int);
  PyObject* (*get_attribute)(PyObject*, const char*);
  const char* (*as_utf8)(PyObject*);
  void (*clear_error)();
  void (*drop)(PyObject*);
  PyObject* (*item)(PyObject*, long);  // Py_ssize_t
  int (*is_true)(PyObject*);

  static const Python* loaded() {
    static const Python api = {};
    return api.complete() ? &api : nullptr;
  }

  // Null in, null out; leaves no error.
  PyObject* attribute(PyObject* of, const char* name) const {
    PyObject* found = of == nullptr ? nullptr : get_attribute(of, name);
    if (found == nullptr) clear_error();
    return found;
  }
  std::string_view text(PyObject* object) const {
    const char* utf8 = object == nullptr ? nullptr : as_utf8(object);
    if (utf8 == nullptr) clear_error();
    return utf8 == nullptr ? std::string_view() : std::string_view(utf8);
  }
  void let_go(PyObject* object) const {
    if (object != nullptr) drop(object);
  }

 private:
  Python() {
    find(gil_ensure, "PyGILState_Ensure");
    find(gil_release, "PyGILState_Release");
    find(get_attribute, "PyObject_GetAttrString");
    find(as_utf8, "PyUnicode_AsUTF8");
    find(clear_error, "PyErr_Clear");
    find(drop, "Py_DecRef");
    find(item, "PySequence_GetItem");
    find(is_true, "PyObject_IsTrue");
  }
  template <class F>
  static void find(F& function, const char* name) {
    function = python_function<F>(name);
  }
  bool complete() const {
    return gil_ensure != nullptr && gil_release != nullptr && get_attribute != nullptr && as_utf8 != nullptr && clear_error != nullptr && drop != nullptr &&
           item != nullptr && is_true != nullptr;
  }
};

enum class Maker { kProgram, kCheckpoint, kTorch };

Maker maker_of(const Python& python, PyObject* function) {
  PyObject* module = python.attribute(function, "__module__");
  const std::string_view name = python.text(module);
  const Maker maker = name == "torch.utils.checkpoint" ? Maker::kCheckpoint : name == "torch.autograd.graph" ? Maker::kTorch : Maker::kProgram;
  python.let_go(module);
  if (maker == Maker::kCheckpoint) SeenInStep::note(seen_in_step.checkpoint);
  return maker;
}

// A variable that a function of Python's has from around it; null where it has none of that name.
PyObject* variable_around(const Python& python, PyObject* function, std::string_view name) {
  PyObject* code = python.attribute(function, "__code__");
  PyObject* names = python.attribute(code, "co_freevars");
  PyObject* cells = python.attribute(function, "__closure__");
  PyObject* found = nullptr;
  for (long i = 0; names != nullptr && cells != nullptr && found == nullptr; ++i) {
    PyObject* its = python.item(names, i);
    if (its == nullptr) python.clear_error();  // past the last
    if (its == nullptr) break;
    if (python.text(its) == name) {
      PyObject* cell = python.item(cells, i);
      found = python.attribute(cell, "cell_contents");
      python.let_go(cell);
    }
    python.let_go(its);
  }
  python.let_go(cells);
  python.let_go(names);
  python.let_go(code);
  return found;
}

// The function that packs has the checkpoint's frame, that the function which runs again, and that the arguments of checkpoint().
bool draws_anew(const Python& python, PyObject* pack) {
  PyObject* frame = variable_around(python, pack, "frame");
  PyObject* again = python.attribute(frame, "recompute_fn");
  PyObject* preserves = variable_around(python, again, "preserve_rng_state");
  const bool anew = preserves != nullptr && python.is_true(preserves) == 0;
  python.let_go(preserves);
  python.let_go(again);
  python.let_go(frame);
  return anew;
}

// Of the hooks in force, of which there are some.
template <class F>
auto ask_packing(const at::impl::SavedTensorDefaultHooksTLS& hooks, const Python& python, F&& f) {
  const int gil = python.gil_ensure();
  const c10::SafePyObject& pack = hooks.stack.top().first;
  const auto answer = f(python, pack.ptr(&pack.pyinterpreter()));
  python.gil_release(gil);
  return answer;
}

}  // namespace

bool is_hook_of_torch(PyObject* function) {
  const Python* python = Python::loaded();
  return python != nullptr && maker_of(*python, function) != Maker::kProgram;
}

bool foreign_saved_tensor_hooks() {
  const at::impl::SavedTensorDefaultHooksTLS& hooks = at::SavedTensorDefaultHooks::get_tls_state();
  if (hooks.stack.empty()) return false;
  const Python* python = Python::loaded();
  return python == nullptr || ask_packing(hooks, *python, maker_of) == Maker::kProgram;
}

bool is_of_checkpoint(const at::impl::SavedTensorDefaultHooksTLS& hooks) {
  const Python* python = Python::loaded();
  return !hooks.stack.empty() && python != nullptr && ask_packing(hooks, *python, maker_of) == Maker::kCheckpoint;
}

bool draws_anew_in_checkpoint(const at::impl::SavedTensorDefaultHooksTLS& hooks) {
  const Python* python = Python::loaded();
  return !hooks.stack.empty() && python != nullptr && ask_packing(hooks, *python, draws_anew);
}

}  // namespace koila
