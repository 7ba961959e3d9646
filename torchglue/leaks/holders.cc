#include "torchglue/leaks/holders.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdlib>
#include <optional>

#include "holders_py.h"
#include "torchglue/base/graph_walk.h"
#include "torchglue/base/python_function.h"
#include "torchglue/base/tensor_memory.h"
#include "torchglue/tape/tape.h"

namespace koila {

namespace {

constexpr size_t kNodesAtMost = 1'000'000;  // of all graphs, in one search
constexpr size_t kSamples = 2;              // tensors of a leak that are asked for: what holds one holds the others

// What is needed of CPython; looked up, so that LibTorch programs need none of it.
struct Python {
  int (*is_initialized)() = python_function<int (*)()>("Py_IsInitialized");
  int (*gil_ensure)() = python_function<int (*)()>("PyGILState_Ensure");
  void (*gil_release)(int) = python_function<void (*)(int)>("PyGILState_Release");
  void (*fetch)(void**, void**, void**) = python_function<void (*)(void**, void**, void**)>("PyErr_Fetch");
  void (*restore)(void*, void*, void*) = python_function<void (*)(void*, void*, void*)>("PyErr_Restore");
  void (*clear_error)() = python_function<void (*)()>("PyErr_Clear");
  void* (*new_dict)() = python_function<void* (*)()>("PyDict_New");
  int (*set_item)(void*, const char*, void*) = python_function<int (*)(void*, const char*, void*)>("PyDict_SetItemString");
  void (*clear_dict)(void*) = python_function<void (*)(void*)>("PyDict_Clear");
  void* (*builtins)() = python_function<void* (*)()>("PyEval_GetBuiltins");
  void* (*modules)() = python_function<void* (*)()>("PyImport_GetModuleDict");
  void* (*run)(const char*, int, void*, void*) = python_function<void* (*)(const char*, int, void*, void*)>("PyRun_String");
  const char* (*as_utf8)(void*) = python_function<const char* (*)(void*)>("PyUnicode_AsUTF8");
  void (*drop)(void*) = python_function<void (*)(void*)>("Py_DecRef");
  // From Python 3.11 on: the program's trace functions are left out. Without them, nothing is looked for.
  void* (*thread)() = python_function<void* (*)()>("PyThreadState_Get");
  void (*enter_tracing)(void*) = python_function<void (*)(void*)>("PyThreadState_EnterTracing");
  void (*leave_tracing)(void*) = python_function<void (*)(void*)>("PyThreadState_LeaveTracing");

  bool here() const {
    return is_initialized && gil_ensure && gil_release && fetch && restore && clear_error && new_dict && set_item && clear_dict && builtins && modules && run &&
           as_utf8 && drop && thread && enter_tracing && leave_tracing && is_initialized() != 0;
  }
};

const Python& python() {
  static const Python functions;
  return functions;
}

// One look at the program. The tensors it lists live as long as it does.
class Search {
 public:
  Search() : gil_(python().gil_ensure()) {
    python().fetch(&type_, &value_, &traceback_);
    python().enter_tracing(python().thread());
    names_ = python().new_dict();
    if (names_ == nullptr) return;
    python().set_item(names_, "__builtins__", python().builtins());
    python().set_item(names_, "modules", python().modules());
    constexpr int kStatements = 257;  // Py_file_input
    void* done = python().run(kHoldersPy, kStatements, names_, names_);
    if (done == nullptr) return;
    python().drop(done);
    const std::string addresses = ask("survey()");
    for (const char* at = addresses.c_str(); *at != '\0';) {
      char* end = nullptr;
      const auto address = std::strtoull(at, &end, 10);
      if (end == at) break;
      tensors_.push_back(reinterpret_cast<c10::TensorImpl*>(address));
      at = end;
    }
  }
  ~Search() {
    if (names_ != nullptr) {
      python().clear_dict(names_);  // its functions refer to it
      python().drop(names_);
    }
    python().clear_error();
    python().leave_tracing(python().thread());
    python().restore(type_, value_, traceback_);
    python().gil_release(gil_);
  }
  Search(const Search&) = delete;
  Search& operator=(const Search&) = delete;

  // All that Python knows.
  const std::vector<c10::TensorImpl*>& tensors() const { return tensors_; }

  // What holds these, "" when it is not found.
  std::string name_of(const std::vector<c10::TensorImpl*>& tensors) {
    if (tensors.empty()) return "";
    std::string call = "name_of({";
    for (const c10::TensorImpl* impl : tensors) call += std::to_string(reinterpret_cast<uintptr_t>(impl)) + ",";
    return ask(call + "})");
  }

 private:
  std::string ask(const std::string& expression) {
    constexpr int kExpression = 258;  // Py_eval_input
    void* answer = python().run(expression.c_str(), kExpression, names_, names_);
    const char* text = answer == nullptr ? nullptr : python().as_utf8(answer);
    std::string result = text == nullptr ? "" : text;
    python().clear_error();
    if (answer != nullptr) python().drop(answer);
    return result;
  }

  int gil_;
  void *type_ = nullptr, *value_ = nullptr, *traceback_ = nullptr;
  void* names_ = nullptr;
  std::vector<c10::TensorImpl*> tensors_;
};

at::Tensor tensor_of(c10::TensorImpl* impl) { return at::Tensor(c10::intrusive_ptr<c10::TensorImpl>::reclaim_copy(impl)); }

// The tensors that keep graphs of earlier steps, that which keeps most first.
struct OldGraphs {
  std::vector<c10::TensorImpl*> keepers;
  int64_t nodes = 0;
};

OldGraphs old_graphs(const std::vector<c10::TensorImpl*>& tensors, uint64_t old_before) {
  OldGraphs graphs;
  std::vector<std::pair<int64_t, c10::TensorImpl*>> by_nodes;
  ska::flat_hash_set<const torch::autograd::Node*> seen;
  for (c10::TensorImpl* impl : tensors) {
    auto* node = const_cast<torch::autograd::Node*>(node_of(tensor_of(impl)));
    int64_t old = 0;
    walk_graph({node}, [&](torch::autograd::Node* n) {
      if (seen.size() >= kNodesAtMost || !seen.insert(n).second) return false;
      old += n->sequence_nr() < old_before;
      return true;
    });
    graphs.nodes += old;
    if (old > 0) by_nodes.emplace_back(old, impl);
  }
  std::stable_sort(by_nodes.begin(), by_nodes.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  for (const auto& [nodes, impl] : by_nodes) graphs.keepers.push_back(impl);
  return graphs;
}

std::vector<c10::TensorImpl*> first_of(std::vector<c10::TensorImpl*> tensors) {
  if (tensors.size() > kSamples) tensors.resize(kSamples);
  return tensors;
}

}  // namespace

std::vector<std::string> name_holders(const std::vector<LeakedTensors>& leaks, uint64_t old_before) {
  std::vector<std::string> names(leaks.size());
  if (!python().here() || leaks.empty()) return names;
  try {
    Search search;
    std::optional<std::string> graph_holder;
    for (size_t i = 0; i < leaks.size(); ++i) {
      const ska::flat_hash_set<const void*> wanted(leaks[i].addresses.begin(), leaks[i].addresses.end());
      std::vector<c10::TensorImpl*> found;
      for (c10::TensorImpl* impl : search.tensors()) {
        const void* memory = memory_of(tensor_of(impl));
        if (memory != nullptr && wanted.count(memory) > 0) found.push_back(impl);
      }
      names[i] = search.name_of(first_of(std::move(found)));
      if (!names[i].empty() || !leaks[i].may_be_saved) continue;
      if (!graph_holder) graph_holder = search.name_of(first_of(old_graphs(search.tensors(), old_before).keepers));
      names[i] = *graph_holder;
    }
  } catch (const std::exception&) {  // no memory for a search
  }
  return names;
}

GraphKeeper find_graph_keeper(uint64_t old_before) {
  if (!python().here()) return {};
  try {
    Search search;
    const OldGraphs graphs = old_graphs(search.tensors(), old_before);
    return {search.name_of(first_of(graphs.keepers)), graphs.nodes};
  } catch (const std::exception&) {
    return {};
  }
}

}  // namespace koila
