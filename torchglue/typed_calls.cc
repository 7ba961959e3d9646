// The operators that training steps are made of, intercepted as they are called: with typed arguments.
//
// Note [Typed calls]
// The interceptor's fallback is called with a stack. That costs a call its boxing: a heap block, a count up and down for each tensor, which for one that only
// Python holds takes Python's lock twice, and lists made anew. While nothing runs out there is nothing to do with the stack. So these operators have kernels
// of their own on the interceptor's key, which look at their arguments where they are and go on below with them. What is not ordinary, and what runs out, is
// boxed after all. Which operators have one is a matter of speed alone.
#include <ATen/Operators.h>
#include <torch/library.h>

#include <array>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "torchglue/interceptor.h"
#include "torchglue/op_traits.h"
#include "torchglue/region/real_values.h"
#include "torchglue/rescue/eager.h"
#include "torchglue/step/offload.h"
#include "torchglue/oom/python_error.h"
#include "torchglue/base/tls.h"

namespace koila {

namespace {

// Values that hold tensors without counting them. What they are made of must live as long.
template <size_t kCount>
class Borrowed {
 public:
  template <class... A>
  explicit Borrowed(const A&... values) : values_{borrow(values)...} {}
  ~Borrowed() {
    for (c10::IValue& v : values_) {
      if (v.isTensor()) std::move(v).toTensor().unsafeReleaseTensorImpl();
    }
  }
  Borrowed(const Borrowed&) = delete;
  Borrowed& operator=(const Borrowed&) = delete;

  at::ArrayRef<c10::IValue> values() const { return values_; }

 private:
  static c10::IValue borrow(const at::Tensor& t) { return c10::IValue(c10::MaybeOwnedTraits<at::Tensor>::createBorrow(t)); }
  static c10::IValue borrow(const std::optional<at::Tensor>& t) { return t ? borrow(*t) : c10::IValue(); }
  template <class T>
  static c10::IValue borrow(const T& value) {
    return c10::IValue(value);
  }

  std::array<c10::IValue, kCount> values_;
};

template <class Op, class Schema>
struct Typed;

template <class Op, class Result, class... A>
struct Typed<Op, Result(A...)> {
  static_assert(std::is_same_v<std::decay_t<Result>, at::Tensor>);

  static Result call(c10::DispatchKeySet keys, A... arguments) {
    static const c10::OperatorHandle op = c10::Dispatcher::singleton().findSchemaOrThrow(Op::name, Op::overload_name);
    const Borrowed<sizeof...(A)> borrowed(arguments...);
    const OpTraits& traits = op_traits(op);
    if (!is_ordinary(keys, traits, borrowed.values())) {
      torch::jit::Stack stack;
      torch::jit::push(stack, arguments...);
      intercept(op, keys, &stack);
      return result_of(stack, arguments...);
    }
    OrdinaryCall call(op, traits, keys, borrowed.values());
    bool made_again = false;
    Result result = run(call, made_again, keys, arguments...);
    if (!made_again) call.came_through(Borrowed<1>(result).values());
    return result;
  }

 private:
  static Result run(OrdinaryCall& call, bool& made_again, c10::DispatchKeySet keys, A... arguments) {
    try {
      try {
        const Offload::MustNotFail must_not(call.must_not_fail());
        const RegionWork kernel(/*at_work=*/false);
        const NoInterceptGuard no_intercept;
        return Op::redispatch(keys & kBelowInterceptor, arguments...);
      } catch (const std::exception& error) {
        throw_if_ran_out_in_python(error);
        throw;
      }
    } catch (const std::exception& error) {
      made_again = true;
      torch::jit::Stack stack = call.make_up_for(error);
      return result_of(stack, arguments...);
    }
  }

  static Result result_of(torch::jit::Stack& stack, A... arguments) {
    if constexpr (std::is_reference_v<Result>) {
      return std::get<0>(std::forward_as_tuple(arguments...));  // what it has written to
    } else {
      return std::move(stack.back()).toTensor();
    }
  }
};

template <class Op>
void take_over(torch::Library& library) {
  const std::string overload = Op::overload_name;
  library.impl((overload.empty() ? Op::name : Op::name + ("." + overload)).c_str(), TORCH_FN((Typed<Op, typename Op::schema>::call)));
}

template <class... Op>
void take_over_all(torch::Library& library) {
  (take_over<Op>(library), ...);
}

}  // namespace

}  // namespace koila

TORCH_LIBRARY_IMPL(aten, DeferredInit, m) {
  namespace ops = at::_ops;
  using koila::take_over_all;
  take_over_all<ops::linear, ops::matmul, ops::mm, ops::bmm, ops::addmm, ops::embedding>(m);
  take_over_all<ops::relu, ops::relu_, ops::gelu, ops::silu, ops::sigmoid, ops::tanh, ops::exp, ops::log, ops::neg,
                ops::sqrt, ops::rsqrt, ops::pow_Tensor_Scalar>(m);
  take_over_all<ops::add_Tensor, ops::sub_Tensor, ops::mul_Tensor, ops::div_Tensor, ops::add_Scalar, ops::mul_Scalar,
                ops::div_Scalar>(m);
  take_over_all<ops::softmax_int, ops::log_softmax_int, ops::layer_norm, ops::mean, ops::mean_dim, ops::sum,
                ops::sum_dim_IntList, ops::mse_loss, ops::cross_entropy_loss, ops::nll_loss_nd>(m);
  take_over_all<ops::view, ops::reshape, ops::transpose_int, ops::permute, ops::expand, ops::t, ops::unsqueeze,
                ops::squeeze, ops::squeeze_dim, ops::select_int, ops::slice_Tensor, ops::flatten_using_ints,
                ops::contiguous, ops::detach>(m);
  take_over_all<ops::add__Tensor, ops::sub__Tensor, ops::mul__Tensor, ops::div__Tensor, ops::addcmul_, ops::addcdiv_,
                ops::lerp__Scalar, ops::zero_>(m);
}
