#include "torchglue/pack_once.h"

#include <ATen/SavedTensorHooks.h>

#include <optional>
#include <vector>

#include "torchglue/base/python_function.h"
#include "torchglue/step/offload.h"

namespace koila {

namespace {

// CPython's PyMethodDef, which is part of its stable interface.
struct MethodDef {
  const char* name;
  PyObject* (*function)(PyObject* self, PyObject* argument);
  int flags;
  const char* documentation;
};
constexpr int kOneArgument = 0x0008;  // METH_O

// What is needed of CPython; looked up, so that LibTorch programs need none of it.
struct Python {
  int (*gil_ensure)() = python_function<int (*)()>("PyGILState_Ensure");
  void (*gil_release)(int) = python_function<void (*)(int)>("PyGILState_Release");
  PyObject* (*make_function)(MethodDef*, PyObject*, PyObject*) = python_function<PyObject* (*)(MethodDef*, PyObject*, PyObject*)>("PyCFunction_NewEx");
  PyObject* (*call)(PyObject*, ...) = python_function<PyObject* (*)(PyObject*, ...)>("PyObject_CallFunctionObjArgs");
  void (*clear_error)() = python_function<void (*)()>("PyErr_Clear");
  void (*keep)(PyObject*) = python_function<void (*)(PyObject*)>("Py_IncRef");
  void (*drop)(PyObject*) = python_function<void (*)(PyObject*)>("Py_DecRef");

  bool here() const { return gil_ensure && gil_release && make_function && call && clear_error && keep && drop; }
};

const Python& python() {
  static const Python functions;
  return functions;
}

using Hooks = std::pair<c10::SafePyObject, c10::SafePyObject>;

// The thread's own, in place: a copy would take Python's lock for each hook on it.
auto& hooks_on_top() { return const_cast<at::impl::SavedTensorDefaultHooksTLS&>(at::SavedTensorDefaultHooks::get_tls_state()).stack; }

struct Packed {
  std::vector<PyObject*> results;  // of the tries so far, in order; references of our own
  std::size_t position = 0;        // in the try under way
  int calls = 0;                   // of operators, one within the other
  bool ran_out = false;            // a hook of the program's own has
  std::optional<Hooks> program;    // while a try is under way: the hooks that it runs under
};
thread_local Packed packed;

// Puts the program's own hook on top while that runs: it finds the state that it would find without koila.
class ProgramsHooks {
 public:
  ProgramsHooks() : ours_(hooks_on_top().top().first) { hooks_on_top().top().first = packed.program->first; }
  ~ProgramsHooks() {
    if (!hooks_on_top().empty()) hooks_on_top().top().first = ours_;
  }
  ProgramsHooks(const ProgramsHooks&) = delete;
  ProgramsHooks& operator=(const ProgramsHooks&) = delete;

 private:
  const c10::SafePyObject ours_;
};

// Stands in for the program's pack hook `hook` while a try is under way. Called by PyTorch, with Python's lock.
PyObject* pack(PyObject* hook, PyObject* tensor) {
  PyObject* result = nullptr;
  if (packed.position < packed.results.size()) {
    result = packed.results[packed.position++];
    python().keep(result);
    return result;
  }
  const bool foreign = !is_hook_of_torch(hook);
  if (packed.program) {
    const ProgramsHooks programs;
    const Offload::MustNotFail must_not(foreign);
    result = python().call(hook, tensor, nullptr);
  } else {
    result = python().call(hook, tensor, nullptr);
  }
  if (result == nullptr) {
    packed.ran_out |= foreign;
    return nullptr;
  }
  python().keep(result);
  packed.results.push_back(result);
  ++packed.position;
  return result;
}

MethodDef pack_def{"pack", &pack, kOneArgument, nullptr};

}  // namespace

PackOnce::PackOnce() : begin_(packed.position), outermost_(packed.calls++ == 0) {}

PackOnce::~PackOnce() {
  --packed.calls;
  if (!outermost_) return;
  packed.position = 0;
  packed.ran_out = false;
  if (packed.results.empty()) return;
  const std::vector<PyObject*> results = std::exchange(packed.results, {});
  const int gil = python().gil_ensure();
  for (PyObject* result : results) python().drop(result);
  python().gil_release(gil);
}

bool PackOnce::may_run_again() const { return !packed.ran_out; }

void PackOnce::begin_again() const { packed.position = begin_; }

PackOnce::StandIn::StandIn() {
  if (packed.program || !python().here()) return;  // an operator of a kernel's, within a try
  const Hooks& top = hooks_on_top().top();
  PyObject* hook = top.first.ptr(&top.first.pyinterpreter());
  const int gil = python().gil_ensure();
  PyObject* stand_in = python().make_function(&pack_def, hook, nullptr);
  if (stand_in == nullptr) python().clear_error();
  python().gil_release(gil);
  if (stand_in == nullptr) return;
  packed.program.emplace(top);
  const c10::SafePyObject ours(stand_in, &top.first.pyinterpreter());
  hooks_on_top().top().first = ours;
  active_ = true;
}

PackOnce::StandIn::~StandIn() {
  if (!active_) return;
  if (!hooks_on_top().empty()) hooks_on_top().top().first = packed.program->first;
  packed.program.reset();
}

}  // namespace koila
