// How tensors of the full batch lie in memory, as far as a micro-batch and meta kernels show.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <cstdint>
#include <vector>

namespace koila {

struct Layout {
  std::vector<int64_t> sizes, strides;
  bool dense = false;
};

// Strides of a dense tensor of `sizes` whose dimensions lie in memory in the order that `local` shows. Where `local` leaves it open
// (a dimension of size 1), in the order of the dimensions.
std::vector<int64_t> dense_strides_like(const at::Tensor& local, at::IntArrayRef sizes);

// The results' layouts at the full batch, flat; empty when they cannot be known. Meta kernels may be written in Python, and cost a
// millisecond each.
std::vector<Layout> layouts_on_meta(const c10::OperatorHandle& op, at::ArrayRef<c10::IValue> arguments);

// Whether the operator may choose another order of dimensions for the full batch than for a micro-batch. All others keep one order for all sizes.
bool order_depends_on_sizes(const c10::OperatorHandle& op);

// Whether the full batch's result lies in memory as a meta kernel says of it, going by a micro-batch's result. A device may have another kernel than the meta
// device: scaled_dot_product_attention() has.
bool may_lie_as(const Layout& meta, const c10::OperatorHandle& op, const at::Tensor& local);

// A copy of `local` in the memory order of a dense tensor of `strides`, where lies_in_order() says that it lies otherwise; what has no dense memory stays. TensorIterator chooses the order by sizes
// where strides leave it open, so a micro-batch's result may lie otherwise than the full batch's; a view of the one is none of the other then.
at::Tensor in_order_of(at::IntArrayRef strides, const at::Tensor& local);
bool lies_in_order(at::IntArrayRef strides, const at::Tensor& local);

// Whether an operator says that its arguments' memory lies as it cannot work with. Parts of the rows may, where the full batch does not: a single row is dense, one of dimension 1 is not.
bool is_about_layout(const c10::Error& error);
// What a write in place to stack[0] reads of the same memory further on (`s[:, :-1] = s[:, 1:]`) becomes a copy. Of several rows PyTorch writes in the order of the memory, which gives the same; of one row
// alone it finds that the two overlap, and raises. Not of operators that save what they read.
void copy_what_lies_ahead(const c10::OperatorHandle& op, torch::jit::Stack& stack);

// Zeros of `sizes` that an operator takes for a part of a tensor of `strides`: dense in the same order, but for dimensions that are expanded there, which are here.
at::Tensor zeros_in_order(at::IntArrayRef sizes, at::IntArrayRef strides, const at::TensorOptions& options);

}  // namespace koila
