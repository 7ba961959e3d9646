// Linear algebra of stacked matrices, and Fourier transforms: every matrix or signal by itself.
#include <algorithm>

#include "torchglue/placement/alignment.h"
#include "torchglue/placement/operands.h"

namespace koila {
namespace {

Verdict matrices(OpCall&);   // every tensor [..., m, n]; results begin with the same dimensions
Verdict transform(OpCall&);  // linear, along `dim`
Verdict signals(OpCall&);    // (self [N, length], ..., window): one signal each

const RegisterRules kTable{
    {"aten::_linalg_det", matrices},
    {"aten::_linalg_eigh", matrices},
    {"aten::_linalg_slogdet", matrices},
    {"aten::_linalg_solve_ex", matrices},
    {"aten::cholesky_solve", matrices},
    {"aten::linalg_cholesky_ex", matrices},
    {"aten::linalg_inv_ex", matrices},
    {"aten::linalg_matrix_exp", matrices},
    {"aten::linalg_qr", matrices},
    {"aten::linalg_solve_triangular", matrices},

    {"aten::_fft_c2c", transform},
    {"aten::_fft_c2r", transform},
    {"aten::_fft_r2c", transform},
    {"aten::fft_fft", transform},
    {"aten::fft_fft2", transform},
    {"aten::fft_fftn", transform},
    {"aten::fft_fftshift", transform},
    {"aten::fft_hfft", transform},
    {"aten::fft_ifft", transform},
    {"aten::fft_ifft2", transform},
    {"aten::fft_ifftn", transform},
    {"aten::fft_ifftshift", transform},
    {"aten::fft_ihfft", transform},
    {"aten::fft_irfft", transform},
    {"aten::fft_irfft2", transform},
    {"aten::fft_irfftn", transform},
    {"aten::fft_rfft", transform},
    {"aten::fft_rfft2", transform},
    {"aten::fft_rfftn", transform},

    {"aten::istft", signals},
    {"aten::stft", signals},
};

Verdict matrices(OpCall& call) {
  const ArgRefs operands = defined_operands(call);
  // A right-hand side with a dimension less is a stack of vectors: it aligns in another way.
  const int64_t ndim = call.tensor(0).dim();
  if (std::any_of(operands.begin(), operands.end(), [&](ArgRef ref) { return spec(call, ref).dim() != ndim; })) return Verdict::kNo;
  // An output that was not asked for is empty, and no micro-batch's part of anything.
  const int mode = call.find("mode");
  if (!call.boolean(call.find("compute_v"), true) || (!call.none(mode) && call.args()[mode].value.toStringRef() == "r")) return Verdict::kNo;
  auto out = align(call, operands, /*trailing=*/2);
  return out ? local(call, *out) : Verdict::kNo;
}

Verdict transform(OpCall& call) {
  if (linear_in_first(call)) return local(call, Placement::partial());
  const TensorSpec& self = call.tensor(0);
  auto dims = call.integers(call.find("dim"));
  if (!self.placement.is_shard() || !dims) return Verdict::kNo;
  const bool mixes = std::any_of(dims->begin(), dims->end(), [&](int64_t d) { return wrap_dim(d, self.dim()) == self.placement.dim; });
  return mixes ? Verdict::kNo : local(call, self.placement);
}

Verdict signals(OpCall& call) {
  const TensorSpec& self = call.tensor(0);
  const int64_t stacked = call.schema().name() == "aten::stft" ? 2 : 3;
  if (!self.placement.is_shard() || self.placement.dim != 0 || self.dim() != stacked || !others_replicate(call, {0})) return Verdict::kNo;
  return local(call, self.placement);
}

}  // namespace
}  // namespace koila
