#include "torchglue/base/source_line.h"

#include <c10/util/flat_hash_map.h>
#include <c10/util/hash.h>
#include <fmt/format.h>
#include <torch/csrc/profiler/unwind/unwind.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/fork_lock.h"
#include "torchglue/base/process.h"
#include "torchglue/base/python_function.h"

namespace koila {

namespace {

constexpr size_t kFrames = 16;       // that are kept
constexpr size_t kLookedAt = 48;     // of these, PyTorch's on top are left out

// What is needed of CPython; looked up, so that LibTorch programs need none of it.
struct Python {
  void* (*this_thread_state)();
  int (*gil_ensure)();
  void (*gil_release)(int);
  void* (*current_frame)();
  void* (*code_of)(void*);
  void* (*back)(void*);
  int (*line)(void*);
  void* (*attribute)(void*, const char*);
  const char* (*as_utf8)(void*);
  void (*clear_error)();
  void (*keep)(void*);
  void (*drop)(void*);
  int (*is_finalizing)();

  static const Python* loaded() {
    static const Python api;
    return api.complete_ ? &api : nullptr;
  }

 private:
  Python() {
    find(this_thread_state, "PyGILState_GetThisThreadState");
    find(gil_ensure, "PyGILState_Ensure");
    find(gil_release, "PyGILState_Release");
    find(current_frame, "PyEval_GetFrame");
    find(code_of, "PyFrame_GetCode");
    find(back, "PyFrame_GetBack");
    find(line, "PyFrame_GetLineNumber");
    find(attribute, "PyObject_GetAttrString");
    find(as_utf8, "PyUnicode_AsUTF8");
    find(clear_error, "PyErr_Clear");
    find(keep, "Py_IncRef");
    find(drop, "Py_DecRef");
    is_finalizing = python_function<int (*)()>("Py_IsFinalizing");  // since 3.13, and before under another name
    if (is_finalizing == nullptr) is_finalizing = python_function<int (*)()>("_Py_IsFinalizing");
  }
  template <class F>
  void find(F& function, const char* name) {
    function = python_function<F>(name);
    complete_ &= function != nullptr;
  }
  bool complete_ = true;
};

struct Frame {
  void* code = nullptr;  // a Python code object, or an address
  int line = 0;
  bool operator==(const Frame& other) const = default;
};
using Frames = std::vector<Frame>;
struct HashFrames {
  size_t operator()(const Frames& frames) const {
    size_t hash = frames.size();
    for (const Frame& frame : frames) hash = c10::hash_combine(hash, c10::hash_combine(reinterpret_cast<size_t>(frame.code), static_cast<size_t>(frame.line)));
    return hash;
  }
};

ForkLock mutex;
ska::flat_hash_map<Frames, uint32_t, HashFrames>& known() {
  static auto* known = new ska::flat_hash_map<Frames, uint32_t, HashFrames>;
  return *known;
}

ska::flat_hash_map<uint32_t, std::string>& innermost() {
  static auto* innermost = new ska::flat_hash_map<uint32_t, std::string>;
  return *innermost;
}

// A frame by its names.
struct Named {
  std::string file;
  std::string function;
  uint64_t line = 0;

  bool of_torch() const { return file.find("/torch/") != std::string::npos && file.find("-packages/") != std::string::npos; }
};

std::string short_path(const std::string& file) {
  static const std::string here = [] {
    char* folder = get_current_dir_name();
    std::string path = folder == nullptr ? "" : std::string(folder) + "/";
    std::free(folder);
    return path;
  }();
  return here.size() > 1 && file.starts_with(here) ? file.substr(here.size()) : file;
}

std::pair<uint32_t, std::string> number_of(std::vector<Named> frames) {
  const auto first = std::find_if(frames.begin(), frames.end(), [](const Named& frame) { return !frame.of_torch(); });
  if (first != frames.end()) frames.erase(frames.begin(), first);
  if (frames.size() > kFrames) frames.resize(kFrames);
  std::string text;
  for (const Named& frame : frames) {
    if (!text.empty()) text += '\n';
    text += fmt::format("{}:{} in {}", short_path(frame.file), frame.line, frame.function);
  }
  return {process().runtime->place_number(text.c_str()), text};
}

// Known already, or made by `name`. Two threads may both make it.
template <class F>
uint32_t look_up(const Frames& frames, F&& name) {
  {
    const std::lock_guard lock(mutex);
    const auto found = known().find(frames);
    if (found != known().end()) return found->second;
  }
  const auto [number, text] = name();
  const std::lock_guard lock(mutex);
  innermost().emplace(number, text.substr(0, text.find('\n')));
  return known().emplace(frames, number).first->second;
}

std::string text_attribute(const Python& python, void* object, const char* name) {
  void* value = python.attribute(object, name);
  const char* text = value == nullptr ? nullptr : python.as_utf8(value);
  const std::string copy = text == nullptr ? "" : text;
  if (text == nullptr) python.clear_error();
  if (value != nullptr) python.drop(value);
  return copy;
}

uint32_t python_line(const Python& python) {
  Frames frames;
  void* frame = python.current_frame();
  if (frame == nullptr) return 0;
  python.keep(frame);
  while (frame != nullptr && frames.size() < kLookedAt) {
    void* code = python.code_of(frame);
    frames.push_back({code, python.line(frame)});
    python.drop(code);  // the frame holds it
    void* outer = python.back(frame);
    python.drop(frame);
    frame = outer;
  }
  if (frame != nullptr) python.drop(frame);
  return look_up(frames, [&] {
    std::vector<Named> named;
    for (const Frame& f : frames) {
      python.keep(f.code);  // for good: another code object at its address would be taken for it
      named.push_back({text_attribute(python, f.code, "co_filename"), text_attribute(python, f.code, "co_name"), static_cast<uint64_t>(f.line)});
    }
    return number_of(std::move(named));
  });
}

// Frames of torch's and koila's libraries are on top of all others.
bool of_library(const Named& frame) {
  return frame.function.find("koila::") != std::string::npos || frame.function.starts_with("torch::") || frame.function.starts_with("at::") ||
         frame.function.starts_with("c10::") || frame.function.starts_with("void c10::") || frame.function.starts_with("at::Tensor ") || frame.function == "??";
}

uint32_t native_line() {
  Frames frames;
  for (void* address : torch::unwind::unwind()) {
    if (frames.size() >= kLookedAt) break;
    frames.push_back({address, 0});
  }
  return look_up(frames, [&] {
    std::vector<void*> addresses;
    for (const Frame& f : frames) addresses.push_back(f.code);
    std::vector<Named> named;
    for (const torch::unwind::Frame& frame : torch::unwind::symbolize(addresses, torch::unwind::Mode::fast))
      named.push_back({frame.filename, frame.funcname, frame.lineno});
    named.erase(named.begin(), std::find_if_not(named.begin(), named.end(), of_library));
    return number_of(std::move(named));
  });
}

}  // namespace

std::string source_line_text(uint32_t number) {
  const std::lock_guard lock(mutex);
  const auto found = innermost().find(number);
  return found == innermost().end() ? "" : found->second;
}

namespace {

uint32_t line_now(bool native) {
  static thread_local bool busy = false;  // what looks a line up may allocate
  if (busy) return 0;
  busy = true;
  uint32_t number = 0;
  try {
    const Python* python = Python::loaded();
    if (python == nullptr) {
      number = native ? native_line() : 0;
    } else if (python->this_thread_state() != nullptr && (python->is_finalizing == nullptr || python->is_finalizing() == 0)) {
      const int gil = python->gil_ensure();
      number = python_line(*python);
      python->gil_release(gil);
    }
  } catch (...) {
    // A line less in the report.
  }
  busy = false;
  return number;
}

}  // namespace

uint32_t source_line_now() { return line_now(/*native=*/true); }
uint32_t python_line_now() { return line_now(/*native=*/false); }

}  // namespace koila
