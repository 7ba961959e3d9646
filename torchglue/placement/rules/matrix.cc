// Matrix products: contractions over labels, written as in einsum. A sum over the batch gives Partial.
#include <algorithm>
#include <string>

#include "torchglue/placement/contraction.h"
#include "torchglue/placement/operands.h"

namespace koila {
namespace {

Verdict mm(OpCall&);        // ij,jk->ik
Verdict bmm(OpCall&);       // bij,bjk->bik
Verdict mv(OpCall&);        // ij,j->i
Verdict dot(OpCall&);       // i,i->
Verdict outer(OpCall&);     // i,j->ij
Verdict addmm(OpCall&);     // c + ij,jk->ik
Verdict baddbmm(OpCall&);   // c + bij,bjk->bik
Verdict addbmm(OpCall&);    // c + bij,bjk->ik
Verdict addmv(OpCall&);     // c + ij,j->i
Verdict addr(OpCall&);      // c + i,j->ij
Verdict matmul(OpCall&);    // any number of dimensions, leading ones broadcast
Verdict linear(OpCall&);    // ...i,oi->...o and a bias
Verdict bilinear(OpCall&);  // ...i,...j,oij->...o and a bias
Verdict einsum(OpCall&);
Verdict tensordot(OpCall&);

const RegisterRules kTable{
    {"aten::addbmm", addbmm},
    {"aten::addmm", addmm},
    {"aten::addmv", addmv},
    {"aten::addr", addr},
    {"aten::baddbmm", baddbmm},
    {"aten::bilinear", bilinear},
    {"aten::bmm", bmm},
    {"aten::dot", dot},
    {"aten::einsum", einsum},
    {"aten::linear", linear},
    {"aten::matmul", matmul},
    {"aten::mm", mm},
    {"aten::mv", mv},
    {"aten::outer", outer},
    {"aten::tensordot", tensordot},
    {"aten::vdot", dot},
};

const RegisterRagged kRagged{addmm, bmm, linear, matmul, mm, mv};

Verdict product(OpCall& call, const char* a, const char* b, const char* out) {
  auto placement = contract(call, {{{0}, labels(a)}, {{1}, labels(b)}}, labels(out));
  return placement ? local(call, *placement) : Verdict::kNo;
}

// c + product: c broadcasts to the product's shape.
Verdict add_product(OpCall& call, const char* a, const char* b, const char* out) {
  const Labels out_labels = labels(out);
  const TensorSpec& c = call.tensor(0);
  if (!call.tensor(1).placement.is_replicate() || !call.tensor(2).placement.is_replicate()) {
    auto placement = contract(call, {{{1}, labels(a)}, {{2}, labels(b)}}, out_labels);
    if (!placement) return Verdict::kNo;
    if (placement->is_shard()) {
      const int64_t dim = placement->dim - static_cast<int64_t>(out_labels.size()) + c.dim();
      if (dim < 0 || c.sizes[dim] == 1) {
        if (!c.placement.is_replicate()) return Verdict::kNo;
      } else if (!call.require({0}, placement->at(dim))) {
        return Verdict::kNo;
      }
    } else if (c.placement.is_replicate()) {
      if (!c10::isFloatingType(c.dtype) && !c10::isComplexType(c.dtype)) return Verdict::kNo;
      call.weight_by_rows(0);
    } else if (!c.placement.is_partial()) {
      return Verdict::kNo;
    }
    return local(call, *placement);
  }
  return Verdict::kNo;  // only c is split
}

Verdict mm(OpCall& call) { return product(call, "ij", "jk", "ik"); }
Verdict bmm(OpCall& call) { return product(call, "bij", "bjk", "bik"); }
Verdict mv(OpCall& call) { return product(call, "ij", "j", "i"); }
Verdict dot(OpCall& call) { return product(call, "i", "i", ""); }
Verdict outer(OpCall& call) { return product(call, "i", "j", "ij"); }
Verdict addmm(OpCall& call) { return add_product(call, "ij", "jk", "ik"); }
Verdict baddbmm(OpCall& call) { return add_product(call, "bij", "bjk", "bik"); }
Verdict addbmm(OpCall& call) { return add_product(call, "bij", "bjk", "ik"); }
Verdict addmv(OpCall& call) { return add_product(call, "ij", "j", "i"); }
Verdict addr(OpCall& call) { return add_product(call, "i", "j", "ij"); }

constexpr int kRow = -1, kSummed = -2, kColumn = -3;  // leading dimensions are labelled 1, 2, ... from the right

Labels leading_labels(int64_t n) {
  Labels result;
  for (int64_t i = n; i > 0; --i) result.push_back(static_cast<int>(i));
  return result;
}

Verdict matmul(OpCall& call) {
  const int64_t a = call.tensor(0).dim(), b = call.tensor(1).dim();
  if (a == 0 || b == 0) return Verdict::kNo;
  Labels left = leading_labels(std::max<int64_t>(a - 2, 0));
  Labels right = leading_labels(std::max<int64_t>(b - 2, 0));
  Labels out = leading_labels(std::max<int64_t>({a - 2, b - 2, 0}));
  if (a > 1) left.push_back(kRow), out.push_back(kRow);
  left.push_back(kSummed);
  right.push_back(kSummed);
  if (b > 1) right.push_back(kColumn), out.push_back(kColumn);
  auto placement = contract(call, {{{0}, left}, {{1}, right}}, out);
  return placement ? local(call, *placement) : Verdict::kNo;
}

Verdict linear(OpCall& call) {
  const TensorSpec& x = call.tensor(0);
  const TensorSpec& bias = call.tensor(2);
  if (!others_replicate(call, {0})) return Verdict::kNo;
  if (x.placement.is_partial()) {
    if (bias.defined) call.weight_by_rows(2);
    return local(call, Placement::partial());
  }
  if (x.placement.dim == x.dim() - 1) return Verdict::kNo;
  return local(call, x.placement);
}

Verdict bilinear(OpCall& call) {
  const TensorSpec& a = call.tensor(0);
  if (!others_replicate(call, {0, 1})) return Verdict::kNo;
  Labels left = leading_labels(a.dim() - 1);
  Labels right = left;
  left.push_back(kRow);
  right.push_back(kColumn);
  Labels out = leading_labels(a.dim() - 1);
  out.push_back(kSummed);  // a label of its own
  auto placement = contract(call, {{{0}, left}, {{1}, right}}, out);
  // Features are summed with the weight's, which is not split; a Partial would need the bias weighted.
  return placement && placement->is_shard() && placement->dim < a.dim() - 1 ? local(call, *placement) : Verdict::kNo;
}

// The labels of one term of an equation; "..." stands for what the operand has more, labelled from the right beyond all letters.
constexpr int kEllipsis = 1000;

std::optional<Labels> parse_term(std::string_view term, int64_t ndim) {
  int64_t letters = 0;
  for (char c : term) letters += c != '.' ? 1 : 0;
  Labels result;
  for (size_t i = 0; i < term.size(); ++i) {
    if (term[i] != '.') {
      result.push_back(term[i]);
      continue;
    }
    if (term.substr(i, 3) != "...") return std::nullopt;
    for (int64_t n = ndim - letters; n > 0; --n) result.push_back(kEllipsis + static_cast<int>(n));
    i += 2;
  }
  return result;
}

Verdict einsum(OpCall& call) {
  const OpCall::Arg& equation = call.args()[0];
  if (!equation.value.isString()) return Verdict::kNo;
  std::string text = equation.value.toStringRef();
  text.erase(std::remove(text.begin(), text.end(), ' '), text.end());
  const size_t arrow = text.find("->");
  if (arrow == std::string::npos) return Verdict::kNo;  // an implied output: decomposition knows better
  const ArgRefs operands = defined_operands(call, {1});
  std::vector<Factor> factors;
  int64_t ellipsis = 0;
  std::string_view terms = std::string_view(text).substr(0, arrow);
  for (ArgRef ref : operands) {
    const size_t comma = terms.find(',');
    auto term = parse_term(terms.substr(0, comma), spec(call, ref).dim());
    if (!term) return Verdict::kNo;
    for (int label : *term) ellipsis = std::max<int64_t>(ellipsis, label - kEllipsis);
    factors.push_back({ref, *term});
    terms = comma == std::string_view::npos ? std::string_view() : terms.substr(comma + 1);
  }
  const std::string_view target = std::string_view(text).substr(arrow + 2);
  int64_t letters = 0;
  for (char c : target) letters += c != '.' ? 1 : 0;
  auto out = parse_term(target, ellipsis + letters);
  if (!out) return Verdict::kNo;
  auto placement = contract(call, factors, *out);
  return placement ? local(call, *placement) : Verdict::kNo;
}

Verdict tensordot(OpCall& call) {
  const int64_t a = call.tensor(0).dim(), b = call.tensor(1).dim();
  auto summed_a = call.integers(2), summed_b = call.integers(3);
  if (!summed_a || !summed_b || summed_a->size() != summed_b->size()) return Verdict::kNo;
  Labels left, right, out;
  for (int64_t i = 0; i < a; ++i) left.push_back(static_cast<int>(i));
  for (int64_t i = 0; i < b; ++i) right.push_back(static_cast<int>(a + i));
  for (size_t i = 0; i < summed_a->size(); ++i) {
    auto da = wrap_dim((*summed_a)[i], a), db = wrap_dim((*summed_b)[i], b);
    if (!da || !db) return Verdict::kNo;
    left[*da] = right[*db] = static_cast<int>(a + b + static_cast<int64_t>(i));
  }
  for (int label : left) if (label < a + b) out.push_back(label);
  for (int label : right) if (label < a + b) out.push_back(label);
  auto placement = contract(call, {{{0}, left}, {{1}, right}}, out);
  return placement ? local(call, *placement) : Verdict::kNo;
}

}  // namespace
}  // namespace koila
