// One line that says which dimension of a step's tensors is the batch:
//
//     auto [x, y] = koila::lazy(std::array{batch.data, batch.target});
//     loss(model->forward(x), y).backward();
//
// What is computed from them from here on is lazy: the first rows run alongside the program, the others when a value is read or backward() is called, as
// many at a time as the memory that is available holds by what the first have taken. Nothing has to run out of memory for that, and nothing is guessed. The
// numbers are those of the full batch, to rounding, as everywhere in koila; which dimension is named decides about memory and speed alone, never about a
// result. A dimension along which the model cannot be split runs whole.
//
// Named are the tensors that a step begins with, where they are when it begins (after a .to(device)), before anything reads them; those named before
// the first is read are of one step. Labels need no name: what meets split rows is cut as they are, and naming them does no harm. A tensor that is named twice
// before it is read is what the last name says; one that no operator reads, and one that is split already, are as if they had not been named. One that needs a gradient
// gets it, put together from the rows; one that the step has computed is split from there on, and what it was computed from has run whole.
//
// A step that is split cannot do everything: create_graph=True, a hook or retain_grad() on a tensor inside it, and inputs that change before backward() are
// refused with a c10::OutOfMemoryError that says so, though there may have been room (docs/limits.md); dropout draws other masks. What it computes has no memory
// before it is read: item(), cpu(), copy_() and every operator that needs the value give it one, data_ptr() and accessor() raise an error that says so.
//
// Later steps that begin with a like call (the operator, the shapes) are sized by what was measured, and run whole, as if there were no koila, when all of
// it fits. Those that are not named are treated like them.
//
// Does nothing: in a process without koila (where it warns, once), under KOILA_MODE=off and track, and for an accelerator other than CUDA; for CPU tensors without a
// budget, as nobody knows what is available, unless LazyOptions::micro_batch says how many rows; for a tensor of one row or none, a sparse or nested one; inside functorch
// transforms, backward passes and CUDA graph captures; and on a thread while koila
// follows the steps of another, where it warns, once.
//
// Misuse throws c10::ValueError or c10::IndexError, with koila and without, with a sentence that says what was expected.
//
// C++17; header-only over LibTorch 2.11 or newer on Linux, nothing to link but torch and libdl: koila's operator koila::lazy is called where koila is preloaded or
// linked. Python has it as torch.ops.koila.lazy(x, dim=0, micro_batch=0).
#ifndef KOILA_LAZY_H_
#define KOILA_LAZY_H_

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/Exception.h>
#include <dlfcn.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace koila {

// Written with names in C++20, `{.dim = 1}`, or in a chain: `LazyOptions().with_dim(1)`.
struct LazyOptions {
  // The dimension that is the batch; negative ones count from the last.
  std::int64_t dim = 0;
  // Rows at a time; 0: as many as fit. Any number will do, powers of two or not; fewer are taken where these do not fit.
  std::int64_t micro_batch = 0;

  LazyOptions with_dim(std::int64_t dimension) const {
    LazyOptions changed = *this;
    changed.dim = dimension;
    return changed;
  }
  LazyOptions with_micro_batch(std::int64_t rows) const {
    LazyOptions changed = *this;
    changed.micro_batch = rows;
    return changed;
  }
};

namespace detail {

inline void check_lazy(const at::Tensor& x, const LazyOptions& options) {
  TORCH_CHECK_VALUE(x.defined(), "koila::lazy: the tensor is undefined; pass one that holds the rows of the batch");
  TORCH_CHECK_VALUE(x.dim() > 0, "koila::lazy: the tensor has no dimensions, and so no rows to split it by");
  TORCH_CHECK_INDEX(options.dim >= -x.dim() && options.dim < x.dim(), "koila::lazy: dimension ", options.dim, " of a tensor of shape ", x.sizes(),
                    "; it is from ", -x.dim(), " to ", x.dim() - 1);
  TORCH_CHECK_VALUE(options.micro_batch >= 0, "koila::lazy: LazyOptions::micro_batch is ", options.micro_batch,
                    "; it is a number of rows, or 0 for as many as fit");
}

inline void name_batch(const at::Tensor& x, const LazyOptions& options) {
  const auto op = c10::Dispatcher::singleton().findSchema({"koila::lazy", ""});
  if (op) {
    c10::Stack stack{x, options.dim, options.micro_batch};
    op->callBoxed(stack);
  } else if (dlsym(RTLD_DEFAULT, "koila_version") == nullptr) {  // else koila has said why it stays out
    TORCH_WARN_ONCE("koila::lazy: koila is not in this process, and the step runs whole: start the program with LD_PRELOAD=libkoila.so, or by `koila run`.");
  }
}

template <class Tensors>
Tensors lazy_all(Tensors tensors, const LazyOptions& options) {
  for (const at::Tensor& x : tensors) {
    check_lazy(x, options);
    const at::Tensor& first = *tensors.begin();
    TORCH_CHECK_VALUE(x.size(options.dim) == first.size(options.dim), "koila::lazy: the tensors of one step have as many rows, and dimension ", options.dim,
                      " of these has ", first.size(options.dim), " in the first and ", x.size(options.dim), " in another");
  }
  for (const at::Tensor& x : tensors) name_batch(x, options);
  return tensors;
}

}  // namespace detail

// Returns `x` itself, not a copy.
inline at::Tensor lazy(at::Tensor x, const LazyOptions& options) {
  detail::check_lazy(x, options);
  detail::name_batch(x, options);
  return x;
}
inline at::Tensor lazy(at::Tensor x, std::int64_t dim = 0) { return lazy(std::move(x), LazyOptions().with_dim(dim)); }

// Several tensors of one step, which have as many rows: koila::lazy(std::array{x, y}). Where their dimensions differ, each is named on its own.
template <std::size_t N>
std::array<at::Tensor, N> lazy(std::array<at::Tensor, N> tensors, const LazyOptions& options) {
  return detail::lazy_all(std::move(tensors), options);
}
template <std::size_t N>
std::array<at::Tensor, N> lazy(std::array<at::Tensor, N> tensors, std::int64_t dim = 0) {
  return lazy(std::move(tensors), LazyOptions().with_dim(dim));
}
inline std::vector<at::Tensor> lazy(std::vector<at::Tensor> tensors, const LazyOptions& options) { return detail::lazy_all(std::move(tensors), options); }
inline std::vector<at::Tensor> lazy(std::vector<at::Tensor> tensors, std::int64_t dim = 0) {
  return lazy(std::move(tensors), LazyOptions().with_dim(dim));
}

}  // namespace koila

#endif  // KOILA_LAZY_H_
