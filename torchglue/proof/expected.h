// What PyTorch itself had computed for the full batch before memory ran out: the truth that micro-batches are held against.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "torchglue/proof/fingerprint.h"

namespace koila {

// Of one value, a row at a time, or, of a Partial, as a whole.
struct Witness {
  Placement placement;
  at::ScalarType dtype = at::kFloat;
  std::vector<std::pair<int64_t, Fingerprint>> rows;
  Fingerprint sum;
  size_t conversion = 0;  // what it is a witness of, for ProvenCalls::steps

  int64_t entries() const { return sum.entries + (rows.empty() ? 0 : rows.front().second.entries * static_cast<int64_t>(rows.size())); }
};

// Fingerprints of some rows of a tensor of the full batch: the first, one in the middle, the last. Nothing where there are none to be had.
std::optional<Witness> bear_witness(const at::Tensor& full, const Placement& placement, int64_t batch);

// The parts of a value as they come by, each row once, in order; what is run again is left out. `usable` false: parts came that cannot be told apart.
struct Tally {
  Fingerprint sum;
  int64_t until = 0;
  bool usable = true;

  void add(const at::Tensor& part, const Placement& placement, int64_t batch, RowRange rows);
  bool whole(int64_t batch) const { return usable && until == batch; }
  Fingerprint total(const Placement& placement) const { return placement.is_partial() ? sum.of_sum() : sum; }
};

// A value that came out otherwise than expected.
struct Doubt {
  size_t instruction = 0;
  uint32_t value = 0;
  int64_t row = -1;  // -1: the sum over all rows
  at::ScalarType dtype = at::kFloat;
  Fingerprint expected, found;
};

// Of a region, by the instruction after which the value is what it was on the tape.
struct Expectations {
  struct Of {
    uint32_t value = 0;
    Witness witness;
    Tally sum;
  };
  std::map<size_t, std::vector<Of>> by_instruction;
  std::vector<Doubt> doubts;  // in the order in which they arose
  size_t conversion = 0;
};

}  // namespace koila
