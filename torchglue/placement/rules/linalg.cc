// Linear algebra of stacked matrices, and Fourier transforms: every matrix or signal by itself.
#include <algorithm>

#include "torchglue/placement/alignment.h"
#include "torchglue/placement/operands.h"

namespace koila {
namespace {

Verdict matrices(OpCall&);   // every tensor [..., m, n]; results begin with the same dimensions
Verdict solution(OpCall&);   // (A [..., n, n], B): B may be a stack of vectors
template <int Arg>
Verdict right_side(OpCall&); // the rows of one operand, argument `Arg`, beside matrices for all: `left` says on which side these stand
template <int... Trailing>
Verdict stacks(OpCall&);     // tensor arguments in turn, of which so many last dimensions are one item: results begin with the others
Verdict transform(OpCall&);  // linear, along `dim`
Verdict signals(OpCall&);    // (self [N, length], ..., window): one signal each

template <Verdict (*First)(OpCall&), Verdict (*Second)(OpCall&)>
Verdict either(OpCall& call) {
  const Verdict verdict = First(call);
  return verdict == Verdict::kNo ? Second(call) : verdict;
}

const RegisterRules kTable{
    {"aten::_linalg_det", matrices},
    {"aten::_linalg_eigh", matrices},
    {"aten::_linalg_slogdet", matrices},
    {"aten::_linalg_solve_ex", solution},
    {"aten::_linalg_svd", matrices},
    {"aten::cholesky_inverse", matrices},
    {"aten::cholesky_solve", matrices},
    {"aten::geqrf", matrices},
    {"aten::linalg_cholesky_ex", matrices},
    {"aten::linalg_eig", matrices},
    {"aten::linalg_householder_product", stacks<2, 1>},
    {"aten::linalg_inv_ex", matrices},
    {"aten::linalg_ldl_factor_ex", matrices},
    {"aten::linalg_ldl_solve", stacks<2, 1, 2>},
    {"aten::linalg_lu", matrices},
    {"aten::linalg_lu_factor_ex", matrices},
    {"aten::linalg_lu_solve", either<right_side<2>, stacks<2, 1, 2>>},
    {"aten::linalg_matrix_exp", matrices},
    {"aten::linalg_pinv", stacks<2, 0, 0>},
    {"aten::linalg_qr", matrices},
    {"aten::linalg_solve_triangular", either<right_side<1>, matrices>},
    {"aten::lu_unpack", stacks<2, 1>},
    {"aten::ormqr", either<right_side<2>, stacks<2, 1, 2>>},
    {"aten::triangular_solve", matrices},

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

// The outputs, but for those that were not asked for: these are empty.
Verdict outputs(OpCall& call, const std::optional<Placement>& out) {
  if (!out) return Verdict::kNo;
  local(call, *out);
  const auto without = [&](const char* flag, std::initializer_list<int> numbers) {
    if (call.boolean(call.find(flag), true)) return;
    for (int i : numbers) call.output(i, Placement::replicate());
  };
  const std::string& name = call.schema().name();
  without("compute_v", {1});
  without("compute_uv", {0, 2});
  without("unpack_pivots", {0});
  without("unpack_data", {1, 2});
  if (name == "aten::linalg_lu") without("pivot", {0});
  if (const int mode = call.find("mode"); !call.none(mode) && call.args()[mode].value.toStringRef() == "r") call.output(0, Placement::replicate());
  return Verdict::kLocal;
}

Verdict matrices(OpCall& call) { return outputs(call, align(call, defined_operands(call), /*trailing=*/2)); }

template <int... Trailing>
Verdict stacks(OpCall& call) {
  c10::SmallVector<Stacked, 4> operands;
  int arg = 0;
  for (int trailing : {Trailing...}) {
    while (arg < static_cast<int>(call.args().size()) && !call.args()[arg].is_tensor) ++arg;
    if (call.tensor(arg).defined) operands.push_back({{arg}, trailing});
    ++arg;
  }
  return outputs(call, align_stacks(call, operands));
}

template <int Arg>
Verdict right_side(OpCall& call) {
  const TensorSpec& b = call.tensor(Arg);
  if (!b.placement.is_shard() || !others_replicate(call, {Arg})) return Verdict::kNo;
  for (ArgRef ref : defined_operands(call)) {
    if (ref.arg != Arg && spec(call, ref).dim() > 2) return Verdict::kNo;
  }
  const int64_t free = call.boolean(call.find("left"), true) ? b.dim() - 1 : b.dim() - 2;
  return b.placement.dim == free ? local(call, b.placement) : Verdict::kNo;
}

// Whether B is a stack of vectors is told by its shape: B has A's but for the last dimension, or is one vector. A matrix B for all rows could
// come to look like a stack of vectors beside fewer of them.
Verdict solution(OpCall& call) {
  const TensorSpec &a = call.tensor(0), &b = call.tensor(1);
  if (b.placement.is_shard() && !a.placement.is_shard()) {  // it also gives A's factors, of which one for all rows is none's part
    const int64_t dim = a.dim() - b.dim() + b.placement.dim;
    if (a.dim() != b.dim() || a.sizes[dim] == 1) return Verdict::kNo;
  }
  const bool stack = b.dim() == a.dim() - 1 && std::equal(b.sizes.begin(), b.sizes.end(), a.sizes.begin());
  if (b.dim() == a.dim() - 1 && !stack && b.dim() > 1) return Verdict::kNo;
  return outputs(call, align_stacks(call, {{{0}, 2}, {{1}, stack || b.dim() == 1 ? 1 : 2}}));
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
