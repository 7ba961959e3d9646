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
  PyObject* module = python.get_attribute(function, "__module__");
  const char* text = module == nullptr ? nullptr : python.as_utf8(module);
  const std::string_view name = text == nullptr ? std::string_view() : std::string_view(text);
  const Maker maker = name == "torch.utils.checkpoint" ? Maker::kCheckpoint : name == "torch.autograd.graph" ? Maker::kTorch : Maker::kProgram;
  if (maker == Maker::kCheckpoint) SeenInStep::note(seen_in_step.checkpoint);
  if (text == nullptr) python.clear_error();
  if (module != nullptr) python.drop(module);
  return maker;
}

// A variable that a function of Python's has from around it; null where it has none of that name.
class Around {
 public:
  Around(const Python& python, PyObject* function) : python_(python), cells_(attribute(function, "__closure__")) {
    PyObject* code = attribute(function, "__code__");
    names_ = attribute(code, "co_freevars");
    drop(code);
  }
  ~Around() {
    drop(cells_);
    drop(names_);
  }
  Around(const Around&) = delete;
  Around& operator=(const Around&) = delete;

  PyObject* variable(std::string_view name) const {
    for (long i = 0; names_ != nullptr && cells_ != nullptr; ++i) {
      PyObject* its = python_.item(names_, i);
      const char* text = its == nullptr ? nullptr : python_.as_utf8(its);
      const bool found = text != nullptr && text == name;
      drop(its);
      if (text == nullptr) break;  // past the last
      if (!found) continue;
      PyObject* cell = python_.item(cells_, i);
      PyObject* content = attribute(cell, "cell_contents");
      drop(cell);
      return content;
    }
    python_.clear_error();
    return nullptr;
  }
  PyObject* attribute(PyObject* of, const char* name) const {
    PyObject* found = of == nullptr ? nullptr : python_.get_attribute(of, name);
    if (found == nullptr) python_.clear_error();
    return found;
  }
  void drop(PyObject* object) const {
    if (object != nullptr) python_.drop(object);
  }

 private:
  const Python& python_;
  PyObject* const cells_;
  PyObject* names_ = nullptr;
};

// The function that packs has the checkpoint's frame, that the function which runs again, and that the arguments of checkpoint().
bool draws_anew(const Python& python, PyObject* pack) {
  const Around packs(python, pack);
  PyObject* frame = packs.variable("frame");
  PyObject* again = packs.attribute(frame, "recompute_fn");
  packs.drop(frame);
  if (again == nullptr) return false;
  const Around runs(python, again);
  PyObject* preserves = runs.variable("preserve_rng_state");
  const bool anew = preserves != nullptr && python.is_true(preserves) == 0;
  runs.drop(preserves);
  runs.drop(again);
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
