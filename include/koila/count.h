// How large a model is:
//
//     const koila::Count size = koila::count(model);
//     std::cout << size.trainable.elements << " of " << size.parameters.elements << " parameters are trained, " << size.total().bytes << " bytes in all\n";
//
// Needs no koila. C++17; header-only over LibTorch.
#ifndef KOILA_COUNT_H_
#define KOILA_COUNT_H_

#include <ATen/Functions.h>
#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <tuple>
#include <type_traits>
#include <vector>

namespace koila {

struct Tally {
  std::int64_t tensors = 0;
  std::int64_t elements = 0;
  std::int64_t bytes = 0;

  Tally& operator+=(const Tally& other) {
    tensors += other.tensors;
    elements += other.elements;
    bytes += other.bytes;
    return *this;
  }
};

struct Count {
  Tally parameters;
  Tally trainable;  // of these, such as require a gradient
  Tally buffers;

  // Parameters and buffers by where they lie and what they are made of, in the order in which these are met.
  struct Place {
    c10::Device device;
    c10::ScalarType dtype;
    Tally tally;
  };
  std::vector<Place> places;

  Tally total() const { return Tally(parameters) += buffers; }
};

namespace detail {

class Counter {
 public:
  void add(const at::Tensor& t, Tally& tally, Tally* trainable) {
    if (!t.defined() || !seen_.insert(identity(t)).second) return;
    const Tally one{1, t.numel(), bytes_of(t)};
    tally += one;
    if (trainable != nullptr && t.requires_grad()) *trainable += one;
    auto& places = count.places;
    const auto is_it = [&](const Count::Place& p) { return p.device == t.device() && p.dtype == t.scalar_type(); };
    auto place = std::find_if(places.begin(), places.end(), is_it);
    if (place == places.end()) place = places.insert(place, {t.device(), t.scalar_type(), {}});
    place->tally += one;
  }

  Count count;

 private:
  // What two tensors have in common when they are the same memory, be it seen in another order: tied weights are often a transpose.
  using Identity = std::tuple<const void*, std::int64_t, std::int64_t>;
  static Identity identity(const at::Tensor& t) {
    if (!t.has_storage() || t.numel() == 0) return {t.unsafeGetTensorImpl(), -1, -1};
    return {t.storage().unsafeGetStorageImpl(), t.storage_offset() * static_cast<std::int64_t>(t.element_size()), bytes_of(t)};
  }
  static std::int64_t bytes_of(const at::Tensor& t) {
    if (t.is_sparse()) return bytes_of(t._indices()) + bytes_of(t._values());
    TORCH_CHECK_NOT_IMPLEMENTED(t.has_storage(), "koila::count: a parameter or buffer has the layout ", t.layout(), "; strided and sparse COO tensors can be counted");
    // What is expanded takes the memory of one.
    std::int64_t elements = t.numel() > 0 ? 1 : 0;
    for (std::int64_t d = 0; d < t.dim(); ++d) {
      if (t.stride(d) != 0) elements *= t.size(d);
    }
    return elements * static_cast<std::int64_t>(t.element_size());
  }

  std::set<Identity> seen_;
};

template <class M, class = void>
struct HoldsModule : std::true_type {};
template <class M>
struct HoldsModule<M, std::void_t<decltype(std::declval<const M&>().parameters())>> : std::false_type {};

}  // namespace detail

// Of a torch::nn::Module, what holds one (torch::nn::Linear, a shared_ptr), or a torch::jit::Module; with all modules within. What is shared is counted once, and
// what is a parameter and a buffer is a parameter. Tensors without memory of their own (on the meta device) count as if they had it. Throws
// c10::NotImplementedError for a layout that is neither strided nor sparse COO. Threads: while no other thread changes the module.
template <class M>
Count count(const M& module) {
  if constexpr (detail::HoldsModule<M>::value) {
    return count(*module);
  } else {
    detail::Counter counter;
    for (const at::Tensor& t : module.parameters()) counter.add(t, counter.count.parameters, &counter.count.trainable);
    for (const at::Tensor& t : module.buffers()) counter.add(t, counter.count.buffers, nullptr);
    return counter.count;
  }
}

}  // namespace koila

#endif  // KOILA_COUNT_H_
