#include "torchglue/operators/saved.h"

#include <c10/util/flat_hash_map.h>

#include <string_view>

namespace koila {

namespace {

using Names = ska::flat_hash_set<std::string_view>;

}  // namespace

bool may_save_operands(const c10::FunctionSchema& schema) { return may_save_anything(schema); }

bool compares_what_it_saves(const c10::FunctionSchema& schema) {
  static const Names kCompare = {"aten::amax", "aten::amin", "aten::aminmax", "aten::linalg_norm", "aten::linalg_vector_norm", "aten::max", "aten::min", "aten::norm", "aten::renorm"};
  return kCompare.count(schema.name()) > 0;
}

bool may_save_anything(const c10::FunctionSchema& schema) {
  static const Names kSaveNone = {
      "aten::_conj", "aten::_fft_c2c", "aten::_fft_c2r", "aten::_fft_r2c", "aten::_to_copy", "aten::_unsafe_view", "aten::add", "aten::add_", "aten::adjoint", "aten::alias",
      "aten::broadcast_tensors", "aten::broadcast_to", "aten::cat", "aten::ceil", "aten::channel_shuffle", "aten::chunk", "aten::clone", "aten::column_stack", "aten::concat", "aten::concatenate",
      "aten::conj", "aten::constant_pad_nd", "aten::contiguous", "aten::copy_", "aten::cumsum", "aten::detach", "aten::diag_embed", "aten::diagonal", "aten::dsplit", "aten::dstack",
      "aten::expand", "aten::expand_as", "aten::fill_", "aten::flatten", "aten::flip", "aten::fliplr", "aten::flipud", "aten::floor", "aten::hsplit", "aten::hstack", "aten::im2col", "aten::imag", "aten::mH",
      "aten::mT", "aten::matrix_H", "aten::mean", "aten::moveaxis", "aten::movedim", "aten::narrow", "aten::narrow_copy", "aten::neg", "aten::neg_", "aten::numpy_T", "aten::permute", "aten::pixel_shuffle",
      "aten::pixel_unshuffle", "aten::positive", "aten::ravel", "aten::real", "aten::repeat", "aten::reshape", "aten::reshape_as", "aten::resolve_conj", "aten::resolve_neg", "aten::roll", "aten::rot90",
      "aten::round", "aten::row_stack", "aten::rsub", "aten::select", "aten::select_scatter", "aten::sign", "aten::slice", "aten::slice_scatter", "aten::split", "aten::split_with_sizes", "aten::squeeze",
      "aten::stack", "aten::sub", "aten::sub_", "aten::sum", "aten::swapaxes", "aten::swapdims", "aten::t", "aten::tensor_split", "aten::tile", "aten::to", "aten::transpose", "aten::tril",
      "aten::triu", "aten::trunc", "aten::type_as", "aten::unbind", "aten::unflatten", "aten::unfold", "aten::unsafe_chunk", "aten::unsafe_split", "aten::unsafe_split_with_sizes", "aten::unsqueeze",
      "aten::view", "aten::view_as", "aten::view_as_complex", "aten::view_as_real", "aten::vsplit", "aten::vstack", "aten::zero_"};
  return kSaveNone.count(schema.name()) == 0;
}

bool may_save_result(const c10::FunctionSchema& schema) {
  static const Names kSaveNone = {"aten::mul",       "aten::div",          "aten::mm",         "aten::bmm",                "aten::addmm",        "aten::matmul",
                                  "aten::linear",    "aten::conv1d",       "aten::conv2d",     "aten::conv3d",             "aten::nll_loss",     "aten::nll_loss_nd",
                                  "aten::embedding", "aten::mse_loss",     "aten::l1_loss",    "aten::cross_entropy_loss", "aten::huber_loss",   "aten::smooth_l1_loss",
                                  "aten::kl_div",    "aten::batch_norm",   "aten::layer_norm", "aten::nll_loss_forward",   "aten::nll_loss2d",   "aten::binary_cross_entropy",
                                  "aten::dropout",   "aten::binary_cross_entropy_with_logits"};
  return kSaveNone.count(schema.name()) == 0 && may_save_operands(schema);
}

}  // namespace koila
