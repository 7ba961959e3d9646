// What micro-batches came to is put to the proof before the program gets it.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "torchglue/proof/expected.h"
#include "torchglue/region/region.h"

namespace koila {

// Note [Proof]
// Nothing here knows what went wrong; it looks at what came out. The first time that a step of its kind runs in micro-batches:
// - each operator's rule is put to the test on a few rows (rules.cc);
// - values that PyTorch had computed for the full batch before memory ran out are held against those of the micro-batches, row by row (witnesses.cc);
// - the loss, and what else is read, is made once more in micro-batches of another size, whose rows begin elsewhere (another_size.cc);
// - mean and variance of a batch, and what is made of its running statistics, are found in another way for a few channels (statistics.cc).
// Invariants are looked at always: see invariants.h.
//
// Rounding is no error, and how much of it there is hangs on the step: a batch norm may blow it up a thousandfold, and an argmax, of two entries that are as good as
// equal, makes something else of it. So a difference that a few roundings do not explain is looked at again: the same rows run once more with every operator's
// result shaken by some roundings. A difference that shaking makes as well, or nearly, is rounding. Any other is real: the step ends as a refusal that names the
// first operator whose result differs, and a file is written to send in. What there is no memory for is not proven.
//
// Note [What another size costs]
// A proof may cost as much as one more forward pass, and the tests of the rules take their part of that. So not all rows are made once more, but the first micro-batch, and the last:
// what these came to is known by itself, sums as well. Gradients of the last are compared too, where it is so small that forward and backward
// are within the bound; KOILA_VERIFY=every makes all rows once more, with their gradients.
//
// One lives for as long as a materialisation or a backward pass of a region.
class Proof {
 public:
  // `keep`: the values that the pass is for.
  Proof(Region& region, const Schedule& plan, const std::vector<ValueId>& keep);

  // A micro-batch has run; and its part of a value that the program holds has been put into its place.
  void add(const Frame& frame);
  void stored(ValueId value, Rows rows, const at::Tensor& part);
  // Of a backward pass: a micro-batch's gradient of a use, which is about to be summed; and all of them have been; and what the engine gets of these, by edge.
  void add_gradient(uint32_t use, Rows rows, const at::Tensor& gradient);
  void check_gradients();
  void check_results(const std::vector<at::Tensor>& results);
  void start_over();
  // Whether a gradient is of a pass of the proof's own: it is nobody else's then.
  bool takes(uint32_t use, Rows rows, const at::Tensor& gradient);
  // What a value has been put together to, before it goes to the program.
  void check_value(const Held& held);
  // Runs backward for a micro-batch that has run with its graph.
  using Backward = std::function<void(Frame&)>;
  // Before its values go to the program. Throws the step's refusal.
  void finish(const Backward& backward = {});

 private:
  class Trace;
  class Jitter;
  using Tallies = std::vector<Tally>;

  // Rows that follow on each other, and what came of them.
  struct Stretch {
    Rows rows;
    int64_t largest = 0;          // rows of the largest micro-batch
    std::vector<int64_t> starts;  // of micro-batches
    Tallies values;               // by keep_
    Tallies gradients;            // by use
  };
  struct Difference {
    Fingerprint one, other;
    at::ScalarType dtype;
    bool apart;      // by more than a few roundings
    uint32_t use;    // of a gradient; kNoUse: it is a value
  };
  static constexpr uint32_t kNoUse = UINT32_MAX;

  bool is_new(size_t key) const;
  Stretch begun_at(int64_t row) const;
  void note(Stretch& stretch, const Frame& frame) const;
  bool complete(const Stretch& stretch) const { return stretch.rows.count() > 0; }
  void add_part(Tally& gradient, uint32_t use, Rows rows, const at::Tensor& part) const;
  int64_t entries_at_most() const;

  // another_size.cc
  Stretch pass(const Stretch& like, int64_t size, FrameWatch* watch, const Backward& backward);
  std::vector<Difference> differences(const Stretch& one, const Stretch& other) const;
  void hold_against_another_size(const Backward& backward);
  void hold_against_another_size(const Stretch& stretch, const Backward& backward);
  // The index of the first difference that rounding does not explain; -1 if rounding explains all of them.
  int64_t first_real(const Stretch& one, const Stretch& other, int64_t size, const Backward& backward);
  size_t at_fault(const Stretch& stretch, int64_t size);
  size_t reader_of(uint32_t use) const;

  // witnesses.cc
  void hold_against_witnesses();
  std::optional<bool> is_real(const Doubt& doubt);

  double margin(double noise, at::ScalarType type, double length) const;
  double tolerated() const;

  Region& region_;
  const Schedule& plan_;
  std::vector<ValueId> keep_;
  Tallies held_;                                  // by keep_: all rows, as they have been stored
  Stretch first_, before_last_, last_, whole_;    // whole_: where all is made once more
  Tallies gradients_;                             // by use: all rows
  std::vector<std::pair<Fingerprint, int>> given_;  // by edge: the sum over its uses, and how many there are
  Stretch* taking_ = nullptr;                     // of a pass of the proof's own
  size_t key_ = 0;
  double rounding_ = 0;  // of the least precise type in the step
  bool again_ = false;   // another size is to be tried
};

// What the program is told, and the file that it is told of: `what` ends a sentence that begins with the operator's name.
struct Finding {
  std::string check;     // "rule", "witness", "another size", or an invariant's name
  size_t instruction = SIZE_MAX;  // of the region; SIZE_MAX: none in particular
  std::string what;
  std::vector<std::pair<std::string, double>> numbers;
  std::string op = {};   // where it is none of the region's instructions
  uint32_t line = 0;     // where that was called, see source_line_now()
};

}  // namespace koila
