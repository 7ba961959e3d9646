// Packed sequences: pack_padded_sequence(), recurrent layers over what it gives, pad_packed_sequence(). See Note [Packed rows].
#include "torchglue/placement/packed_rows.h"

#include <algorithm>
#include <utility>

#include "torchglue/placement/by_index.h"
#include "torchglue/placement/operands.h"

namespace koila {
namespace {

Verdict pack(OpCall&);          // (input [T, N, *] or [N, T, *], lengths [N], batch_first) -> data, rows of each step
Verdict pad(OpCall&);           // (data, rows of each step [T], batch_first, padding_value, total_length) -> padded, lengths [N]
Verdict packed_layer(OpCall&);  // (data, rows of each step [T], hx [layers, N, H], params, ...) -> data, hx

const RegisterRules kTable{
    {"aten::_pack_padded_sequence", pack},
    {"aten::_pad_packed_sequence", pad},
    {"aten::gru.data", packed_layer, kRandom},
    {"aten::lstm.data", packed_layer, kRandom},
    {"aten::rnn_relu.data", packed_layer, kRandom},
    {"aten::rnn_tanh.data", packed_layer, kRandom},
};

const RegisterRagged kRagged{pack, packed_layer, pad};

Verdict pack(OpCall& call) {
  const Placement p = call.tensor(0).placement;
  if (!p.is_shard() || p.dim != (call.boolean(2) ? 0 : 1) || p.outer != 1 || p.inner != 1 || !call.tensor(1).placement.is_replicate()) return Verdict::kNo;
  const auto lengths = call.numbers_of({1});
  const auto places = places_of_rows(p, call.batch());
  if (!lengths || !places || !call.require({1}, p.at(0))) return Verdict::kNo;
  std::vector<int64_t> steps = rows_of_steps(*lengths);
  auto rows = packed_rows(steps, *places);
  if (!rows) return Verdict::kNo;
  call.output(0, Placement::shard(0, call.remember(std::move(*rows))));
  call.give_whole(1, std::move(steps));
  return Verdict::kLocal;
}

struct Packed {
  std::vector<int64_t> steps;   // how many rows each has
  std::vector<int64_t> places;  // of the rows in each step
};

// How many rows each step has, argument 1, where that goes with the data's split. A micro-batch has numbers of its own.
std::optional<Packed> take_packed(OpCall& call) {
  const Placement& p = call.tensor(0).placement;
  if (!p.is_shard() || p.dim != 0 || !p.ragged || !call.tensor(1).placement.is_replicate()) return std::nullopt;
  auto steps = call.numbers_of({1});
  auto places = places_in_steps(*p.ragged);
  const auto rows = steps ? packed_rows(*steps, places) : std::nullopt;
  if (!rows || rows->first != p.ragged->first || rows->order != p.ragged->order) return std::nullopt;
  call.count_steps({1}, p.ragged);
  return Packed{std::move(*steps), std::move(places)};
}

Verdict packed_layer(OpCall& call) {
  if (!others_replicate(call, {0, 2})) return Verdict::kNo;
  auto packed = take_packed(call);
  if (!packed) return Verdict::kNo;
  const Placement state = one_for_each_row(call, std::move(packed->places), 1);
  for (ArgRef ref : defined_operands(call, {2})) {
    const bool zeros = spec(call, ref).placement == Placement::shard(1) && call.is_constant(ref);
    if (!zeros && !call.require(ref, state)) return Verdict::kNo;
  }
  call.output(0, call.tensor(0).placement);
  for (int i = 1; i < static_cast<int>(call.schema().returns().size()); ++i) call.output(i, state);
  return Verdict::kLocal;
}

Verdict pad(OpCall& call) {
  auto packed = take_packed(call);
  if (!packed) return Verdict::kNo;
  const auto longest = static_cast<int64_t>(packed->steps.size());
  const int64_t asked = call.integer(4);
  if (asked > 0 && asked < longest) return Verdict::kNo;  // PyTorch's error
  call.set_argument(4, std::max(asked, longest));  // most micro-batches do not have the longest
  call.output(0, one_for_each_row(call, std::move(packed->places), call.boolean(2) ? 0 : 1));
  call.give_whole(1, steps_of_rows(packed->steps));
  return Verdict::kLocal;
}

}  // namespace
}  // namespace koila
