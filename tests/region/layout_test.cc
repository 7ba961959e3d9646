#include "torchglue/region/layout.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/library.h>

namespace koila {
namespace {

int meta_calls = 0;

at::Tensor transposed_on_meta(const at::Tensor& t) {
  TORCH_CHECK_WITH(OutOfMemoryError, meta_calls++ > 0, "CPU out of memory.");
  return at::empty_strided(t.sizes(), {1, t.size(0)}, t.options());
}

TORCH_LIBRARY(koila_layout_test, m) {
  m.def("transposed(Tensor t) -> Tensor");
  m.impl("transposed", c10::DispatchKey::Meta, torch::CppFunction::makeFromUnboxedFunction(&transposed_on_meta));
}

// It was taken for an operator without a meta kernel, for good: what it gave lay in another order than plain's result, and random numbers went to other entries.
TEST(Layout, AnOutOfMemorySaysNothingOfTheOperator) {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("koila_layout_test::transposed", "");
  const std::vector<c10::IValue> arguments{at::zeros({3, 5})};
  EXPECT_THROW(layouts_on_meta(op, arguments), c10::OutOfMemoryError);
  const std::vector<Layout> layouts = layouts_on_meta(op, arguments);
  ASSERT_EQ(layouts.size(), 1u);
  EXPECT_EQ(layouts[0].strides, (std::vector<int64_t>{1, 3}));
}

}  // namespace
}  // namespace koila
