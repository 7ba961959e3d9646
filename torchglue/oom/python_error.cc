#include "torchglue/oom/python_error.h"

#include <c10/util/Exception.h>

#include <new>
#include <string>
#include <string_view>

#include "torchglue/base/python_function.h"
#include "torchglue/base/python_object.h"
#include "torchglue/oom/oom.h"

namespace koila {

namespace {

// The few functions of Python's that this takes. A process that Python's errors come from has them; koila is built without Python.
struct Python {
  int (*lock)() = python_function<int (*)()>("PyGILState_Ensure");
  void (*unlock)(int) = python_function<void (*)(int)>("PyGILState_Release");
  void (*fetch)(void**, void**, void**) = python_function<void (*)(void**, void**, void**)>("PyErr_Fetch");
  void (*restore)(void*, void*, void*) = python_function<void (*)(void*, void*, void*)>("PyErr_Restore");
  void (*clear)() = python_function<void (*)()>("PyErr_Clear");
  void* (*str)(void*) = python_function<void* (*)(void*)>("PyObject_Str");
  const char* (*utf8)(void*) = python_function<const char* (*)(void*)>("PyUnicode_AsUTF8");
  void (*let_go)(void*) = python_function<void (*)(void*)>("Py_DecRef");
  int (*matches)(void*, void*) = python_function<int (*)(void*, void*)>("PyErr_GivenExceptionMatches");
  void** exception = python_function<void**>("PyExc_Exception");

  bool here() const { return lock && unlock && fetch && restore && clear && str && utf8 && let_go && matches && exception; }
};

// The thread's pending error, taken while this lives, and put back unless it is dropped.
class PendingError {
 public:
  explicit PendingError(const Python& python) : python_(python), state_(python.lock()) { python_.fetch(&type_, &value_, &traceback_); }
  ~PendingError() {
    python_.restore(type_, value_, traceback_);
    python_.unlock(state_);
  }
  PendingError(const PendingError&) = delete;
  PendingError& operator=(const PendingError&) = delete;

  std::string text() const {
    std::string text;
    void* str = value_ != nullptr ? python_.str(value_) : nullptr;
    const char* utf8 = str != nullptr ? python_.utf8(str) : nullptr;
    if (utf8 != nullptr) text = utf8;
    if (str != nullptr) python_.let_go(str);
    python_.clear();  // of what the text's making raised
    return text;
  }

  bool is_exception() const { return type_ == nullptr || python_.matches(type_, *python_.exception) != 0; }

  void drop() {
    for (void** part : {&traceback_, &value_, &type_}) {
      if (*part != nullptr) python_.let_go(*part);
      *part = nullptr;
    }
  }

 private:
  const Python& python_;
  int state_;
  void *type_ = nullptr, *value_ = nullptr, *traceback_ = nullptr;
};

const Python& python() {
  static const Python functions;
  return functions;
}

// As torch/csrc/Exceptions.h has python_error, which needs Python's headers. Null members: the error is the thread's pending one.
struct PytorchsError : std::exception {
  void *type, *value, *traceback;
  std::string message;
};

// The file whose code raised the error of this traceback, those that end in `but_for` left out; "" where that cannot be told.
std::string raised_in(void* traceback, std::string_view but_for) {
  std::string file;
  for (auto entry = PythonObject::borrowed(traceback); entry; entry = entry.attribute("tb_next")) {  // None, behind the last, has none
    const PythonObject name = entry.attribute("tb_frame").attribute("f_code").attribute("co_filename");
    if (name && !name.text().ends_with(but_for)) file = name.text();
  }
  return file;
}

}  // namespace

void forget_python_error(const std::exception& error) noexcept {
  if (!is_python_error(error) || !python().here()) return;
  PendingError(python()).drop();
}

bool is_python_interrupt(const std::exception& error) noexcept {
  if (!is_python_error(error) || !python().here()) return false;
  const std::string_view text = error.what();
  if (text.starts_with("KeyboardInterrupt") || text.starts_with("SystemExit")) return true;
  return !PendingError(python()).is_exception();
}

// PyTorch's autograd engine hands on an exception with the error in it, and makes the same error pending.
void throw_if_ran_out_in_python(const std::exception& error) {
  if (!is_python_error(error)) return;
  std::string text(text_of_python_error(error));
  bool ran_out = is_out_of_memory(error);
  if (python().here()) {
    PendingError pending(python());
    const std::string pending_text = pending.text();
    if (is_out_of_memory(c10::Error({__func__, __FILE__, __LINE__}, pending_text))) {
      if (!ran_out) text = pending_text;
      ran_out = true;
      pending.drop();
    }
  }
  if (ran_out) throw RanOutInPython({__func__, __FILE__, __LINE__}, text);
}

bool says_out_of_memory(const std::exception& error) {
  if (is_out_of_memory(error)) return true;
  if (!is_python_error(error) || !python().here()) return false;
  const PendingError pending(python());
  return is_out_of_memory(c10::Error({__func__, __FILE__, __LINE__}, pending.text()));
}

bool is_checkpoints_own(const std::exception& error) noexcept {
  if (!is_pytorchs_python_error(error) || !python().here() || !PythonObject::here() || is_out_of_memory(error)) return false;
  void* traceback = static_cast<const PytorchsError&>(error).traceback;
  try {
    const PendingError put_aside(python());
    return raised_in(traceback, "/contextlib.py").ends_with("/torch/utils/checkpoint.py");  // contextlib: a context that was entered before
  } catch (const std::bad_alloc&) {
    return false;
  }
}

std::exception_ptr kept_exception(const std::exception& error) {
  try {
    throw_if_ran_out_in_python(error);
  } catch (const RanOutInPython&) {
    return std::current_exception();
  }
  return std::current_exception();
}

}  // namespace koila
