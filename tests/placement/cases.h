// Cases: calls that every entry of the rule tables must stand, family by family. Only data here, no tensors: see cases.cc.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "torchglue/placement/placement.h"

namespace koila::cases {

constexpr int64_t B = 5;  // the batch of all cases

using Sizes = std::vector<int64_t>;

// How an operand is filled.
enum class Fill {
  kNormal,
  kUnit,      // in (0.05, 0.95)
  kPositive,  // in (0.5, 2.5)
  kSorted,    // ascending along the last dimension
  kIndex,     // int64: 0, 1, 2
  kLabel,     // int64: 1, 2, 3
  kBool,
  kZeroOne,   // 0.0 or 1.0
  kSigns,     // -1.0 or 1.0
};

// How to make a tensor argument of the full batch: doubles, unless filled with something else.
struct Operand {
  bool defined = true;
  Sizes sizes;
  Placement placement;
  Fill fill = Fill::kNormal;
  std::vector<int64_t> values = {};                        // int64 entries to use instead
  std::vector<int64_t> ignored = {};                       // flat places that become -100
  c10::ScalarType dtype = c10::ScalarType::Undefined;      // cast to it
  bool differentiable = true;
  bool number = false;                                     // a Python number that was made a tensor: values[0] or `fraction`
  double fraction = 0;
};

inline Operand replicate(Sizes sizes, Fill fill = Fill::kNormal) { return {true, std::move(sizes), Placement::replicate(), fill}; }
inline Operand shard(Sizes sizes, int64_t dim = 0, int64_t outer = 1, int64_t inner = 1, Fill fill = Fill::kNormal) {
  return {true, std::move(sizes), Placement::shard(dim, outer, inner), fill};
}
inline Operand shard(Sizes sizes, Fill fill) { return shard(std::move(sizes), 0, 1, 1, fill); }
inline Operand partial(Sizes sizes, Fill fill = Fill::kNormal) { return {true, std::move(sizes), Placement::partial(), fill}; }
inline Operand none() { return {false, {}, {}}; }

inline Operand with_values(std::vector<int64_t> values) {
  Operand o = replicate({static_cast<int64_t>(values.size())}, Fill::kIndex);
  o.values = std::move(values);
  return o;
}
inline Operand scalar(int64_t value) {
  Operand o = with_values({value});
  o.sizes = {};
  return o;
}
// A Python number that an operator sees as a tensor.
inline Operand number(int64_t value) {
  Operand o = scalar(value);
  o.number = true;
  return o;
}
inline Operand number(double value) {
  Operand o = replicate({});
  o.differentiable = false;
  o.number = true;
  o.fraction = value;
  return o;
}

inline Operand as(Operand o, c10::ScalarType dtype) { return o.dtype = dtype, o; }
inline Operand constant(Operand o) { return o.differentiable = false, o; }  // without a gradient
inline Operand ignoring(Operand o, std::vector<int64_t> places) { return o.ignored = std::move(places), o; }
inline Operand mask(std::vector<int64_t> bits) { return as(with_values(std::move(bits)), c10::ScalarType::Bool); }
inline Operand mask(std::vector<int64_t> bits, Sizes sizes) {
  Operand o = mask(std::move(bits));
  o.sizes = std::move(sizes);
  return o;
}

enum class Special { kCpu, kGenerator };

// A tensor, a list of tensors, or anything else; monostate is None.
using Argument = std::variant<std::monostate, bool, int64_t, double, std::string, std::vector<int64_t>, Special, Operand, std::vector<Operand>>;
using List = std::vector<Operand>;
using Keywords = std::vector<std::pair<std::string, Argument>>;

enum class Expect { kNo, kLocal, kStaged, kReal };

struct Case {
  std::string op;
  std::vector<Argument> args;
  Expect verdict = Expect::kLocal;
  Placement output = {};  // of output 0; Replicate: not looked at
  Keywords keywords = {};
  bool random = false;
};

// Short names for the tables.
constexpr Expect kLocal = Expect::kLocal, kNo = Expect::kNo, kStaged = Expect::kStaged, kReal = Expect::kReal;
constexpr std::monostate kNil{};
inline Placement S(int64_t dim, int64_t outer = 1, int64_t inner = 1) { return Placement::shard(dim, outer, inner); }
// Each row has a number of entries of its own.
inline Placement R(int64_t dim) { return Placement::shard(dim, std::make_shared<const Ragged>()); }
inline Placement P() { return Placement::partial(); }
inline std::vector<int64_t> ints(std::vector<int64_t> values) { return values; }
inline int64_t code(c10::ScalarType dtype) { return static_cast<int64_t>(dtype); }

std::vector<Case> pointwise_cases();
std::vector<Case> view_cases();
std::vector<Case> reduction_cases();
std::vector<Case> matrix_cases();
std::vector<Case> layer_cases();  // convolution, pooling, normalisation, attention, embedding, recurrent, random
std::vector<Case> loss_cases();
std::vector<Case> indexing_cases();
std::vector<Case> kernel_cases();  // kernels' own interfaces

}  // namespace koila::cases
