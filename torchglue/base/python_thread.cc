#include "torchglue/base/python_thread.h"

#include <thread>

#include "torchglue/base/python_function.h"

namespace koila {

namespace {

constexpr const char* kName = "koila.thread_end";

struct Python {
  int (*is_initialized)() = python_function<int (*)()>("Py_IsInitialized");
  void* (*state_of_thread)() = python_function<void* (*)()>("PyGILState_GetThisThreadState");
  int (*lock)() = python_function<int (*)()>("PyGILState_Ensure");
  void (*unlock)(int) = python_function<void (*)(int)>("PyGILState_Release");
  void* (*leave)() = python_function<void* (*)()>("PyEval_SaveThread");
  void (*enter)(void*) = python_function<void (*)(void*)>("PyEval_RestoreThread");
  void* (*dict_of_thread)() = python_function<void* (*)()>("PyThreadState_GetDict");
  int (*set_item)(void*, const char*, void*) = python_function<int (*)(void*, const char*, void*)>("PyDict_SetItemString");
  void* (*new_capsule)(void*, const char*, void (*)(void*)) = python_function<void* (*)(void*, const char*, void (*)(void*))>("PyCapsule_New");
  void* (*pointer_of)(void*, const char*) = python_function<void* (*)(void*, const char*)>("PyCapsule_GetPointer");
  void (*drop)(void*) = python_function<void (*)(void*)>("Py_DecRef");
  void (*clear_error)() = python_function<void (*)()>("PyErr_Clear");

  bool here() const {
    return is_initialized && state_of_thread && lock && unlock && leave && enter && dict_of_thread && set_item && new_capsule && pointer_of && drop && clear_error &&
           is_initialized() != 0;
  }
};

const Python& python() {
  static const Python functions;
  return functions;
}

struct AtEnd {
  void (*ends)();
  std::thread::id thread;
};

// Python that shuts down clears the states of all threads on one of them.
void run_at_end(void* capsule) {
  auto* at_end = static_cast<AtEnd*>(python().pointer_of(capsule, kName));
  if (at_end == nullptr) return;
  if (at_end->thread == std::this_thread::get_id()) {
    void* state = python().leave();
    at_end->ends();
    python().enter(state);
  }
  delete at_end;
}

void keep_in_thread(void (*ends)()) {
  void* dict = python().dict_of_thread();
  if (dict == nullptr) return;
  auto* at_end = new AtEnd{ends, std::this_thread::get_id()};
  void* capsule = python().new_capsule(at_end, kName, &run_at_end);
  if (capsule == nullptr) {
    delete at_end;
    python().clear_error();
    return;
  }
  if (python().set_item(dict, kName, capsule) != 0) python().clear_error();
  python().drop(capsule);
}

}  // namespace

void at_python_thread_end(void (*ends)()) {
  static thread_local bool known = false;
  if (known || !python().here() || python().state_of_thread() == nullptr) return;
  known = true;
  const int lock = python().lock();
  keep_in_thread(ends);
  python().unlock(lock);
}

}  // namespace koila
