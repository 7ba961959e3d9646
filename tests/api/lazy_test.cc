// koila::lazy where there is no koila: nothing changes, and misuse is told all the same. With koila: tests/api/test_lazy_api.py.
#include "koila/lazy.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

namespace koila {
namespace {

class Warnings final : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override { said.push_back(warning.msg()); }
  std::vector<std::string> said;
};

template <class Error, class F>
std::string message_of(F&& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what_without_backtrace();
  }
  return "no such error";
}

TEST(Lazy, HandsTheTensorsBackAndWarnsOnce) {
  Warnings warnings;
  const c10::WarningUtils::WarningHandlerGuard guard(&warnings);
  const at::Tensor x = at::randn({6, 4}), y = at::randn({6});
  EXPECT_TRUE(lazy(x).is_same(x));
  EXPECT_TRUE(lazy(x, -1).is_same(x));
  EXPECT_TRUE(lazy(x, LazyOptions().with_dim(1).with_micro_batch(3)).is_same(x));
  EXPECT_TRUE(lazy(x, {1, 3}).is_same(x));
  const auto [a, b] = lazy(std::array{x, y});
  EXPECT_TRUE(a.is_same(x) && b.is_same(y));
  EXPECT_TRUE(lazy({x, y}, 0)[1].is_same(y));
  EXPECT_TRUE(lazy(std::vector<at::Tensor>{}).empty());
  const at::Tensor w = at::randn({4}).requires_grad_();
  EXPECT_TRUE(lazy(w).requires_grad() && lazy(w * 2).grad_fn() != nullptr);
  ASSERT_EQ(warnings.said.size(), 1u);
  EXPECT_NE(warnings.said[0].find("LD_PRELOAD=libkoila.so"), std::string::npos);
}

TEST(Lazy, AcceptsNoRows) {
  const at::Tensor none = at::empty({0, 4});
  EXPECT_TRUE(lazy(none).is_same(none));
}

TEST(Lazy, SaysWhatIsWrong) {
  const at::Tensor x = at::randn({6, 4});
  EXPECT_EQ(message_of<c10::ValueError>([] { lazy(at::Tensor()); }), "koila::lazy: the tensor is undefined; pass one that holds the rows of the batch");
  EXPECT_EQ(message_of<c10::ValueError>([] { lazy(at::scalar_tensor(1)); }), "koila::lazy: the tensor has no dimensions, and so no rows to split it by");
  EXPECT_EQ(message_of<c10::IndexError>([&] { lazy(x, 2); }), "koila::lazy: dimension 2 of a tensor of shape [6, 4]; it is from -2 to 1");
  EXPECT_EQ(message_of<c10::IndexError>([&] { lazy(x, -3); }), "koila::lazy: dimension -3 of a tensor of shape [6, 4]; it is from -2 to 1");
  EXPECT_EQ(message_of<c10::ValueError>([&] { lazy(x, LazyOptions().with_micro_batch(-1)); }),
            "koila::lazy: LazyOptions::micro_batch is -1; it is a number of rows, or 0 for as many as fit");
  EXPECT_EQ(message_of<c10::ValueError>([&] { lazy(std::array{x, x.narrow(0, 0, 5)}); }),
            "koila::lazy: the tensors of one step have as many rows, and dimension 0 of these has 6 in the first and 5 in another");
  EXPECT_EQ(message_of<c10::IndexError>([&] { lazy(std::array{x, x.select(1, 0)}, 1); }), "koila::lazy: dimension 1 of a tensor of shape [6]; it is from -1 to 0");
}

}  // namespace
}  // namespace koila
