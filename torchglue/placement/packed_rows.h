// Rows of a packed sequence (torch.nn.utils.rnn.PackedSequence), and rows in another order.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "torchglue/placement/placement.h"

namespace koila {

// Note [Packed rows]
// The data [N, ...] of a packed sequence have the entries of its steps one after the other, and of each step those of the rows that go on, the longest first: place p of a step that has n rows
// is one's of the n longest. So a row owns an entry of each step that it has, which is a ragged split with an order. How many rows each step has goes with the data, as a tensor of its own, and
// a micro-batch, which is a packed sequence as well, has other numbers: they follow from the split (Placement::kSteps). The rows are sorted first, mostly (`enforce_sorted=False`):
// then a row's place is its own no more, and padded again they are brought back into their order. In between one entry belongs to each row, in another order than theirs: a ragged split, too.

// How many rows each step has, of rows that have so many steps, the most first; and back. They are each other's inverse.
std::vector<int64_t> rows_of_steps(const std::vector<int64_t>& lengths);
inline std::vector<int64_t> steps_of_rows(const std::vector<int64_t>& steps) { return rows_of_steps(steps); }

// The split of packed data whose steps have so many rows, and whose row r has place places[r] in each step. Nothing where the numbers are no packed sequence's of that many rows.
std::optional<Ragged> packed_rows(const std::vector<int64_t>& steps, const std::vector<int64_t>& places);
// Each row at its own: 0, 1, ...
std::vector<int64_t> places_in_order(int64_t rows);
// The places that its rows have, going by their first steps.
std::vector<int64_t> places_in_steps(const Ragged& data);

// How many rows each step has of rows [begin, end).
std::vector<int64_t> steps_of(const Ragged& data, int64_t begin, int64_t end);

// One entry for each row, row r's at places[r]. Without an order where that is r for all.
Ragged rows_at(std::vector<int64_t> places);
// The places of the rows in a split that has one entry for each; nothing where it has not.
std::optional<std::vector<int64_t>> places_of_rows(const Placement&, int64_t batch);
// Whether the numbers are those from 0 on, in any order.
bool is_order(const std::vector<int64_t>& numbers);

}  // namespace koila
