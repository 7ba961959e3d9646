// Objects of Python's that koila looks into: attributes, entries, texts.
#pragma once

#include <string_view>
#include <utility>

#include "torchglue/base/python_function.h"

namespace koila {

// A reference of our own to an object of Python's, or an empty one, which answers with empty ones. What is asked for and is not there is empty as well, and no error is left behind. Needs
// Python's lock, and no error pending; an empty one needs neither.
class PythonObject {
 public:
  // Whether the process has what this takes of CPython; else there is no object to make one of.
  static bool here() { return api().complete(); }

  PythonObject() = default;
  template <class T>
  static PythonObject borrowed(T* object) {
    if (object != nullptr) api().keep(object);
    return PythonObject(object);
  }
  ~PythonObject() {
    if (object_ != nullptr) api().drop(object_);
  }
  PythonObject(PythonObject&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  PythonObject& operator=(PythonObject&& other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }

  explicit operator bool() const { return object_ != nullptr; }
  PythonObject attribute(const char* name) const { return object_ == nullptr ? PythonObject() : found(api().attribute(object_, name)); }
  PythonObject item(long index) const { return object_ == nullptr ? PythonObject() : found(api().item(object_, index)); }
  // "" for what is no text. As long as the object lives.
  std::string_view text() const {
    if (object_ == nullptr) return {};
    const char* utf8 = api().as_utf8(object_);
    if (utf8 == nullptr) api().clear_error();
    return utf8 == nullptr ? std::string_view() : std::string_view(utf8);
  }
  bool is_false() const { return object_ != nullptr && api().is_true(object_) == 0; }

 private:
  // Looked up, so that LibTorch programs need none of it.
  struct Api {
    void (*keep)(void*) = python_function<void (*)(void*)>("Py_IncRef");
    void (*drop)(void*) = python_function<void (*)(void*)>("Py_DecRef");
    void* (*attribute)(void*, const char*) = python_function<void* (*)(void*, const char*)>("PyObject_GetAttrString");
    void* (*item)(void*, long) = python_function<void* (*)(void*, long)>("PySequence_GetItem");  // Py_ssize_t
    const char* (*as_utf8)(void*) = python_function<const char* (*)(void*)>("PyUnicode_AsUTF8");
    int (*is_true)(void*) = python_function<int (*)(void*)>("PyObject_IsTrue");
    void (*clear_error)() = python_function<void (*)()>("PyErr_Clear");

    bool complete() const { return keep && drop && attribute && item && as_utf8 && is_true && clear_error; }
  };
  static const Api& api() {
    static const Api functions;
    return functions;
  }

  explicit PythonObject(void* own) : object_(own) {}
  static PythonObject found(void* own) {
    if (own == nullptr) api().clear_error();
    return PythonObject(own);
  }

  void* object_ = nullptr;
};

}  // namespace koila
