// Recurrent layers and cells: every sequence by itself. Packed sequences: packed.cc.
#include "torchglue/placement/operands.h"

namespace koila {
namespace {

Verdict layer(OpCall&);  // (input [T, N, F] or [N, T, F], hx [layers, N, H], params, ..., batch_first)
Verdict cell(OpCall&);   // (input [N, F], hx [N, H], weights, biases)

const RegisterRules kTable{
    {"aten::gru.input", layer, kRandom},
    {"aten::gru_cell", cell},
    {"aten::lstm.input", layer, kRandom},
    {"aten::lstm_cell", cell},
    {"aten::rnn_relu.input", layer, kRandom},
    {"aten::rnn_relu_cell", cell},
    {"aten::rnn_tanh.input", layer, kRandom},
    {"aten::rnn_tanh_cell", cell},
};

Verdict layer(OpCall& call) {
  const TensorSpec& input = call.tensor(0);
  const int64_t batch_dim = call.boolean(call.find("batch_first")) ? 0 : 1;
  const Placement p = call.first_split()->placement;
  if (!p.is_shard() || input.dim() != 3 || !others_replicate(call, {0, 1})) return Verdict::kNo;
  if (!call.require({0}, p.at(batch_dim))) return Verdict::kNo;
  for (ArgRef state : defined_operands(call, {1})) {
    if (!call.require(state, p.at(1))) return Verdict::kNo;
  }
  call.output(0, p.at(batch_dim));
  for (int i = 1; i < static_cast<int>(call.schema().returns().size()); ++i) call.output(i, p.at(1));
  return Verdict::kLocal;
}

Verdict cell(OpCall& call) {
  const Placement p = call.first_split()->placement;
  if (!p.is_shard() || p.dim != 0 || call.tensor(0).dim() != 2 || !others_replicate(call, {0, 1})) return Verdict::kNo;
  for (ArgRef ref : defined_operands(call, {0, 1})) {
    if (!call.require(ref, p)) return Verdict::kNo;
  }
  return local(call, p);
}

}  // namespace
}  // namespace koila
