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
  }
  template <class F>
  static void find(F& function, const char* name) {
    function = python_function<F>(name);
  }
  bool complete() const {
    return gil_ensure != nullptr && gil_release != nullptr && get_attribute != nullptr && as_utf8 != nullptr && clear_error != nullptr && drop != nullptr;
  }
};

bool made_by_torch(const Python& python, PyObject* function) {
  PyObject* module = python.get_attribute(function, "__module__");
  const char* text = module == nullptr ? nullptr : python.as_utf8(module);
  const std::string_view name = text == nullptr ? std::string_view() : std::string_view(text);
  if (name == "torch.utils.checkpoint") SeenInStep::note(seen_in_step.checkpoint);
  const bool ours = name == "torch.utils.checkpoint" || name == "torch.autograd.graph";
  if (text == nullptr) python.clear_error();
  if (module != nullptr) python.drop(module);
  return ours;
}

}  // namespace

bool is_hook_of_torch(PyObject* function) {
  const Python* python = Python::loaded();
  return python != nullptr && made_by_torch(*python, function);
}

bool foreign_saved_tensor_hooks() {
  const at::impl::SavedTensorDefaultHooksTLS& hooks = at::SavedTensorDefaultHooks::get_tls_state();
  if (hooks.stack.empty()) return false;
  const Python* python = Python::loaded();
  if (python == nullptr) return true;
  const int gil = python->gil_ensure();
  const c10::SafePyObject& pack = hooks.stack.top().first;
  const bool ours = made_by_torch(*python, pack.ptr(&pack.pyinterpreter()));
  python->gil_release(gil);
  return !ours;
}

}  // namespace koila
