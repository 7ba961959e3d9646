#include "torchglue/operators/own_functions.h"

#include <torch/library.h>

#include "own_functions_py.h"
#include "torchglue/base/process.h"
#include "torchglue/base/python_function.h"

namespace koila {

namespace {

TORCH_LIBRARY_FRAGMENT(koila, m) {
  m.def("function(Tensor a, Tensor? b, Tensor? c, int call) -> Tensor");
  m.def("function_view(Tensor(a) a, int call) -> Tensor(a)");
}

// What is needed of CPython; looked up, so that LibTorch programs need none of it.
struct Python {
  int (*is_initialized)() = python_function<int (*)()>("Py_IsInitialized");
  int (*lock)() = python_function<int (*)()>("PyGILState_Ensure");
  void (*unlock)(int) = python_function<void (*)(int)>("PyGILState_Release");
  void (*fetch)(void**, void**, void**) = python_function<void (*)(void**, void**, void**)>("PyErr_Fetch");
  void (*restore)(void*, void*, void*) = python_function<void (*)(void*, void*, void*)>("PyErr_Restore");
  void (*clear_error)() = python_function<void (*)()>("PyErr_Clear");
  void* (*new_dict)() = python_function<void* (*)()>("PyDict_New");
  int (*set_item)(void*, const char*, void*) = python_function<int (*)(void*, const char*, void*)>("PyDict_SetItemString");
  void* (*builtins)() = python_function<void* (*)()>("PyEval_GetBuiltins");
  void* (*modules)() = python_function<void* (*)()>("PyImport_GetModuleDict");
  void* (*compile)(const char*, const char*, int) = python_function<void* (*)(const char*, const char*, int)>("Py_CompileString");
  void* (*evaluate)(void*, void*, void*) = python_function<void* (*)(void*, void*, void*)>("PyEval_EvalCode");
  int (*is_true)(void*) = python_function<int (*)(void*)>("PyObject_IsTrue");
  void (*drop)(void*) = python_function<void (*)(void*)>("Py_DecRef");

  bool here() const {
    return is_initialized && lock && unlock && fetch && restore && clear_error && new_dict && set_item && builtins && modules && compile && evaluate && is_true && drop && is_initialized() != 0;
  }

  // A new reference, or null, and no error is left behind.
  void* run(const char* text, int start, void* names) const {
    void* code = compile(text, "koila", start);
    void* result = code != nullptr ? evaluate(code, names, names) : nullptr;
    if (code != nullptr) drop(code);
    if (result == nullptr) clear_error();
    return result;
  }
};

constexpr int kStatements = 257, kExpression = 258;  // Py_file_input, Py_eval_input

// Whether all is done, or never will be. With Python's lock, and no error pending.
bool take_over(const Python& python) {
  void* names = python.new_dict();
  if (names == nullptr) return true;
  python.set_item(names, "__builtins__", python.builtins());
  python.set_item(names, "modules", python.modules());
  void* imported = python.run("getattr(getattr(modules.get('torch'), '__spec__', None), '_initializing', True) is False", kExpression, names);
  const bool ready = imported != nullptr && python.is_true(imported) == 1;
  if (imported != nullptr) python.drop(imported);
  if (ready) {
    for (const char* text : {kOwnFunctionsPy, "take_over()"}) {
      void* done = python.run(text, kStatements, names);
      if (done == nullptr) {
        process().log(KOILA_LOG_DEBUG, "the program's autograd.Functions stay as they are: what reads them does not run in this Python.");
        break;
      }
      python.drop(done);
    }
  }
  python.drop(names);
  return ready;
}

}  // namespace

void take_over_functions() {
  static const Python python;
  functions_wait = false;  // what is run here calls no operator, but it may come by again
  if (!python.here()) return;
  const int state = python.lock();
  void *type = nullptr, *value = nullptr, *traceback = nullptr;
  python.fetch(&type, &value, &traceback);
  functions_wait = !take_over(python);
  python.restore(type, value, traceback);
  python.unlock(state);
}

}  // namespace koila
