// What is known of a step before it is converted, held against what becomes of it.
#pragma once

#include <vector>

#include "torchglue/plan/seeds.h"
#include "torchglue/proof/expected.h"
#include "torchglue/region/region.h"
#include "torchglue/tape/tape.h"

namespace koila {

// Note [Witnesses]
// When memory runs out PyTorch has computed most of the step's values for the full batch, and they are the truth. Before a conversion lets them go a few numbers of each are
// taken: three rows' fingerprints, some hundred bytes in plain memory. Where the value is made again at the full batch they are compared at once; a region compares them when a
// micro-batch comes by that has these rows. So it shows when an operator got lost, a write was forgotten, or a capture is not what it was. A random draw is made anew, and has none.
//
// Gradients have no such witness. But the parameters that backward would have come to are known, and it has to come to them still; and running statistics have been moved already.
class BeforeConversion {
 public:
  BeforeConversion(const Tape& tape, const Plan& plan, const std::vector<char>& needed);

  // The conversion is over, or has ended on its way, with the first `done` of the tape's operators: `region` is what it has made of the step, if it came so far. What has another value than it had is
  // lost; region->check_sound() then throws. What a later operator would still write to is not looked at. Throws nothing itself.
  void compare(const Tape& tape, Region* region, size_t done) noexcept;

 private:
  struct Value {
    TapeValueId id;
    Witness witness;
  };
  struct Statistic {
    at::Tensor tensor;
    std::vector<char> bytes;
  };

  void take_witnesses(const Tape& tape, const std::vector<char>& needed);
  void take_statistics(const Tape& tape);
  void compare_values(const Tape& tape, Region* region, size_t done);
  void compare_statistics(Region* region);
  void compare_leaves(const Tape& tape, Region* region);

  const Plan& plan_;
  std::vector<Value> values_;
  std::vector<Statistic> statistics_;
  std::vector<at::Tensor> leaves_;
  size_t key_ = 0;
};

}  // namespace koila
