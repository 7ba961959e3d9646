// The cells of LSTM and GRU that on CUDA are one kernel each, and on the CPU none: in terms of other operators of the device.

#include <ATen/ATen.h>
#include <torch/library.h>

namespace sim {
namespace {

using at::Tensor;
using MaybeTensor = std::optional<Tensor>;

bool given(const MaybeTensor& tensor) { return tensor && tensor->defined(); }

Tensor with_bias(const Tensor& gates, const MaybeTensor& bias) { return given(bias) ? gates + *bias : gates; }

Tensor or_zeros(const MaybeTensor& tensor, const Tensor& like) { return given(tensor) ? *tensor : at::zeros_like(like); }

// The workspace holds what came out of the gates: i, f, g, o.
std::tuple<Tensor, Tensor, Tensor> lstm_cell(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& cx,
                                             const MaybeTensor& input_bias, const MaybeTensor& hidden_bias) {
  const auto gates = (with_bias(input_gates, input_bias) + with_bias(hidden_gates, hidden_bias)).unsafe_chunk(4, 1);
  const Tensor i = gates[0].sigmoid(), f = gates[1].sigmoid(), g = gates[2].tanh(), o = gates[3].sigmoid();
  Tensor cy = f * cx + i * g;
  Tensor hy = o * cy.tanh();
  return {hy, cy, at::cat({i, f, g, o}, 1)};
}

std::tuple<Tensor, Tensor, Tensor> lstm_cell_backward(const MaybeTensor& grad_hy, const MaybeTensor& grad_cy, const Tensor& cx,
                                                      const Tensor& cy, const Tensor& workspace, bool has_bias) {
  if (!given(grad_hy) && !given(grad_cy)) return {};
  const auto gates = workspace.unsafe_chunk(4, 1);
  const Tensor &i = gates[0], &f = gates[1], &g = gates[2], &o = gates[3];
  const Tensor hy = or_zeros(grad_hy, cy);
  const Tensor t = cy.tanh();
  const Tensor c = hy * o * (1 - t * t) + or_zeros(grad_cy, cy);
  Tensor grad_gates = at::cat({c * g * i * (1 - i), c * cx * f * (1 - f), c * i * (1 - g * g), hy * t * o * (1 - o)}, 1);
  Tensor grad_bias = has_bias ? grad_gates.sum(0) : Tensor();
  return {grad_gates, c * f, grad_bias};
}

// The workspace holds r, i, n, h, and the hidden part of n.
std::tuple<Tensor, Tensor> gru_cell(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& hx, const MaybeTensor& input_bias,
                                    const MaybeTensor& hidden_bias) {
  const auto in = with_bias(input_gates, input_bias).unsafe_chunk(3, 1);
  const auto hidden = with_bias(hidden_gates, hidden_bias).unsafe_chunk(3, 1);
  const Tensor r = (in[0] + hidden[0]).sigmoid(), i = (in[1] + hidden[1]).sigmoid(), n = (in[2] + r * hidden[2]).tanh();
  Tensor hy = (hx - n) * i + n;
  return {hy, at::cat({r, i, n, hx, hidden[2]}, 1)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_cell_backward(const Tensor& grad_hy, const Tensor& workspace, bool has_bias) {
  const auto kept = workspace.unsafe_chunk(5, 1);
  const Tensor &r = kept[0], &i = kept[1], &n = kept[2], &hx = kept[3], &hidden_n = kept[4];
  const Tensor grad_i = grad_hy * (hx - n) * i * (1 - i);
  const Tensor grad_n = grad_hy * (1 - i) * (1 - n * n);
  const Tensor grad_r = grad_n * hidden_n * r * (1 - r);
  Tensor grad_input = at::cat({grad_r, grad_i, grad_n}, 1);
  Tensor grad_hidden = at::cat({grad_r, grad_i, grad_n * r}, 1);
  if (!has_bias) return {grad_input, grad_hidden, grad_hy * i, Tensor(), Tensor()};
  return {grad_input, grad_hidden, grad_hy * i, grad_input.sum(0), grad_hidden.sum(0)};
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("_thnn_fused_lstm_cell", lstm_cell);
  m.impl("_thnn_fused_lstm_cell_backward_impl", lstm_cell_backward);
  m.impl("_thnn_fused_gru_cell", gru_cell);
  m.impl("_thnn_fused_gru_cell_backward", gru_cell_backward);
}

}  // namespace sim
