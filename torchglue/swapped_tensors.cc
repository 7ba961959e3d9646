#include "torchglue/swapped_tensors.h"

#include "torchglue/base/python_function.h"
#include "torchglue/facts/step_accounts.h"
#include "torchglue/step/session.h"

namespace koila {

namespace {

// As CPython's method.h has it.
struct MethodDef {
  const char* name;
  void* (*function)(void* self, void* arguments);
  int flags;
  const char* doc;
};
constexpr int kPositional = 1;  // METH_VARARGS
constexpr const char* kName = "_swap_tensor_impl";

// What is needed of CPython.
struct Python {
  int (*add_pending_call)(int (*)(void*), void*) = python_function<int (*)(int (*)(void*), void*)>("Py_AddPendingCall");
  void* (*modules)() = python_function<void* (*)()>("PyImport_GetModuleDict");
  void* (*item)(void*, const char*) = python_function<void* (*)(void*, const char*)>("PyDict_GetItemString");
  void* (*attribute)(void*, const char*) = python_function<void* (*)(void*, const char*)>("PyObject_GetAttrString");
  int (*set_attribute)(void*, const char*, void*) = python_function<int (*)(void*, const char*, void*)>("PyObject_SetAttrString");
  void* (*new_function)(MethodDef*, void*, void*) = python_function<void* (*)(MethodDef*, void*, void*)>("PyCFunction_NewEx");
  void* (*call)(void*, void*) = python_function<void* (*)(void*, void*)>("PyObject_CallObject");
  void (*clear_error)() = python_function<void (*)()>("PyErr_Clear");

  bool here() const { return add_pending_call && modules && item && attribute && set_attribute && new_function && call && clear_error; }
};

const Python& python() {
  static const Python functions;
  return functions;
}

void* real_swap = nullptr;

void* swap(void*, void* arguments) {
  forget_leaves_of_step();
  if (session().owned_by_this_thread()) {
    session().tape.cut();
    session().tape.hold_nothing_small();
    session().fresh_zeros.forget();
  }
  return python().call(real_swap, arguments);
}

int stand_in(void*) {
  static MethodDef method{kName, &swap, kPositional, nullptr};
  void* torch = python().item(python().modules(), "torch._C");
  real_swap = torch == nullptr ? nullptr : python().attribute(torch, kName);
  void* own = real_swap == nullptr ? nullptr : python().new_function(&method, nullptr, nullptr);
  if (own == nullptr || python().set_attribute(torch, kName, own) != 0) python().clear_error();  // a release without it
  return 0;
}

}  // namespace

void let_go_of_swapped_tensors() {
  if (python().here()) python().add_pending_call(&stand_in, nullptr);
}

}  // namespace koila
