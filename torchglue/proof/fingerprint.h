// What tells the numbers of one tensor from those of another, in a few numbers.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <optional>

#include "torchglue/placement/placement.h"

namespace koila {

// Note [Fingerprints]
// Sums of a tensor's entries in double precision, each with a weight that hangs on its place in the full batch alone. So the fingerprints of parts add up to that of the
// whole, however it is divided, and those of the summands of a Partial to that of its sum. An entry that is another shows, for the weights are as good as random; rounding
// shows as what it is, a small part of the tensor's length. What is not finite is counted, and in no sum.
//
// Taken straight from the memory, without an allocation of the program's: a tensor of a CUDA device is brought over to plain host memory.
struct Fingerprint {
  std::array<double, 2> sums{};
  double squares = 0, largest = 0;
  int64_t entries = 0, nans = 0, highs = 0, lows = 0;

  Fingerprint& operator+=(const Fingerprint& other);
  // The squares of small entries are zero, and their length is not.
  double length() const { return std::max(std::sqrt(squares), largest); }
  // As what is summed by rows has it: how many summands there were, and which of them were not finite, is not the sum's.
  Fingerprint of_sum() const;
};

// Of the rows [begin, end) of the batch, and `rows` of them, which the tensor has. Nothing for a tensor that is not dense, or of a type that has no numbers. `batch`: rows in all.
struct RowRange {
  int64_t begin = 0, end = 0;
};
// `most`: no more entries than that of a row, or of a tensor without rows, spread over it.
std::optional<Fingerprint> fingerprint(const at::Tensor& tensor, const Placement& placement, int64_t batch, RowRange has, RowRange rows, int64_t most = INT64_MAX);

// How far apart they are, as a part of the larger one's length; infinite where what is not finite differs.
double distance(const Fingerprint& a, const Fingerprint& b);
// The same in the entries' own unit: of the sums alone.
double difference(const Fingerprint& a, const Fingerprint& b);
bool same_shape(const Fingerprint& a, const Fingerprint& b);  // as many entries, and as many that are not finite

// One rounding of a type, as a part of the number. `device`: operators on single precision may round more on the way, see Note [Single precision that is less].
double rounding(at::ScalarType type, at::DeviceType device);
// What to multiply a tensor's entries by so that they are as if rounded otherwise, and a little more so: as good as random, and another for each `phase`.
at::Tensor roundings(const at::Tensor& tensor, double phase, double coarsest = 0);
// A copy in host memory that no account of tensors counts. Undefined where the host has no memory for it.
at::Tensor on_host(const at::Tensor& tensor, at::ScalarType type);
// How far apart two that differ in their order of summation are at the most, without a closer look.
double tolerance(double rounding);

}  // namespace koila
