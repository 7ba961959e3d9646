// What micro-batches came to is put to the proof before the program gets it.
#pragma once

#include <string>
#include <vector>

#include "torchglue/proof/expected.h"
#include "torchglue/region/region.h"

namespace koila {

// Note [Proof]
// Nothing here knows what went wrong; it looks at what came out. The first time that a step of its kind runs in micro-batches:
// - each operator's rule is put to the test on a few rows (rules.cc);
// - values that PyTorch had computed for the full batch before memory ran out are held against those of the micro-batches, row by row (Expectations);
// - the loss, and what else is read, is made once more, without gradients, in micro-batches of another size, whose rows begin elsewhere.
// Invariants are looked at always: see invariants.h.
//
// Rounding is no error, and how much of it there is hangs on the step: a batch norm may blow it up a thousandfold, and an argmax, of two entries that are as good as
// equal, makes something else of it. So a difference that a few roundings do not explain is looked at again: the same rows run once more with every operator's
// result shaken by some roundings. A difference that shaking makes as well, or nearly, is rounding. Any other is real: the step ends as a refusal that names the
// first operator whose result differs, and a file is written to send in. What there is no memory for is not proven.
//
// One lives for as long as a materialisation or a backward pass of a region.
class Proof {
 public:
  // `keep`: the values that the pass is for.
  Proof(Region& region, const Region::Schedule& plan, const std::vector<ValueId>& keep);

  // A micro-batch has run.
  void add(const Frame& frame);
  // Of a backward pass: a micro-batch's gradient of a use, which is about to be summed; and all of them have been.
  void add_gradient(uint32_t use, Rows rows, const at::Tensor& gradient);
  void check_gradients();
  void start_over() { gradients_.clear(); }
  // What a value has been put together to, before it goes to the program.
  void check_value(ValueId value, const at::Tensor& full);
  // Before its values go to the program. Throws the step's refusal.
  void finish();

 private:
  class Trace;
  class Jitter;
  using Tallies = std::vector<Tally>;

  bool is_new(size_t key) const;
  int64_t another_size() const;
  void pass(int64_t size, const Region::Schedule& plan, FrameWatch* watch, Tallies* kept);
  void hold_against_witnesses();
  void hold_against_another_size();
  bool is_real(const Doubt& doubt);
  bool is_real(const Tallies& first, const Tallies& second, const Region::Schedule& plan, int64_t size);
  size_t at_fault(int64_t size);
  double margin(double noise, at::ScalarType type, double length) const;
  double tolerated() const;

  Region& region_;
  const Region::Schedule& plan_;
  std::vector<ValueId> keep_;
  Tallies first_;
  Tallies gradients_;    // by use
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
};

}  // namespace koila
