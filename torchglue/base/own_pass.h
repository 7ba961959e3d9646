// A pass of the autograd engine that koila runs for itself.
#pragma once

namespace koila {

// While it lives, passes are koila's own. Gives Python's lock away where this thread has it: the engine refuses to run under it, and a value may be asked for by who holds it (NumPy, a
// property of a tensor). So nothing of Python's may be touched meanwhile. Thread contract: the owner of the step, or an engine thread that works for it.
class OwnPass {
 public:
  OwnPass();
  ~OwnPass();
  OwnPass(const OwnPass&) = delete;
  OwnPass& operator=(const OwnPass&) = delete;

 private:
  void* python_thread_ = nullptr;  // the thread's state, while it goes without the lock
};

}  // namespace koila
