// koila::lazy(tensor, dim): the program says which tensors of a step are the batch.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/flat_hash_map.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "runtime/size_policy.h"

namespace koila {

// Note [Named seeds]
// Of a tensor that the program has named nothing has to be guessed, and nothing has to run out of memory first. It waits for the first operator that
// reads it: that call tells the kind of step, as for every seed (Note [Signatures]), and so what like steps have taken. In a step that nobody knows
// yet a few rows run alongside the program and tell how many the others may be, see Note [Lazy from the first step]. An operator that reads it beside
// something split already (the labels of a loss) begins nothing: there the rule is asked, and that is all.
// While one waits in this step, nothing of another number of rows is taken for a seed, whatever was guessed or learned in steps without names.
struct NamedSeed {
  c10::weak_intrusive_ptr<c10::TensorImpl> tensor;
  int dim;
  int64_t batch;
  bool in_step = true;                 // named since the last step was over
  std::shared_ptr<SizePolicy> policy;  // the step's, once one that waited beside it has been read
};

// Thread contract: the owner of the step.
class NamedSeeds {
 public:
  void add(const at::Tensor& tensor, int dim);
  bool any() const { return !waiting_.empty(); }
  bool excludes(int64_t batch) const;

  // It has been read: it waits no more. Nothing: it did not, or is not what was named any more.
  std::optional<NamedSeed> take(const at::Tensor& tensor);

  // The policy of the step under way, if its seeds are named; from the first that is read on.
  std::shared_ptr<SizePolicy> policy_of(int64_t batch) const;
  void begin(const std::shared_ptr<SizePolicy>& policy);

  // What was not read waits on for another step.
  void step_over();
  void clear();

  // What cannot be sized is said once.
  bool said_unsized = false;

 private:
  ska::flat_hash_map<const c10::TensorImpl*, NamedSeed> waiting_;
  std::shared_ptr<SizePolicy> policy_;
};

}  // namespace koila
