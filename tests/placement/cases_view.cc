#include <limits>

#include "tests/placement/cases.h"

namespace koila::cases {

namespace {

constexpr int64_t kEnd = std::numeric_limits<int64_t>::max();

void reshapes(std::vector<Case>& cases) {
  for (const char* op : {"aten::reshape", "aten::view", "aten::_unsafe_view"}) {
    cases.insert(cases.end(), {
      {op, {shard({B, 3, 4}), ints({B, -1})}, kLocal, S(0)},               // x.view(x.size(0), -1)
      {op, {shard({B, 3, 4}), ints({-1, 12})}, kLocal, S(0)},
      {op, {shard({B, 3, 4}), ints({-1, 4})}, kLocal, S(0, 1, 3)},         // [B, T, C] -> [B*T, C]
      {op, {shard({B, 3, 4}), ints({15, 4})}, kLocal, S(0, 1, 3)},
      {op, {shard({15, 4}, 0, 1, 3), ints({B, 3, 2, 2})}, kLocal, S(0)},   // and back
      {op, {shard({15, 4}, 0, 1, 3), ints({-1, 3, 4})}, kLocal, S(0)},
      {op, {shard({3, B, 8}, 1), ints({3, 10, 4})}, kLocal, S(1, 1, 2)},   // multi-head attention, time first
      {op, {shard({3, B, 8}, 1), ints({15, 8})}, kLocal, S(0, 3)},
      {op, {shard({15, 8}, 0, 3), ints({3, B, 8})}, kLocal, S(1)},
      {op, {shard({10, 3, 4}, 0, 1, 2), ints({B, 2, 3, 4})}, kLocal, S(0)},
      {op, {shard({B, 3}), ints({1, B, 1, 3, 1})}, kLocal, S(1)},
      {op, {shard({B, 3}), ints({-1})}, kLocal, S(0, 1, 3)},
      {op, {shard({B, B}, 1), ints({B, B, 1})}, kLocal, S(1)},             // the first 5 is not the batch
      {op, {shard({B, B}, 1), ints({-1})}, kLocal, S(0, B)},
      {op, {shard({15, B}, 0, 1, 3), ints({3, 25})}, kNo},                 // cuts through the batch
      {op, {shard({B, 6}), ints({3, 10})}, kNo},
      {op, {partial({6}), ints({2, 3})}, kLocal, P()},
    });
  }
  cases.insert(cases.end(), {
    {"aten::reshape_as", {shard({B, 6}), replicate({B, 2, 3})}, kLocal, S(0)},
    {"aten::reshape_as", {shard({B, 6}), shard({B, 2, 3})}, kLocal, S(0)},
    {"aten::reshape_as", {shard({B, 6}), shard({2 * B, 3}, 0, 2, 1)}, kNo},
    {"aten::reshape_as", {partial({6}), replicate({2, 3})}, kLocal, P()},
    {"aten::view_as", {shard({B, 6}), replicate({10, 3})}, kLocal, S(0, 1, 2)},
    {"aten::view_as", {partial({6}), shard({B, 6})}, kNo},
    {"aten::view.dtype", {constant(shard({B, 3})), code(c10::ScalarType::Long)}, kLocal, S(0)},
    {"aten::view.dtype", {constant(shard({B, 3})), code(c10::ScalarType::Float)}, kLocal, S(0)},
    {"aten::view.dtype", {constant(shard({3, B}, 1)), code(c10::ScalarType::Float)}, kNo},
    {"aten::view.dtype", {constant(partial({3})), code(c10::ScalarType::Long)}, kNo},
    {"aten::flatten.using_ints", {shard({B, 3, 4})}, kLocal, S(0, 1, 12)},
    {"aten::flatten.using_ints", {shard({B, 3, 4}), 1}, kLocal, S(0)},
    {"aten::flatten.using_ints", {shard({B, 3, 4}), 0, 1}, kLocal, S(0, 1, 3)},
    {"aten::flatten.using_ints", {shard({3, B, 4}, 1), 0, -2}, kLocal, S(0, 3)},
    {"aten::flatten.using_ints", {shard({3, 4, B}, 2), 0, 1}, kLocal, S(1)},
    {"aten::flatten.using_ints", {partial({3, 4})}, kLocal, P()},
    {"aten::unflatten.int", {shard({15, 2}, 0, 1, 3), 0, ints({B, 3})}, kLocal, S(0)},
    {"aten::unflatten.int", {shard({15, 2}, 0, 1, 3), 0, ints({-1, 3})}, kLocal, S(0)},
    {"aten::unflatten.int", {shard({15, 2}, 0, 3), -2, ints({3, -1})}, kLocal, S(1)},
    {"aten::unflatten.int", {shard({15, 2}, 0, 3), 0, ints({3, B})}, kLocal, S(1)},
    {"aten::unflatten.int", {shard({15, 2}, 0, 3), 0, ints({B, 3})}, kNo},
    {"aten::unflatten.int", {shard({B, 6}), 1, ints({2, 3})}, kLocal, S(0)},
    {"aten::unflatten.int", {shard({6, B}, 1), 0, ints({2, 3})}, kLocal, S(2)},
    {"aten::unflatten.int", {shard({B, B}), 1, ints({B, 1})}, kLocal, S(0)},
    {"aten::unflatten.int", {partial({6}), 0, ints({2, 3})}, kLocal, P()},
  });
  for (const char* op : {"aten::expand", "aten::broadcast_to"}) {
    cases.insert(cases.end(), {
      {op, {shard({B, 1}), ints({B, 3})}, kLocal, S(0)},
      {op, {shard({B, 1}), ints({-1, 3})}, kLocal, S(0)},
      {op, {shard({B, 1}), ints({2, B, 3})}, kLocal, S(1)},
      {op, {shard({B, 1}), ints({B, B, B})}, kLocal, S(1)},
      {op, {shard({15, 1}, 0, 1, 3), ints({15, 2})}, kLocal, S(0, 1, 3)},
      {op, {partial({1}), ints({B, 3})}, kLocal, P()},
    });
  }
  cases.insert(cases.end(), {
    {"aten::squeeze", {shard({B, 1})}, kLocal, S(0)},
    {"aten::squeeze", {shard({1, B, 1, 3}, 1)}, kLocal, S(0)},
    {"aten::squeeze", {shard({B, 3})}, kLocal, S(0)},
    {"aten::squeeze", {partial({1, 3})}, kLocal, P()},
    {"aten::squeeze.dim", {shard({B, 1, 3}), 1}, kLocal, S(0)},
    {"aten::squeeze.dim", {shard({1, B, 3}, 1), 0}, kLocal, S(0)},
    {"aten::squeeze.dim", {shard({B, 1}), -1}, kLocal, S(0)},
    {"aten::squeeze.dim", {shard({B, 3}), 1}, kLocal, S(0)},
    {"aten::squeeze.dim", {shard({B, 3}), 0}, kNo},
    {"aten::squeeze.dim", {partial({1, 3}), 0}, kLocal, P()},
    {"aten::squeeze.dims", {shard({1, B, 1}, 1), ints({0, -1})}, kLocal, S(0)},
    {"aten::squeeze.dims", {shard({1, B, 1}, 1), ints({0, 1})}, kNo},
    {"aten::unsqueeze", {shard({B, 3}), 0}, kLocal, S(1)},
    {"aten::unsqueeze", {shard({B, 3}), 1}, kLocal, S(0)},
    {"aten::unsqueeze", {shard({B, 3}), -1}, kLocal, S(0)},
    {"aten::unsqueeze", {shard({B}), -2}, kLocal, S(1)},
    {"aten::unsqueeze", {partial({}), 0}, kLocal, P()},
  });
}

void orders(std::vector<Case>& cases) {
  for (const char* op : {"aten::adjoint", "aten::mH", "aten::mT"}) {
    cases.push_back({op, {shard({B, 3, 4})}, kLocal, S(0)});
    cases.push_back({op, {shard({2, 3, B}, 2)}, kLocal, S(1)});
  }
  for (const char* op : {"aten::matrix_H", "aten::numpy_T", "aten::t"}) {
    cases.push_back({op, {shard({B, 3})}, kLocal, S(1)});
    cases.push_back({op, {partial({2, 3})}, kLocal, P()});
  }
  for (const char* op : {"aten::moveaxis", "aten::movedim"}) {
    const std::string one = std::string(op) + ".int", many = std::string(op) + ".intlist";
    cases.insert(cases.end(), {
      {one, {shard({B, 3, 4}), 0, 1}, kLocal, S(1)},
      {one, {shard({B, 3, 4}), -1, 0}, kLocal, S(1)},
      {one, {shard({2, B, 4}, 1), 0, 2}, kLocal, S(0)},
      {many, {shard({2, B, 4, 3}, 1), ints({3, 0}), ints({1, -1})}, kLocal, S(0)},
      {many, {shard({2, B, 4, 3}, 1), ints({1}), ints({3})}, kLocal, S(3)},
    });
  }
  for (const char* op : {"aten::swapaxes", "aten::swapdims", "aten::transpose.int"}) {
    cases.insert(cases.end(), {
      {op, {shard({B, 3, 4}), 0, 1}, kLocal, S(1)},
      {op, {shard({B, 3, 4}), -1, -3}, kLocal, S(2)},
      {op, {shard({15, 3, 4}, 0, 1, 3), 1, 2}, kLocal, S(0, 1, 3)},
      {op, {partial({3, 4}), 0, 1}, kLocal, P()},
    });
  }
  cases.insert(cases.end(), {
    {"aten::permute", {shard({B, 3, 4}), ints({2, 0, 1})}, kLocal, S(1)},
    {"aten::permute", {shard({3, B, 4}, 1), ints({0, 2, -2})}, kLocal, S(2)},
    {"aten::t", {shard({B})}, kLocal, S(0)},
    {"aten::movedim.int", {partial({3, 4}), 0, 1}, kLocal, P()},
  });
}

void parts(std::vector<Case>& cases) {
  cases.insert(cases.end(), {
    {"aten::select.int", {shard({B, 3, 4}), 1, 2}, kLocal, S(0)},
    {"aten::select.int", {shard({3, B, 4}, 1), 0, -1}, kLocal, S(0)},
    {"aten::select.int", {shard({B, 3}), 0, 1}, kNo},
    {"aten::select.int", {partial({3, 4}), 0, 1}, kLocal, P()},
    {"aten::slice.Tensor", {shard({B, 4}), 1, 1, 3}, kLocal, S(0)},
    {"aten::slice.Tensor", {shard({B, 4}), 1, kNil, -1, 2}, kLocal, S(0)},
    {"aten::slice.Tensor", {shard({B, 4}), 0, kNil, kEnd}, kLocal, S(0)},  // x[:]
    {"aten::slice.Tensor", {shard({B, 4}), 0, 0, B}, kLocal, S(0)},
    {"aten::slice.Tensor", {shard({B, 4}), 0, -B, 2 * B}, kLocal, S(0)},
    {"aten::slice.Tensor", {shard({B, 4}), 0, 0, B - 1}, kLocal, R(0)},
    {"aten::slice.Tensor", {shard({B, 4}), 0, 1, kEnd}, kLocal, R(0)},
    {"aten::slice.Tensor", {shard({2, 20 * B}, 1, 1, 20), 1, 3, 5}, kNo},  // little of it
    {"aten::slice.Tensor", {shard({B, 4}), 0, 0, B, 2}, kNo},
    {"aten::slice.Tensor", {shard({3 * B, 4}, 0, 3), 0, 0, B}, kLocal, S(0)},       // blocks of cat
    {"aten::slice.Tensor", {shard({3 * B, 4}, 0, 3), 0, B, kNil}, kLocal, S(0, 2)},
    {"aten::slice.Tensor", {shard({3 * B, 4}, 0, 3), 0, -B, kEnd}, kLocal, S(0)},
    {"aten::slice.Tensor", {shard({3 * B, 4}, 0, 3), 0, B, -B}, kLocal, S(0)},
    {"aten::slice.Tensor", {shard({6 * B}, 0, 3, 2), 0, 2 * B, 4 * B}, kLocal, S(0, 1, 2)},
    {"aten::slice.Tensor", {shard({6 * B}, 0, 3, 2), 0, B, 3 * B}, kLocal, R(0)},
    {"aten::slice.Tensor", {partial({4}), 0, 1, 3}, kLocal, P()},
    {"aten::unbind.int", {shard({B, 3}), 1}, kLocal, S(0)},
    {"aten::unbind.int", {shard({3, B}, 1)}, kLocal, S(0)},
    {"aten::unbind.int", {shard({B, 3})}, kNo},
    {"aten::unbind.int", {partial({3})}, kLocal, P()},
    {"aten::split.sizes", {shard({B, 4}), ints({1, 3}), 1}, kLocal, S(0)},
    {"aten::split.sizes", {shard({2 * B, 4}, 0, 2), ints({B, B})}, kLocal, S(0)},
    {"aten::split.sizes", {shard({3 * B, 4}, 0, 3), ints({B, 2 * B})}, kLocal, S(0)},
    {"aten::split.sizes", {shard({B, 4}), ints({2, 3})}, kLocal, R(0)},
    {"aten::split_with_sizes", {shard({B, 4}), ints({1, 3}), -1}, kLocal, S(0)},
    {"aten::split_with_sizes", {partial({4}), ints({1, 3})}, kLocal, P()},
    {"aten::unsafe_split_with_sizes", {shard({4 * B}, 0, 4), ints({2 * B, 2 * B})}, kLocal, S(0, 2)},
    {"aten::tensor_split.indices", {shard({B, 4}), ints({1, 3}), 1}, kLocal, S(0)},
    {"aten::tensor_split.indices", {shard({2 * B, 4}, 0, 2), ints({B})}, kNo},
    {"aten::tensor_split.sections", {shard({B, 4}), 3, 1}, kLocal, S(0)},
    {"aten::tensor_split.sections", {shard({4 * B}, 0, 4), 2}, kLocal, S(0, 2)},
    {"aten::diagonal", {shard({B, 3, 4}), 0, 1, 2}, kLocal, S(0)},
    {"aten::diagonal", {shard({3, B, 4}, 1), 1, 0, -1}, kLocal, S(0)},
    {"aten::diagonal", {shard({B, B}, 1), 0, 0, 1}, kNo},
    {"aten::diag_embed", {shard({B, 3})}, kLocal, S(0)},
    {"aten::diag_embed", {shard({B, 3}), 0, 0, 2}, kLocal, S(1)},
    {"aten::diag_embed", {shard({3, B}, 1)}, kNo},
    {"aten::unfold", {shard({B, 6}), 1, 3, 2}, kLocal, S(0)},
    {"aten::unfold", {shard({6, B}, 1), 0, 3, 2}, kLocal, S(1)},
    {"aten::unfold", {shard({B, 6}), 0, 2, 1}, kNo},
    {"aten::flip", {shard({B, 3}), ints({1})}, kLocal, S(0)},
    {"aten::flip", {shard({B, 3}), ints({-2})}, kNo},
    {"aten::flip", {partial({3}), ints({0})}, kLocal, P()},
    {"aten::roll", {shard({B, 3}), ints({1}), ints({1})}, kLocal, S(0)},
    {"aten::roll", {shard({B, 3}), ints({1}), ints({0})}, kNo},
    {"aten::roll", {shard({B, 3}), ints({1})}, kNo},
    {"aten::rot90", {shard({B, 3, 4}), 1, ints({1, 2})}, kLocal, S(0)},
    {"aten::rot90", {shard({B, 3})}, kNo},
    {"aten::view_as_complex", {shard({B, 3, 2})}, kLocal, S(0)},
    {"aten::view_as_real", {as(shard({3, B}, 1), c10::ScalarType::ComplexDouble)}, kLocal, S(1)},
  });
  for (const char* op : {"aten::narrow", "aten::narrow_copy"}) {
    cases.insert(cases.end(), {
      {op, {shard({B, 4}), 1, 1, 2}, kLocal, S(0)},
      {op, {shard({B, 4}), 0, 0, B}, kLocal, S(0)},
      {op, {shard({B, 4}), 0, 1, 2}, kLocal, R(0)},
      {op, {shard({3 * B}, 0, 3), 0, B, 2 * B}, kLocal, S(0, 2)},
      {op, {partial({4}), 0, 0, 2}, kLocal, P()},
    });
  }
  cases.push_back({"aten::narrow", {shard({B, 4}), 0, -B, B}, kLocal, S(0)});
  cases.push_back({"aten::narrow.Tensor", {shard({B, 4}), 1, replicate({}, Fill::kIndex), 1}, kNo});
  for (const char* op : {"aten::split.Tensor", "aten::unsafe_split.Tensor"}) {
    cases.insert(cases.end(), {
      {op, {shard({B, 4}), 3, 1}, kLocal, S(0)},
      {op, {shard({4 * B}, 0, 4), B}, kLocal, S(0)},
      {op, {shard({4 * B}, 0, 2, 2), 2 * B}, kLocal, S(0, 1, 2)},
      {op, {shard({4 * B}, 0, 4), 3 * B}, kLocal, R(0)},
      {op, {shard({B, 4}), 2}, kLocal, R(0)},
      {op, {shard({B, 4}), B}, kLocal, S(0)},
    });
  }
  for (const char* op : {"aten::chunk", "aten::unsafe_chunk"}) {
    cases.insert(cases.end(), {
      {op, {shard({B, 4}), 3, 1}, kLocal, S(0)},
      {op, {shard({2 * B, 4}, 0, 2), 2}, kLocal, S(0)},
      {op, {shard({3 * B, 4}, 0, 3), 2}, kLocal, R(0)},
      {op, {shard({B, 4}), 2}, kLocal, R(0)},
      {op, {partial({4}), 2}, kLocal, P()},
    });
  }
  for (const char* op : {"aten::tril", "aten::triu"}) {
    cases.push_back({op, {shard({B, 3, 3}), 1}, kLocal, S(0)});
    cases.push_back({op, {shard({B, 3})}, kNo});
    cases.push_back({op, {partial({3, 3})}, kLocal, P()});
  }
}

void sums_of_parts(std::vector<Case>& cases) {
  for (const char* op : {"aten::cat", "aten::concat"}) {
    cases.insert(cases.end(), {
      {op, {List{shard({B, 2}), shard({B, 3})}, 1}, kLocal, S(0)},
      {op, {List{replicate({B, 1, 2}), shard({B, 3, 2})}, -2}, kLocal, S(0)},     // a class token
      {op, {List{replicate({0}), shard({B, 3, 2})}, -2}, kLocal, S(0)},           // legacy: an empty vector
      {op, {List{shard({B, 2}), shard({B, 2})}, 0}, kLocal, S(0, 2)},
      {op, {List{shard({B, 2}), shard({2 * B, 2}, 0, 2)}}, kLocal, S(0, 3)},
      {op, {List{shard({2 * B, 2}, 0, 1, 2), shard({2 * B, 2}, 0, 1, 2)}}, kLocal, S(0, 2, 2)},
      {op, {List{shard({2 * B, 2}, 0, 1, 2), shard({B, 2})}}, kLocal, R(0)},
      {op, {List{shard({B, 2}), replicate({B, 2})}, 0}, kNo},
      {op, {List{shard({B, 2}), replicate({1, 2})}, 0}, kNo},
      {op, {List{shard({B, B}), shard({B, B}, 1)}, 0}, kNo},
      {op, {List{partial({2}), partial({3})}}, kLocal, P()},
      {op, {List{partial({2}), replicate({3})}}, kNo},
    });
  }
  cases.insert(cases.end(), {
    {"aten::stack", {List{shard({B, 2}), replicate({B, 2})}}, kLocal, S(1)},
    {"aten::stack", {List{shard({B, 2}), shard({B, 2})}, -1}, kLocal, S(0)},
    {"aten::stack", {List{shard({B, 2}), shard({B, 2})}, 1}, kLocal, S(0)},
    {"aten::stack", {List{shard({B, B}), shard({B, B}, 1)}}, kNo},
    {"aten::stack", {List{partial({}), partial({})}}, kLocal, P()},
    {"aten::stack", {List{partial({}), replicate({})}}, kNo},
    {"aten::repeat", {shard({B, 3}), ints({1, 2})}, kLocal, S(0)},
    {"aten::repeat", {shard({B, 3}), ints({2, 3, 1})}, kLocal, S(1, 3)},
    {"aten::repeat", {shard({6 * B}, 0, 2, 3), ints({2})}, kLocal, S(0, 4, 3)},
    {"aten::repeat", {partial({3}), ints({2})}, kLocal, P()},
    {"aten::tile", {shard({B, 3}), ints({2})}, kLocal, S(0)},
    {"aten::tile", {shard({2, B}, 1), ints({3})}, kLocal, S(1, 3)},
    {"aten::tile", {shard({B, 3}), ints({2, 2, 1})}, kLocal, S(1, 2)},
    {"aten::repeat_interleave.self_int", {shard({B, 3}), 2, 1}, kLocal, S(0)},
    {"aten::repeat_interleave.self_int", {shard({B, 3}), 2, 0}, kLocal, S(0, 1, 2)},
    {"aten::repeat_interleave.self_int", {shard({6 * B}, 0, 2, 3), 2, 0}, kLocal, S(0, 2, 6)},
    {"aten::repeat_interleave.self_int", {shard({3, B}, 1), 2}, kLocal, S(0, 3, 2)},
    {"aten::repeat_interleave.self_int", {shard({B, 3}), 2, 0}, kLocal, S(0, 1, 2), {{"output_size", 2 * B}}},
    {"aten::repeat_interleave.self_int", {partial({3}), 2}, kLocal, P()},
    {"aten::constant_pad_nd", {shard({B, 3}), ints({1, 2}), 1.5}, kLocal, S(0)},
    {"aten::constant_pad_nd", {shard({B, 3, 2}), ints({1, 2, 0, 1, 0, 0})}, kLocal, S(0)},
    {"aten::constant_pad_nd", {shard({B, 3}), ints({0, 0, 1, 0})}, kNo},
    {"aten::constant_pad_nd", {partial({3}), ints({1, 2})}, kLocal, P()},
    {"aten::constant_pad_nd", {partial({3}), ints({1, 2}), 1.5}, kNo},
    {"aten::pad", {shard({B, 3, 4}), ints({1, 2}), "reflect"}, kLocal, S(0)},
    {"aten::pad", {shard({B, 3, 4}), ints({1, 2}), "circular"}, kLocal, S(0)},
    {"aten::pad", {shard({B, 3, 4}), ints({1, 2, 1, 1}), "replicate"}, kLocal, S(0)},
    {"aten::pad", {shard({B, 3}), ints({1, 2}), "constant", 2.0}, kLocal, S(0)},
    {"aten::pad", {shard({2, 3, B}, 2), ints({0, 0}), "reflect"}, kNo},
    {"aten::pad", {shard({B, 3}), ints({0, 0, 1, 1}), "constant", 2.0}, kNo},
    {"aten::channel_shuffle", {shard({B, 4, 2, 2}), 2}, kLocal, S(0)},
    {"aten::channel_shuffle", {shard({2, 10, 2, 2}, 1, 1, 2), 2}, kNo},
    {"aten::pixel_shuffle", {shard({B, 4, 2, 3}), 2}, kLocal, S(0)},
    {"aten::pixel_shuffle", {shard({2, 4 * B, 2, 3}, 1, 1, 4), 2}, kNo},
    {"aten::pixel_unshuffle", {shard({B, 1, 4, 2}), 2}, kLocal, S(0)},
  });
  for (const char* kind : {"aten::reflection_pad", "aten::replication_pad"}) {
    const std::string op = kind;
    cases.insert(cases.end(), {
      {op + "1d", {shard({B, 3, 4}), ints({1, 2})}, kLocal, S(0)},
      {op + "1d", {shard({2, 3, B}, 2), ints({1, 2})}, kNo},
      {op + "2d", {shard({B, 2, 3, 4}), ints({1, 2, 1, 0})}, kLocal, S(0)},
      {op + "2d", {shard({B, 3, 4}), ints({1, 2, 1, 0})}, kLocal, S(0)},  // one sample: every channel by itself
      {op + "3d", {shard({B, 2, 3, 3, 4}), ints({1, 2, 1, 0, 1, 1})}, kLocal, S(0)},
    });
  }
}

}  // namespace

std::vector<Case> view_cases() {
  std::vector<Case> cases;
  reshapes(cases);
  orders(cases);
  parts(cases);
  sums_of_parts(cases);
  return cases;
}

}  // namespace koila::cases
