#include "tests/placement/cases.h"
#include "torchglue/placement/packed_rows.h"

namespace koila::cases {

namespace {

// One entry for each row, which have these places.
Operand in_order(Sizes sizes, std::vector<int64_t> places) {
  Operand o = replicate(std::move(sizes));
  o.placement = Placement::shard(0, std::make_shared<const Ragged>(rows_at(std::move(places))));
  return o;
}

void by_dimension(std::vector<Case>& cases) {
  const auto index = [](const Sizes& sizes) { return replicate(sizes, Fill::kIndex); };
  cases.insert(cases.end(), {
    {"aten::gather", {shard({B, 3}), 1, index({B, 2})}, kLocal, S(0)},
    {"aten::gather", {shard({B, 3}), -1, shard({B, 1}, Fill::kIndex)}, kLocal, S(0)},
    {"aten::gather", {replicate({B, 3}), 1, shard({B, 2}, Fill::kIndex)}, kLocal, S(0)},
    {"aten::gather", {replicate({4, 3}), 0, shard({B, 3}, Fill::kIndex)}, kLocal, S(0)},   // a table
    {"aten::gather", {replicate({B + 1, 3}), 1, shard({B, 2}, Fill::kIndex)}, kNo},
    {"aten::gather", {shard({B, 3}), 0, index({2, 3})}, kNo},
    {"aten::gather", {shard({B, 3}), 0, shard({B, 3}, Fill::kIndex)}, kNo},
    {"aten::gather", {shard({B, 3}), 1, index({2, 2})}, kNo},
    {"aten::gather", {partial({3}), 0, index({2})}, kLocal, P()},
    {"aten::take_along_dim", {shard({B, 3}), index({B, 2}), 1}, kLocal, S(0)},
    {"aten::take_along_dim", {shard({B, 3}), index({1, 2}), 1}, kLocal, S(0)},
    {"aten::take_along_dim", {shard({B, 3}), index({2, 3}), 0}, kNo},
    {"aten::take_along_dim", {shard({B, 3}), index({2})}, kNo},
    {"aten::index_select", {shard({B, 3}), 1, index({4})}, kLocal, S(0)},
    {"aten::index_select", {shard({B, 3}), 0, index({4})}, kLocal, R(0)},  // rows, by where it points
    {"aten::index_select", {shard({3, B}, 1), 1, with_values({4, 0, 4, 2})}, kLocal, R(1)},
    {"aten::index_select", {in_order({B, 3}, {1, 4, 3, 2, 0}), 0, with_values({4, 0, 3, 2, 1})}, kLocal, R(0)},
    {"aten::index_select", {in_order({B, 3}, {1, 4, 3, 2, 0}), 0, with_values({1, 4, 3, 2, 0})}, kLocal, S(0)},  // back
    {"aten::index_select", {shard({2 * B, 3}, 0, 1, 2), 0, with_values({9, 0, 3, 4, 1, 1})}, kLocal, R(0)},
    {"aten::index_select", {shard({B, 3}), 0, with_values({0, 1, 2, 3, 4})}, kLocal, S(0)},        // as many from each row, in their order
    {"aten::index_select", {shard({B, 3}), 0, with_values({4, 1, 2, 3, 0})}, kNo},                 // the batch in another order
    {"aten::index_select", {shard({2 * B, 3}, 0, 2, 1), 0, index({4})}, kNo},
    {"aten::index_select", {replicate({3, 4}), 0, shard({B}, Fill::kIndex)}, kLocal, S(0)},
    {"aten::index_select", {replicate({2, 3}), -1, shard({B}, Fill::kIndex)}, kLocal, S(1)},
    {"aten::index_select", {shard({B, 3}), 1, shard({B}, Fill::kIndex)}, kNo},
    {"aten::index_select", {partial({3}), 0, index({2})}, kLocal, P()},

    {"aten::scatter.src", {shard({B, 4}), 1, with_values({}), shard({B, 2})}, kNo},
    {"aten::scatter.src", {shard({B, 3}), 1, index({B, 1}), shard({B, 1})}, kLocal, S(0)},
    {"aten::scatter.src", {replicate({B, 3}), 1, shard({B, 1}, Fill::kIndex), replicate({B, 1})}, kLocal, S(0)},
    {"aten::scatter.src", {shard({B, 3}), 0, index({1, 3}), replicate({1, 3})}, kNo},
    {"aten::scatter.value", {shard({B, 3}), 1, index({B, 1}), 2.0}, kLocal, S(0)},
    {"aten::scatter.value", {shard({B, 3}), 1, index({2, 1}), 2.0}, kNo},
    {"aten::scatter.reduce", {constant(shard({B, 3})), 1, index({B, 2}), constant(shard({B, 2}))}, kLocal, S(0), {{"reduce", "add"}}},
    {"aten::scatter.value_reduce", {constant(shard({B, 3})), 1, index({B, 2}), 2.0}, kLocal, S(0), {{"reduce", "multiply"}}},
    {"aten::scatter_add", {shard({B, 3}), 1, index({B, 2}), replicate({B, 2})}, kLocal, S(0)},
    {"aten::scatter_reduce.two", {shard({B, 3}), 1, index({B, 2}), replicate({B, 2}), "amax"}, kLocal, S(0)},
    {"aten::index_add", {shard({B, 3}), 1, index({2}), shard({B, 2})}, kLocal, S(0), {{"alpha", 0.5}}},
    {"aten::index_add", {shard({B, 3}), 0, with_values({4, 1, 1}), replicate({3, 3})}, kLocal, S(0), {{"alpha", 0.5}}},
    {"aten::index_add", {shard({3, 2 * B}, 1, 1, 2), 1, with_values({7, 0, 8, 9}), replicate({3, 4})}, kLocal, S(1, 1, 2)},
    {"aten::index_add", {shard({B, 3}), 0, shard({B}, Fill::kIndex), shard({B, 3})}, kNo},
    {"aten::index_add", {replicate({4, 3}), 0, shard({B}, Fill::kIndex), shard({B, 3})}, kLocal, P(), {{"alpha", 0.5}}},
    {"aten::index_add", {partial({4, 3}), 0, index({B}), shard({B, 3})}, kLocal, P()},
    {"aten::index_add", {replicate({3, 4}), -1, shard({B}, Fill::kIndex), replicate({3, B})}, kLocal, P()},
    {"aten::index_add", {as(replicate({4, 3}), c10::kLong), 0, shard({B}, Fill::kIndex), as(shard({B, 3}), c10::kLong)}, kNo},  // it would count for each micro-batch
    {"aten::index_add", {as(partial({4, 3}, Fill::kIndex), c10::kLong), 0, shard({B}, Fill::kIndex), shard({B, 3}, Fill::kLabel)}, kLocal, P()},
    {"aten::index_add", {as(replicate({4, 3}), c10::kBFloat16), 0, shard({B}, Fill::kIndex), as(shard({B, 3}), c10::kBFloat16)}, kNo},
    {"aten::scatter_add", {replicate({4, 3}), 0, shard({B, 3}, Fill::kIndex), shard({B, 3})}, kLocal, P()},
    {"aten::scatter_add", {partial({4, 3}), 0, index({B, 3}), shard({B, 3})}, kLocal, P()},
    {"aten::scatter_add", {shard({B, 3}), 0, index({4, 3}), replicate({4, 3})}, kNo},  // each column points elsewhere
    {"aten::scatter_reduce.two", {replicate({4, 3}), 0, shard({B, 3}, Fill::kIndex), shard({B, 3}), "sum"}, kLocal, P()},
    {"aten::scatter_reduce.two", {replicate({4, 3}), 0, shard({B, 3}, Fill::kIndex), shard({B, 3}), "sum"}, kNo, {}, {{"include_self", false}}},
    {"aten::scatter_reduce.two", {replicate({4, 3}), 0, shard({B, 3}, Fill::kIndex), shard({B, 3}), "amax"}, kNo},
    {"aten::scatter.reduce", {constant(replicate({4, 3})), 0, shard({B, 3}, Fill::kIndex), constant(shard({B, 3}))}, kLocal, P(), {{"reduce", "add"}}},
    {"aten::scatter.reduce", {constant(replicate({4, 3})), 0, shard({B, 3}, Fill::kIndex), constant(shard({B, 3}))}, kNo, {}, {{"reduce", "multiply"}}},
    {"aten::scatter.src", {replicate({4, 3}), 0, shard({B, 3}, Fill::kIndex), shard({B, 3})}, kNo},
    {"aten::index_copy", {shard({B, 3}), 1, with_values({2, 0}), replicate({B, 2})}, kLocal, S(0)},
    {"aten::index_fill.int_Scalar", {shard({B, 3}), 1, index({2}), 1.0}, kLocal, S(0)},
    {"aten::index_fill.int_Tensor", {shard({B, 3}), 1, index({2}), replicate({})}, kLocal, S(0)},
    {"aten::diagonal_scatter", {shard({B, 3, 3}), replicate({B, 3}), 0, 1, 2}, kLocal, S(0)},
    {"aten::diagonal_scatter", {shard({3, 3, B}, 2), replicate({B, 3})}, kLocal, S(2)},
    {"aten::diagonal_scatter", {shard({B, B}), replicate({B})}, kNo},
    {"aten::index_reduce", {constant(shard({B, 3})), 1, with_values({0, 2}), constant(replicate({B, 2})), "amax"}, kLocal, S(0)},
    {"aten::index_reduce", {constant(shard({B, 3})), 0, with_values({0, 2}), constant(replicate({2, 3})), "amax"}, kNo},
    {"aten::masked_scatter", {shard({B, 3}), replicate({B, 3}, Fill::kBool), replicate({3 * B})}, kNo},  // a mask whose values are not known
    {"aten::masked_select", {shard({B, 3}), replicate({B, 3}, Fill::kBool)}, kNo},  // its value is not known here
    {"aten::take", {replicate({4}), shard({B, 2}, Fill::kIndex)}, kLocal, S(0)},
    {"aten::take", {shard({B, 2}), replicate({3}, Fill::kIndex)}, kNo},
    {"aten::select_scatter", {shard({B, 3}), replicate({B}), 1, 2}, kLocal, S(0)},
    {"aten::select_scatter", {replicate({3, B}), shard({B}), 0, 2}, kLocal, S(1)},
    {"aten::select_scatter", {shard({B, 3}), replicate({3}), 0, 2}, kNo},
    {"aten::select_scatter", {partial({3}), partial({}), 0, 2}, kLocal, P()},
    {"aten::slice_scatter", {shard({B, 3}), replicate({B, 2}), 1, 1, 3}, kLocal, S(0)},
    {"aten::slice_scatter", {shard({B, 3}), replicate({2, 3}), 0, 1, 3}, kNo},
    {"aten::slice_scatter", {partial({3}), partial({2}), 0, 1, 3}, kLocal, P()},
  });
}

// self[indices]
void by_indices(std::vector<Case>& cases) {
  const char* op = "aten::index.Tensor";
  const auto index = [](const Sizes& sizes) { return replicate(sizes, Fill::kIndex); };
  cases.insert(cases.end(), {
    {op, {shard({B, 3}), List{none(), index({4})}}, kLocal, S(0)},                                      // x[:, i]
    {op, {shard({3, B, 2}, 1), List{index({2, 2})}}, kLocal, S(2)},                                     // x[i]
    {op, {shard({3, 3, B}, 2), List{index({2}), index({4, 1})}}, kLocal, S(2)},                         // x[i, j]
    {op, {shard({3, B, 3, 2}, 1), List{index({4}), none(), index({4})}}, kLocal, S(1)},                 // x[i, :, j]
    {op, {shard({B, 3, 2, 3}), List{none(), index({4}), none(), index({4})}}, kLocal, S(1)},            // x[:, i, :, j]
    {op, {shard({B, 3, 4}), List{none(), mask({1, 0, 1})}}, kLocal, S(0)},                              // x[:, mask]
    {op, {shard({3, B, 2}, 1), List{mask({1, 0, 1})}}, kLocal, S(1)},
    {op, {replicate({3, 4}), List{shard({B, 2}, Fill::kIndex)}}, kLocal, S(0)},                         // table[i]
    {op, {replicate({2, 3, 4}), List{none(), shard({2, B}, 1, 1, 1, Fill::kIndex)}}, kLocal, S(2)},
    {op, {replicate({3, 3}), List{shard({B, 1}, Fill::kIndex), index({4})}}, kLocal, S(0)},
    {op, {replicate({3, 3}), List{shard({B}, Fill::kIndex), index({B})}}, kLocal, S(0)},
    {op, {replicate({3, 2, 3}), List{shard({B}, Fill::kIndex), none(), index({1})}}, kLocal, S(0)},
    {op, {shard({B, 3}), List{index({4})}}, kLocal, R(0)},                                              // rows, by where it points
    {op, {shard({B, 3}), List{with_values({3, 0, 3}), index({3})}}, kLocal, R(0)},
    {op, {shard({3, 2, B}, 2), List{index({4}), none(), with_values({4, 4, 0, 1})}}, kLocal, R(0)},
    {op, {shard({2, 2 * B}, 1, 1, 2), List{none(), with_values({9, 2, 3})}}, kLocal, R(1)},
    {op, {shard({B, 3}), List{with_values({2, 0}), index({1})}}, kLocal, R(0)},
    {op, {shard({B, 3}), List{with_values({-1, 0})}}, kNo},                                             // from the end
    {op, {shard({B, 3}), List{index({2, 2})}}, kNo},
    {op, {shard({B, 3}), List{with_values({0, 1, 2, 3, 4}), index({B})}}, kLocal, S(0)},                // x[arange(B), y]
    {op, {shard({B, 3}), List{none(), shard({B}, Fill::kIndex)}}, kNo},
    {op, {shard({B, 3}), List{mask({1, 0, 1, 0, 1})}}, kNo},
    {op, {replicate({B, 3}), List{shard({B}, Fill::kBool)}}, kNo},
    {op, {partial({3}), List{index({2})}}, kLocal, P()},
  });
  const char* put = "aten::index_put";
  cases.insert(cases.end(), {
    {put, {shard({B, 3}), List{none(), with_values({2, 0})}, replicate({B, 2})}, kLocal, S(0)},
    {put, {shard({B, 3}), List{none(), with_values({2, 0})}, shard({B, 1})}, kLocal, S(0)},
    {put, {shard({B, 3}), List{none(), with_values({2, 0})}, replicate({})}, kLocal, S(0)},
    {put, {shard({B, 3}), List{none(), with_values({0, 0})}, replicate({2}), true}, kLocal, S(0)},
    {put, {shard({3, B}, 1), List{with_values({2, 0})}, replicate({2, B})}, kLocal, S(1)},
    {put, {shard({B, 3}), List{none(), mask({1, 0, 1})}, replicate({B, 2})}, kLocal, S(0)},
    {put, {shard({B, 3}), List{mask({1, 0, 1, 0, 1})}, replicate({})}, kLocal, S(0)},                   // x[mask] = 0
    {put, {shard({B, 3}), List{mask({1, 0, 1, 0, 1})}, replicate({3})}, kLocal, S(0)},
    {put, {shard({B, 3}), List{shard({B, 3}, Fill::kBool)}, replicate({})}, kLocal, S(0)},
    {put, {shard({3, B}, 1), List{shard({3, B}, 1, 1, 1, Fill::kBool)}, replicate({})}, kLocal, S(1)},
    {put, {shard({3, B, 2}, 1), List{none(), mask({1, 0, 1, 0, 1})}, replicate({2})}, kLocal, S(1)},
    {put, {shard({B, 3}), List{mask({1, 0, 1, 0, 1})}, replicate({3, 3})}, kNo},                        // a value for each place
    {put, {shard({B, 3}), List{mask({1, 0, 1, 0, 1})}, replicate({1, 3})}, kNo},
    {put, {shard({B, 3}), List{mask({1, 0, 1, 0, 1}), with_values({0, 1, 2})}, replicate({})}, kNo},
    {put, {shard({B, 3}), List{with_values({2, 0})}, replicate({2, 3})}, kLocal, S(0)},
    {put, {shard({B, 3}), List{with_values({2, 0, 2}), index({3})}, replicate({3}), true}, kLocal, S(0)},
    {put, {shard({B, 3}), List{with_values({3, 1})}, replicate({}), true}, kLocal, S(0)},
    {put, {shard({B, 3}), List{shard({B}, Fill::kIndex)}, shard({B, 3}), true}, kNo},
    {put, {replicate({4, 3}), List{shard({B}, Fill::kIndex)}, shard({B, 3}), true}, kLocal, P()},
    {put, {replicate({4, 3}), List{shard({B}, Fill::kIndex)}, replicate({3}), true}, kLocal, P()},
    {put, {replicate({4, 3}), List{index({B}), index({B})}, shard({B}), true}, kLocal, P()},
    {put, {replicate({4, 3}), List{index({B, 1}), index({2})}, shard({B, 2}), true}, kLocal, P()},
    {put, {partial({2, 4, 3}), List{none(), shard({B}, Fill::kIndex)}, replicate({2, B, 3}), true}, kLocal, P()},
    {put, {replicate({4, 3}), List{shard({B}, Fill::kIndex)}, shard({B, 3})}, kNo},
    {put, {replicate({3, B}), List{with_values({2, 0})}, shard({2, B}, 1)}, kNo},
  });
}

void searches(std::vector<Case>& cases) {
  cases.insert(cases.end(), {
    {"aten::bucketize.Tensor", {constant(shard({B, 3})), constant(replicate({4}, Fill::kSorted))}, kLocal, S(0)},
    {"aten::bucketize.Tensor", {constant(replicate({3})), constant(shard({B}, Fill::kSorted))}, kNo},
    {"aten::searchsorted.Tensor", {constant(replicate({4}, Fill::kSorted)), constant(shard({3, B}, 1))}, kLocal, S(1)},
    {"aten::searchsorted.Tensor", {constant(shard({B, 4}, Fill::kSorted)), constant(replicate({B, 3}))}, kLocal, S(0)},
    {"aten::searchsorted.Tensor", {constant(shard({2, B}, 1, 1, 1, Fill::kSorted)), constant(shard({2, B}, 1))}, kNo},
    {"aten::isin.Tensor_Tensor", {shard({B, 3}, Fill::kIndex), with_values({0, 2})}, kLocal, S(0)},
    {"aten::isin.Tensor_Tensor", {replicate({3}, Fill::kIndex), shard({B}, Fill::kIndex)}, kNo},
  });
}

}  // namespace

std::vector<Case> indexing_cases() {
  std::vector<Case> cases;
  by_dimension(cases);
  by_indices(cases);
  searches(cases);
  return cases;
}

}  // namespace koila::cases
