#include "tests/placement/cases.h"

namespace koila::cases {

namespace {

void products(std::vector<Case>& cases) {
  cases.insert(cases.end(), {
    {"aten::mm", {shard({B, 3}), replicate({3, 4})}, kLocal, S(0)},
    {"aten::mm", {shard({6 * B, 3}, 0, 2, 3), replicate({3, 4})}, kLocal, S(0, 2, 3)},
    {"aten::mm", {replicate({4, 3}), shard({3, B}, 1)}, kLocal, S(1)},
    {"aten::mm", {shard({3, B}, 1), shard({B, 4})}, kLocal, P()},           // x.T @ y
    {"aten::mm", {shard({3, B}, 1), replicate({B, 4})}, kLocal, P()},
    {"aten::mm", {shard({3, 2 * B}, 1, 2), shard({2 * B, 4}, 0, 1, 2)}, kNo},
    {"aten::mm", {shard({B, 3}), shard({3, B}, 1)}, kNo},                   // x @ y.T mixes rows
    {"aten::mm", {partial({2, 3}), replicate({3, 4})}, kLocal, P()},
    {"aten::mm", {partial({2, 3}), partial({3, 4})}, kNo},
    {"aten::mm", {partial({2, 3}), shard({3, B}, 1)}, kNo},
    {"aten::bmm", {shard({B, 2, 3}), shard({B, 3, 4})}, kLocal, S(0)},
    {"aten::bmm", {shard({2 * B, 2, 3}, 0, 1, 2), replicate({2 * B, 3, 4})}, kLocal, S(0, 1, 2)},
    {"aten::bmm", {shard({2, B, 3}, 1), replicate({2, 3, 4})}, kLocal, S(1)},
    {"aten::bmm", {shard({2, 3, B}, 2), shard({2, B, 4}, 1)}, kLocal, P()},
    {"aten::bmm", {shard({B, B, B}), shard({B, B, B}, 1)}, kNo},
    {"aten::mv", {shard({B, 3}), replicate({3})}, kLocal, S(0)},
    {"aten::mv", {shard({3, B}, 1), shard({B})}, kLocal, P()},
    {"aten::dot", {shard({B}), replicate({B})}, kLocal, P()},
    {"aten::dot", {partial({3}), replicate({3})}, kLocal, P()},
    {"aten::vdot", {shard({B}), shard({B})}, kLocal, P()},
    {"aten::outer", {shard({B}), replicate({3})}, kLocal, S(0)},
    {"aten::outer", {replicate({3}), shard({B})}, kLocal, S(1)},
    {"aten::outer", {shard({B}), shard({B})}, kNo},

    {"aten::addmm", {replicate({4}), shard({B, 3}), replicate({3, 4})}, kLocal, S(0), {{"beta", 0.5}, {"alpha", 2.0}}},
    {"aten::addmm", {replicate({B, 4}), shard({B, 3}), replicate({3, 4})}, kLocal, S(0)},
    {"aten::addmm", {shard({B, 4}), shard({B, 3}), replicate({3, 4})}, kLocal, S(0)},
    {"aten::addmm", {replicate({4}), shard({3, B}, 1), shard({B, 4})}, kLocal, P(), {{"beta", 0.5}, {"alpha", 2.0}}},
    {"aten::addmm", {partial({3, 4}), shard({3, B}, 1), shard({B, 4})}, kLocal, P()},
    {"aten::addmm", {replicate({4}), partial({2, 3}), replicate({3, 4})}, kLocal, P()},
    {"aten::addmm", {partial({4}), shard({B, 3}), replicate({3, 4})}, kNo},
    {"aten::addmm", {shard({B}), shard({B, 3}), replicate({3, B})}, kNo},
    {"aten::addmv", {replicate({B}), shard({B, 3}), replicate({3})}, kLocal, S(0)},
    {"aten::addmv", {replicate({3}), shard({3, B}, 1), replicate({B})}, kLocal, P()},
    {"aten::addr", {replicate({B, 3}), shard({B}), replicate({3})}, kLocal, S(0)},
    {"aten::baddbmm", {replicate({B, 2, 4}), shard({B, 2, 3}), shard({B, 3, 4})}, kLocal, S(0), {{"beta", 0.5}, {"alpha", 2.0}}},
    {"aten::baddbmm", {replicate({2, 4}), shard({B, 2, 3}), shard({B, 3, 4})}, kLocal, S(0)},
    {"aten::baddbmm", {replicate({1, 2, 4}), shard({B, 2, 3}), shard({B, 3, 4})}, kLocal, S(0)},
    {"aten::addbmm", {replicate({2, 4}), shard({B, 2, 3}), shard({B, 3, 4})}, kLocal, P(), {{"beta", 0.5}, {"alpha", 2.0}}},
    {"aten::addbmm", {replicate({B, 4}), shard({2, B, 3}, 1), replicate({2, 3, 4})}, kLocal, S(0)},

    {"aten::linear", {shard({B, 3}), replicate({4, 3}), replicate({4})}, kLocal, S(0)},
    {"aten::linear", {shard({2, B, 3}, 1), replicate({4, 3})}, kLocal, S(1)},
    {"aten::linear", {shard({6 * B, 3}, 0, 3, 2), replicate({4, 3}), replicate({4})}, kLocal, S(0, 3, 2)},
    {"aten::linear", {partial({2, 3}), replicate({4, 3}), replicate({4})}, kLocal, P()},
    {"aten::linear", {shard({3, B}, 1), replicate({4, B})}, kNo},
    {"aten::linear", {shard({B, 3}), shard({B, 3})}, kNo},
    {"aten::bilinear", {shard({2, B, 3}, 1), shard({2, B, 4}, 1), replicate({2, 3, 4}), replicate({2})}, kLocal, S(1)},
    {"aten::bilinear", {shard({B, 3}), replicate({B, 4}), replicate({2, 3, 4})}, kLocal, S(0)},
  });
}

void matmuls(std::vector<Case>& cases) {
  const char* op = "aten::matmul";
  cases.insert(cases.end(), {
    {op, {shard({B}), shard({B})}, kLocal, P()},
    {op, {shard({B}), replicate({B, 3})}, kLocal, P()},
    {op, {replicate({3}), shard({B, 3, 4})}, kLocal, S(0)},
    {op, {replicate({3}), shard({3, B}, 1)}, kLocal, S(0)},
    {op, {shard({B, 3}), replicate({3})}, kLocal, S(0)},
    {op, {shard({2, B, 3}, 1), replicate({3})}, kLocal, S(1)},
    {op, {shard({B, 3}), replicate({3, 4})}, kLocal, S(0)},
    {op, {shard({B, 2, 3}), replicate({3, 4})}, kLocal, S(0)},
    {op, {shard({2, B, 3}, 1), replicate({3, 4})}, kLocal, S(1)},
    {op, {shard({2, B, 3}, 1), replicate({2, 3, 4})}, kLocal, S(1)},
    {op, {replicate({2, 3}), shard({B, 3, 4})}, kLocal, S(0)},
    {op, {replicate({B, 2, 3}), shard({B, 3, 4})}, kLocal, S(0)},
    {op, {shard({B, 2, 3, 4}), shard({B, 2, 4, 3})}, kLocal, S(0)},
    {op, {shard({B, 1, 3, 4}), replicate({2, 4, 3})}, kLocal, S(0)},
    {op, {shard({B, 3, 4}), replicate({2, 1, 4, 3})}, kLocal, S(1)},
    {op, {shard({2 * B, 3, 4}, 0, 2, 1), shard({2 * B, 4, 3}, 0, 2, 1)}, kLocal, S(0, 2)},
    {op, {shard({2, 3, B}, 2), shard({B, 4})}, kLocal, P()},
    {op, {shard({2, 3, B}, 2), replicate({2, B, 4})}, kLocal, P()},
    {op, {replicate({2, 3, 4}), shard({4, B}, 1)}, kLocal, S(2)},
    {op, {partial({2, 3}), replicate({B, 3, 4})}, kLocal, P()},
    {op, {shard({B, 3}), shard({3, B}, 1)}, kNo},
    {op, {shard({B, B, B}), shard({B, B, B}, 1)}, kNo},
    {op, {shard({B, B}), shard({B, B, B})}, kNo},
  });
  // As einsum says it.
  cases.insert(cases.end(), {
    {"aten::einsum", {"bij,bjk->bik", List{shard({B, 2, 3}), replicate({B, 3, 4})}}, kLocal, S(0)},
    {"aten::einsum", {"bhqd, bhkd -> bhqk", List{shard({B, 2, 3, 4}), shard({B, 2, 3, 4})}}, kLocal, S(0)},
    {"aten::einsum", {"tbd,de->bte", List{shard({3, B, 2}, 1), replicate({2, 4})}}, kLocal, S(0)},
    {"aten::einsum", {"bi,bj->ij", List{shard({B, 2}), shard({B, 3})}}, kLocal, P()},
    {"aten::einsum", {"bi,bi->", List{shard({B, 2}), replicate({1, 2})}}, kLocal, P()},
    {"aten::einsum", {"...ij,...jk->...ik", List{shard({B, 2, 3}), replicate({2, 1, 3, 4})}}, kLocal, S(1)},
    {"aten::einsum", {"...i->...", List{shard({2, B, 3}, 1)}}, kLocal, S(1)},
    {"aten::einsum", {"b...->...", List{shard({B, 2, 3})}}, kLocal, P()},
    {"aten::einsum", {"bi,bi,b->b", List{shard({B, 2}), replicate({B, 2}), replicate({B})}}, kLocal, S(0)},
    {"aten::einsum", {"ij,jk->ik", List{partial({2, 3}), replicate({3, 4})}}, kLocal, P()},
    {"aten::einsum", {"bb->b", List{shard({B, B})}}, kNo},
    {"aten::einsum", {"ij,kj->ik", List{shard({B, 3}), shard({B, 3})}}, kNo},
    {"aten::einsum", {"bi,bj", List{shard({B, 2}), shard({B, 3})}}, kNo},
    {"aten::tensordot", {shard({2, B, 3}, 1), replicate({3, 4}), ints({2}), ints({0})}, kLocal, S(1)},
    {"aten::tensordot", {shard({B, 3}), shard({B, 4}), ints({0}), ints({0})}, kLocal, P()},
    {"aten::tensordot", {replicate({3, 4}), shard({2, 3, B}, 2), ints({-2}), ints({1})}, kLocal, S(2)},
    {"aten::tensordot", {shard({B, 3}), shard({B, 3}), ints({1}), ints({1})}, kNo},
  });
}

void linear_algebra(std::vector<Case>& cases) {
  for (const char* op : {"aten::_linalg_det", "aten::_linalg_slogdet", "aten::linalg_inv_ex", "aten::linalg_matrix_exp", "aten::linalg_qr"}) {
    cases.insert(cases.end(), {
      {op, {shard({B, 3, 3})}, kLocal, S(0)},
      {op, {shard({2, B, 3, 3}, 1)}, kLocal, S(1)},
      {op, {shard({3, B, B}, 1)}, kNo},
      {op, {partial({3, 3})}, kNo},
    });
  }
  cases.insert(cases.end(), {
    {"aten::linalg_qr", {constant(shard({B, 3, 2})), "r"}, kLocal},
    {"aten::_linalg_eigh", {constant(shard({B, 3, 3}))}, kLocal, S(0)},
    {"aten::_linalg_eigh", {constant(shard({B, 3, 3})), "L", false}, kLocal, S(0)},
    {"aten::linalg_cholesky_ex", {constant(shard({B, 2, 2}, Fill::kPositive))}, kLocal, S(0)},
    {"aten::_linalg_solve_ex", {shard({B, 3, 3}), replicate({B, 3, 2})}, kLocal, S(0)},
    {"aten::_linalg_solve_ex", {shard({B, 3, 3}), replicate({B, 3})}, kLocal, S(0)},  // a stack of vectors
    {"aten::_linalg_solve_ex", {shard({B, 3, 3}), replicate({3})}, kLocal, S(0)},     // one vector
    {"aten::_linalg_solve_ex", {shard({B, 3, 3}), replicate({3, 3})}, kNo},           // a matrix, and with three rows a stack of vectors
    {"aten::_linalg_solve_ex", {replicate({3, 3}), shard({B, 3, 2})}, kNo},
    {"aten::_linalg_solve_ex", {replicate({B, 3, 3}), shard({B, 3, 2})}, kLocal, S(0)},
    {"aten::_linalg_svd", {constant(shard({B, 3, 2}))}, kLocal, S(0)},
    {"aten::_linalg_svd", {constant(shard({2, B, 3, 2}, 1)), false, false}, kLocal},
    {"aten::_linalg_svd", {constant(shard({3, B}, 1))}, kNo},
    {"aten::cholesky_inverse", {constant(shard({B, 2, 2}, Fill::kPositive))}, kLocal, S(0)},
    {"aten::geqrf", {constant(shard({B, 3, 2}))}, kLocal, S(0)},
    {"aten::linalg_eig", {constant(shard({B, 3, 3}))}, kLocal, S(0)},
    {"aten::linalg_householder_product", {shard({B, 3, 2}), replicate({B, 2})}, kLocal, S(0)},
    {"aten::linalg_householder_product", {constant(replicate({B, B})), constant(shard({B}))}, kNo},
    {"aten::linalg_ldl_factor_ex", {constant(shard({B, 2, 2}, Fill::kPositive))}, kLocal, S(0)},
    {"aten::linalg_ldl_solve", {constant(shard({B, 1, 1}, Fill::kPositive)), as(mask({1, 1, 1, 1, 1}, {B, 1}), c10::ScalarType::Int), constant(shard({B, 1, 3}))}, kLocal, S(0)},
    {"aten::linalg_lu", {shard({B, 3, 3})}, kLocal, S(0)},
    {"aten::linalg_lu_factor_ex", {shard({B, 3, 3})}, kLocal, S(0)},
    {"aten::linalg_solve_triangular", {replicate({3, 3}, Fill::kPositive), shard({B, 3})}, kLocal, S(0), {{"upper", true}, {"left", false}}},
    {"aten::linalg_solve_triangular", {replicate({B, B}, Fill::kPositive), shard({B, 3})}, kNo, {}, {{"upper", true}}},
    {"aten::lu_unpack", {constant(shard({B, 3, 3})), as(replicate({B, 3}, Fill::kLabel), c10::ScalarType::Int), false}, kLocal, S(0)},
    {"aten::lu_unpack", {shard({B, 3, 3}), as(replicate({B, 3}, Fill::kLabel), c10::ScalarType::Int), true, false}, kLocal},
    {"aten::linalg_lu_solve", {shard({B, 3, 3}, Fill::kPositive), as(replicate({B, 3}, Fill::kLabel), c10::ScalarType::Int), replicate({3, 2})}, kLocal, S(0)},
    {"aten::linalg_pinv", {shard({B, 3, 2}), 0.01}, kLocal, S(0)},
    {"aten::linalg_pinv.atol_rtol_float", {shard({B, 3, 2})}, kLocal, S(0), {{"atol", 0.01}, {"rtol", 0.01}}},
    {"aten::linalg_pinv.atol_rtol_tensor", {shard({B, 3, 2})}, kLocal, S(0), {{"atol", constant(replicate({B}, Fill::kUnit))}, {"rtol", constant(replicate({}, Fill::kUnit))}}},
    {"aten::linalg_pinv.rcond_tensor", {shard({B, 3, 2}), constant(replicate({B}, Fill::kUnit))}, kLocal, S(0)},
    {"aten::ormqr", {constant(shard({B, 3, 3})), constant(replicate({B, 3})), constant(replicate({B, 3, 2}))}, kLocal, S(0)},
    {"aten::triangular_solve", {constant(shard({B, 3, 2})), constant(replicate({3, 3}, Fill::kPositive))}, kLocal, S(0)},
    {"aten::cholesky_solve", {shard({B, 3, 2}), replicate({1, 3, 3}, Fill::kPositive)}, kLocal, S(0)},
    {"aten::linalg_solve_triangular", {shard({B, 3, 3}, Fill::kPositive), replicate({B, 3, 2})}, kLocal, S(0), {{"upper", true}}},
    {"aten::_fft_r2c", {shard({B, 4}), ints({1}), 0, true}, kLocal, S(0)},
    {"aten::_fft_r2c", {shard({4, B}, 1), ints({0}), 0, true}, kLocal, S(1)},
    {"aten::_fft_r2c", {shard({B, 4}), ints({-2, -1}), 0, true}, kNo},
    {"aten::_fft_r2c", {partial({4}), ints({0}), 0, true}, kLocal, P()},
    {"aten::_fft_c2r", {as(shard({B, 3}), c10::ScalarType::ComplexDouble), ints({1}), 0, 4}, kLocal, S(0)},
    {"aten::_fft_c2c", {as(shard({2, B, 3}, 1), c10::ScalarType::ComplexDouble), ints({0, 2}), 0, true}, kLocal, S(1)},
    {"aten::fft_rfft", {shard({B, 4})}, kLocal, S(0)},
    {"aten::fft_fft", {shard({B, 4}), 5}, kLocal, S(0)},
    {"aten::fft_ifft", {as(shard({B, 3}), c10::ScalarType::ComplexDouble)}, kLocal, S(0)},
    {"aten::fft_ihfft", {shard({B, 4})}, kLocal, S(0)},
    {"aten::fft_rfft2", {shard({B, 2, 4})}, kLocal, S(0)},
    {"aten::fft_irfft2", {as(shard({B, 2, 3}), c10::ScalarType::ComplexDouble)}, kLocal, S(0)},
    {"aten::fft_fftn", {shard({B, 2, 4}), std::monostate{}, ints({1, 2})}, kLocal, S(0)},
    {"aten::fft_ifftn", {as(shard({B, 2, 3}), c10::ScalarType::ComplexDouble), std::monostate{}, ints({2})}, kLocal, S(0)},
    {"aten::fft_irfftn", {as(shard({B, 2, 3}), c10::ScalarType::ComplexDouble), std::monostate{}, ints({1, 2})}, kLocal, S(0)},
    {"aten::fft_ifftshift", {shard({B, 4}), ints({1})}, kLocal, S(0)},
    {"aten::fft_rfft", {shard({4, B}, 1)}, kNo},
    {"aten::fft_irfft", {as(shard({B, 3}), c10::ScalarType::ComplexDouble), 5}, kLocal, S(0)},
    {"aten::fft_ifft2", {as(shard({B, 2, 3}), c10::ScalarType::ComplexDouble)}, kLocal, S(0)},
    {"aten::fft_fft2", {shard({B, 2, 3})}, kLocal, S(0)},
    {"aten::fft_fft2", {shard({2, B, 3}, 1)}, kNo},
    {"aten::fft_rfftn", {shard({B, 2, 3})}, kNo},
    {"aten::fft_rfftn", {shard({B, 2, 3}), std::monostate{}, ints({1, 2})}, kLocal, S(0)},
    {"aten::fft_fftshift", {shard({B, 4}), ints({1})}, kLocal, S(0)},
    {"aten::fft_fftshift", {shard({B, 4})}, kNo},
    {"aten::fft_hfft", {as(partial({3}), c10::ScalarType::ComplexDouble)}, kLocal, P()},
    {"aten::stft", {shard({B, 16}), 4}, kLocal, S(0), {{"window", replicate({4})}, {"return_complex", true}}},
    {"aten::stft.center", {shard({B, 16}), 4}, kLocal, S(0), {{"return_complex", true}}},
    {"aten::stft", {shard({16 * B}, 0, 1, 16), 4}, kNo, {}, {{"return_complex", true}}},
    {"aten::istft", {as(shard({B, 3, 6}), c10::ScalarType::ComplexDouble), 4}, kLocal, S(0)},
  });
}

}  // namespace

std::vector<Case> matrix_cases() {
  std::vector<Case> cases;
  products(cases);
  matmuls(cases);
  linear_algebra(cases);
  return cases;
}

}  // namespace koila::cases
