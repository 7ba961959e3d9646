#include "torchglue/base/own_pass.h"

#include "torchglue/base/process.h"
#include "torchglue/base/python_function.h"

namespace koila {

namespace {

struct Python {
  int (*has_lock)() = python_function<int (*)()>("PyGILState_Check");
  void* (*leave)() = python_function<void* (*)()>("PyEval_SaveThread");
  void (*come_back)(void*) = python_function<void (*)(void*)>("PyEval_RestoreThread");
  int (*is_there)() = python_function<int (*)()>("Py_IsInitialized");
};

// Looked up while the adapter is loaded. A look-up on first use would hold a guard, and a child that is forked at that moment would wait for it for ever.
const Python python;

}  // namespace

OwnPass::OwnPass() {
  ++moment().engine_depth;
  const Python& p = python;
  if (p.has_lock != nullptr && p.leave != nullptr && p.come_back != nullptr && p.is_there != nullptr && p.is_there() != 0 && p.has_lock() != 0) python_thread_ = p.leave();
}

OwnPass::~OwnPass() {
  if (python_thread_ != nullptr) python.come_back(python_thread_);
  --moment().engine_depth;
}

}  // namespace koila
