// Structures of tensors, as forward functions take and return them: a tensor, or a std::vector, array, optional, pair, tuple, map or unordered_map of such
// structures. Not for programs to include; koila/step.h does.
#ifndef KOILA_DETAIL_TENSORS_H_
#define KOILA_DETAIL_TENSORS_H_

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <map>
#include <optional>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

namespace koila::detail {

// each(f) calls f with every tensor, in order, undefined ones included; map(f) is the same structure of what f returns for them.
template <class T, class = void>
struct Tensors {
  static constexpr bool supported = false;
};

template <class T>
struct Tensors<T, std::enable_if_t<std::is_base_of_v<at::Tensor, T>>> {
  static constexpr bool supported = true;
  template <class F>
  static void each(const T& tensor, F&& f) {
    f(tensor);
  }
  template <class F>
  static T map(const T& tensor, F&& f) {
    return T(f(tensor));
  }
};

template <class T>
struct Tensors<std::optional<T>, std::enable_if_t<Tensors<T>::supported>> {
  static constexpr bool supported = true;
  template <class F>
  static void each(const std::optional<T>& value, F&& f) {
    if (value) Tensors<T>::each(*value, f);
  }
  template <class F>
  static std::optional<T> map(const std::optional<T>& value, F&& f) {
    if (!value) return std::nullopt;
    return Tensors<T>::map(*value, f);
  }
};

template <class T, class A>
struct Tensors<std::vector<T, A>, std::enable_if_t<Tensors<T>::supported>> {
  static constexpr bool supported = true;
  template <class F>
  static void each(const std::vector<T, A>& values, F&& f) {
    for (const T& value : values) Tensors<T>::each(value, f);
  }
  template <class F>
  static std::vector<T, A> map(const std::vector<T, A>& values, F&& f) {
    std::vector<T, A> mapped;
    mapped.reserve(values.size());
    for (const T& value : values) mapped.push_back(Tensors<T>::map(value, f));
    return mapped;
  }
};

template <class T, std::size_t n>
struct Tensors<std::array<T, n>, std::enable_if_t<Tensors<T>::supported>> {
  static constexpr bool supported = true;
  template <class F>
  static void each(const std::array<T, n>& values, F&& f) {
    for (const T& value : values) Tensors<T>::each(value, f);
  }
  template <class F>
  static std::array<T, n> map(const std::array<T, n>& values, F&& f) {
    std::array<T, n> mapped;
    for (std::size_t i = 0; i < n; ++i) mapped[i] = Tensors<T>::map(values[i], f);
    return mapped;
  }
};

// In the order of the keys, so that two maps with the same keys give their tensors in the same order.
template <class Map>
struct TensorMap {
  static constexpr bool supported = true;
  using Value = typename Map::mapped_type;
  template <class F>
  static void each(const Map& values, F&& f) {
    for (const auto* entry : sorted(values)) Tensors<Value>::each(entry->second, f);
  }
  template <class F>
  static Map map(const Map& values, F&& f) {
    Map mapped;
    for (const auto* entry : sorted(values)) mapped.emplace(entry->first, Tensors<Value>::map(entry->second, f));
    return mapped;
  }

 private:
  static auto sorted(const Map& values) {
    std::vector<const typename Map::value_type*> entries;
    for (const auto& entry : values) entries.push_back(&entry);
    std::sort(entries.begin(), entries.end(), [](const auto* a, const auto* b) { return a->first < b->first; });
    return entries;
  }
};
template <class K, class T, class C, class A>
struct Tensors<std::map<K, T, C, A>, std::enable_if_t<Tensors<T>::supported>> : TensorMap<std::map<K, T, C, A>> {};
template <class K, class T, class H, class E, class A>
struct Tensors<std::unordered_map<K, T, H, E, A>, std::enable_if_t<Tensors<T>::supported>> : TensorMap<std::unordered_map<K, T, H, E, A>> {};

template <class Tuple, class... T>
struct TensorTuple {
  static constexpr bool supported = true;
  template <class F>
  static void each(const Tuple& values, F&& f) {
    std::apply([&](const T&... value) { (Tensors<T>::each(value, f), ...); }, values);
  }
  template <class F>
  static Tuple map(const Tuple& values, F&& f) {
    return std::apply([&](const T&... value) { return Tuple{Tensors<T>::map(value, f)...}; }, values);  // braces: from left to right
  }
};
template <class... T>
struct Tensors<std::tuple<T...>, std::enable_if_t<(Tensors<T>::supported && ...)>> : TensorTuple<std::tuple<T...>, T...> {};
template <class T, class U>
struct Tensors<std::pair<T, U>, std::enable_if_t<Tensors<T>::supported && Tensors<U>::supported>> : TensorTuple<std::pair<T, U>, T, U> {};

template <class S, class F>
void each_tensor(const S& structure, F&& f) {
  Tensors<S>::each(structure, f);
}
template <class S, class F>
S map_tensors(const S& structure, F&& f) {
  return Tensors<S>::map(structure, f);
}

// f(structure), or, where f does not take it and it is a tuple or pair, f(parts...).
template <class F, class S, class = void>
struct Applied {
  static constexpr bool possible = false;
};
template <class F, class... T>
struct Applied<F, std::tuple<T...>, std::enable_if_t<std::is_invocable_v<F&, const T&...>>> {
  static constexpr bool possible = true;
};
template <class F, class T, class U>
struct Applied<F, std::pair<T, U>, std::enable_if_t<std::is_invocable_v<F&, const T&, const U&>>> {
  static constexpr bool possible = true;
};

template <class F, class S>
inline constexpr bool can_call = std::is_invocable_v<F&, const S&> || Applied<F, S>::possible;

template <class F, class S>
decltype(auto) call(F& f, const S& structure) {
  if constexpr (std::is_invocable_v<F&, const S&>) {
    return f(structure);
  } else {
    return std::apply(f, structure);
  }
}

}  // namespace koila::detail

#endif  // KOILA_DETAIL_TENSORS_H_
