// Code that finds a batch size that fits: it is called with one size, and with half of it when memory runs out.
//
//     koila::batch(512, [&](int64_t batch_size) { train(model, dataset, batch_size); });
//
//     koila::range(0, 1024, 128, [&](int64_t begin, int64_t end) { sums[begin / 8] = reduce(data, begin, end); });
//
//     auto result = torch::empty({8192, 10});
//     koila::chunked(result, 1024, [&](at::Tensor chunk, int64_t begin, int64_t end) { chunk.copy_(model->forward(input.slice(0, begin, end))); });
//
// The size that went through is remembered for the next call from the same place with as much memory. `range` and `chunked` go on from the
// position that they have reached: rows that went through are not run again.
//
// The function must bear to be called again with fewer of the same rows after it has thrown: what it had done until then is not undone. So
// it should write what it computes at the end, or over what it wrote before (`chunk.copy_`), and not add to it (`+=`, `backward()` into
// gradients that other rows are in). The random numbers that it drew stay drawn.
//
// What counts as out of memory is in koila/oom.h. Every other exception goes to the caller as it is, at once, and so does an out-of-memory at
// BatchOptions::minimum: the very exception that the function threw. Misuse throws c10::ValueError or c10::IndexError before anything is called,
// or does not compile, with a sentence that says what was expected.
//
// Threads: each call runs the function on the caller's thread, and shares nothing with others but its cache, which is thread-safe.
//
// C++17; header-only over LibTorch 2.11 or newer on Linux, nothing to link but torch and libdl. The same with koila preloaded and without; with it,
// an out-of-memory is koila's to rescue first, and comes here when koila hands it on.
#ifndef KOILA_BATCH_H_
#define KOILA_BATCH_H_

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <optional>
#include <string_view>
#include <type_traits>
#include <typeinfo>
#include <utility>

#include "koila/detail/memory.h"
#include "koila/oom.h"
#include "koila/size_cache.h"

namespace koila {

// Everything about a call but its size. Written with names in C++20, `{.minimum = 8, .dim = 1}`, or in a chain:
// `BatchOptions().with_minimum(8).with_dim(1)`.
struct BatchOptions {
  // The smallest size to try, in rows; at least 1 and at most the initial one. What is left at the end of a range may be less.
  std::int64_t minimum = 1;
  // After so many calls or whole chunks in a row that went through below the initial size, twice the size is tried; 0: never. When that runs out
  // of memory, it takes twice as many the next time.
  std::int64_t grow_after = 0;
  // chunked: the dimension of the tensor that is cut; negative ones count from the last.
  std::int64_t dim = 0;
  // Whose memory the size depends on, and whose caches are freed. Else: the tensor's for chunked, and the current device of the accelerator in
  // use, or the CPU.
  std::optional<c10::Device> device = std::nullopt;
  // Before each retry, what PyTorch's allocator keeps for later is given back.
  bool empty_caches = true;
  // By how many bytes the process' CPU memory may grow during the call, by whatever thread; 0: no limit. Beyond it allocations fail. It is koila's
  // budget where koila is loaded and counts CPU tensors, else the kernel's limit for the process' data, which all memory of the process counts
  // towards (what malloc has free is there on top), and which libraries that do not look at what malloc returns may not bear.
  std::int64_t cpu_memory = 0;
  // Where the size is remembered; null: default_size_cache().
  SizeCache* cache = nullptr;
  // A name to remember the size by, in place of the call's place or the function. Read during the call only.
  std::string_view context = {};

  BatchOptions with_minimum(std::int64_t rows) const { return with(&BatchOptions::minimum, rows); }
  BatchOptions with_grow_after(std::int64_t calls) const { return with(&BatchOptions::grow_after, calls); }
  BatchOptions with_dim(std::int64_t dimension) const { return with(&BatchOptions::dim, dimension); }
  BatchOptions with_device(c10::Device where) const { return with(&BatchOptions::device, std::optional<c10::Device>(where)); }
  BatchOptions with_empty_caches(bool yes) const { return with(&BatchOptions::empty_caches, yes); }
  BatchOptions with_cpu_memory(std::int64_t bytes) const { return with(&BatchOptions::cpu_memory, bytes); }
  BatchOptions with_cache(SizeCache& where) const { return with(&BatchOptions::cache, &where); }
  BatchOptions with_context(std::string_view name) const { return with(&BatchOptions::context, name); }

 private:
  template <class T>
  BatchOptions with(T BatchOptions::* field, T value) const {
    BatchOptions changed = *this;
    changed.*field = value;
    return changed;
  }
};

namespace detail {

// The sizes that one call goes through.
class Sizes {
 public:
  Sizes(const char* caller, std::int64_t initial, const BatchOptions& options, SizeKey key)
      : initial_(initial),
        options_(options),
        cache_(options.cache != nullptr ? *options.cache : default_size_cache()),
        key_(key),
        limit_(options.cpu_memory) {
    TORCH_CHECK_VALUE(initial >= 1, caller, ": the initial size is ", initial, "; it is a number of rows, 1 or more");
    TORCH_CHECK_VALUE(options.minimum >= 1 && options.minimum <= initial, caller, ": BatchOptions::minimum is ", options.minimum,
                      "; it is a number of rows from 1 to the initial size, which is ", initial);
    TORCH_CHECK_VALUE(options.grow_after >= 0, caller, ": BatchOptions::grow_after is ", options.grow_after, "; it is a number of calls, or 0 for never");
    TORCH_CHECK_VALUE(options.cpu_memory >= 0, caller, ": BatchOptions::cpu_memory is ", options.cpu_memory,
                      "; it is a number of bytes, or 0 for no limit");
    if (cache_.by() == SizeCache::By::kCallSiteAndMemory) key_.available_bytes = memory_step(available());
    now_ = cache_.find(key_);
    if (now_.failed > 0 && now_.size > initial) more_is_known_ = now_.size;
    now_.size = now_.failed > 0 ? std::clamp(now_.size, options.minimum, initial) : initial;
  }
  ~Sizes() {
    if (!went_through_) return;
    try {
      cache_.remember(key_, good_);
    } catch (...) {  // no memory for that: the next call learns it again
    }
  }
  Sizes(const Sizes&) = delete;
  Sizes& operator=(const Sizes&) = delete;

  std::int64_t size() const { return now_.size; }

  void went_through(std::int64_t tried) {
    if (tried == now_.size) now_.trying_more = false;
    if (options_.grow_after > 0 && now_.size < initial_ && tried == now_.size && ++now_.successes >= options_.grow_after * now_.patience) {
      now_.size = now_.size > initial_ / 2 ? initial_ : now_.size * 2;
      now_.successes = 0;
      now_.trying_more = true;
    }
    good_ = now_;
    if (more_is_known_ > 0) good_.size = more_is_known_;
    went_through_ = true;
  }

  // To be called while an exception is handled. Throws it again unless less may be tried; then free_caches(), with the exception gone.
  void ran_out(const std::exception& error, std::int64_t tried) {
    if (tried <= options_.minimum || !ran_out_of_memory(error)) throw;
    now_.failed = now_.failed > 0 ? std::min(now_.failed, tried) : tried;
    if (std::exchange(now_.trying_more, false)) now_.patience = std::min<std::int64_t>(now_.patience * 2, 1 << 20);
    now_.successes = 0;
    more_is_known_ = 0;
    // A rest of 100 rows that ran out under a size of 512 would run out again at 256 and 128.
    while (now_.size >= tried) now_.size /= 2;
    now_.size = std::max(now_.size, options_.minimum);
  }
  void free_caches() const {
    if (options_.empty_caches) detail::free_caches(key_.device.type());
  }

 private:
  std::int64_t available() const {
    const std::int64_t bytes = available_memory(key_.device);
    return key_.device.is_cpu() && options_.cpu_memory > 0 ? std::min(bytes, options_.cpu_memory) : bytes;
  }

  const std::int64_t initial_;
  const BatchOptions& options_;
  SizeCache& cache_;
  SizeKey key_;
  const CpuLimit limit_;
  RememberedSize now_, good_;
  std::int64_t more_is_known_ = 0;  // what an earlier call learned, where this one asked for less
  bool went_through_ = false;
};

template <class T>
struct Same {
  using type = T;
};
// What f(batch_size) returns; void where it cannot be called so, which a static_assert says better.
template <class F>
using BatchResult = typename std::conditional_t<std::is_invocable_v<F&, std::int64_t>, std::invoke_result<F&, std::int64_t>, Same<void>>::type;

template <class F>
SizeKey key_of(const F& f, CallSite site, const BatchOptions& options, std::optional<c10::Device> device = std::nullopt) {
  SizeKey key{site, typeid(std::decay_t<F>)};
  if constexpr (std::is_pointer_v<std::decay_t<F>>) key.address = reinterpret_cast<const void*>(std::decay_t<F>(f));
  key.context = options.context;
  key.device = options.device ? *options.device : device ? *device : current_device();
  return key;
}

template <class F>
std::int64_t run_range(const char* caller, std::int64_t begin, std::int64_t end, std::int64_t initial, F&& f, const BatchOptions& options, SizeKey key) {
  Sizes sizes(caller, initial, options, key);
  for (std::int64_t at = begin; at < end;) {
    const std::int64_t tried = std::min(sizes.size(), end - at);
    bool fits = true;
    try {
      f(at, at + tried);
    } catch (const std::exception& error) {
      sizes.ran_out(error, tried);
      fits = false;
    }
    if (fits) {
      sizes.went_through(tried);
      at += tried;
    } else {
      sizes.free_caches();
    }
  }
  return sizes.size();
}

}  // namespace detail

// f(batch_size), first with `initial` rows or what is remembered below that, and with half of it after each out-of-memory. Returns what f does,
// by value or reference, or nothing.
template <class F>
detail::BatchResult<F> batch(std::int64_t initial, F&& f, const BatchOptions& options = {}, CallSite site = CallSite::here()) {
  constexpr bool fits = std::is_invocable_v<F&, std::int64_t>;
  static_assert(fits, "koila::batch(initial, f): f takes the batch size, as in [&](int64_t batch_size) { ... }");
  if constexpr (fits) {
    using Result = detail::BatchResult<F>;
    detail::Sizes sizes("koila::batch", initial, options, detail::key_of(f, site, options));
    for (;;) {
      const std::int64_t tried = sizes.size();
      try {
        if constexpr (std::is_void_v<Result>) {
          f(tried);
          sizes.went_through(tried);
          return;
        } else {
          Result result = f(tried);
          sizes.went_through(tried);
          return std::forward<Result>(result);
        }
      } catch (const std::exception& error) {
        sizes.ran_out(error, tried);
      }
      sizes.free_caches();
    }
  }
}

// f(begin, end) over [begin, end) in order, `initial_step` rows at a time or what is remembered below that; the last may be fewer. After an
// out-of-memory f is called from the same position with half the step, and the rows after that with no more. begin == end: f is not called.
// Returns the step that it ended with.
template <class F>
std::int64_t range(std::int64_t begin, std::int64_t end, std::int64_t initial_step, F&& f, const BatchOptions& options = {},
                   CallSite site = CallSite::here()) {
  constexpr bool fits = std::is_invocable_v<F&, std::int64_t, std::int64_t>;
  static_assert(fits, "koila::range(begin, end, initial_step, f): f takes the rows [begin, end), as in [&](int64_t begin, int64_t end) { ... }");
  TORCH_CHECK_VALUE(begin <= end, "koila::range: begin is ", begin, " and end is ", end, "; it goes up from begin, and stops before end");
  if constexpr (fits) return detail::run_range("koila::range", begin, end, initial_step, f, options, detail::key_of(f, site, options));
  return 0;
}

// f(chunk, begin, end) over the tensor in order: `chunk` is a view of its rows [begin, end) in dimension options.dim, so what is written to it is
// written to the tensor; the other dimensions are whole. Sizes as in range. A tensor of no rows: f is not called. Returns the rows of a chunk that it
// ended with.
template <class F>
std::int64_t chunked(const at::Tensor& tensor, std::int64_t initial, F&& f, const BatchOptions& options, CallSite site = CallSite::here()) {
  constexpr bool fits = std::is_invocable_v<F&, at::Tensor&, std::int64_t, std::int64_t>;
  static_assert(fits, "koila::chunked(tensor, initial, f): f takes the chunk and its rows, as in "
                      "[&](at::Tensor chunk, int64_t begin, int64_t end) { ... }");
  TORCH_CHECK_VALUE(tensor.defined(), "koila::chunked: the tensor is undefined; pass one that holds the rows, such as torch::empty({rows, columns})");
  TORCH_CHECK_VALUE(tensor.dim() > 0, "koila::chunked: the tensor has no dimensions, and so no rows to cut it by");
  TORCH_CHECK_INDEX(options.dim >= -tensor.dim() && options.dim < tensor.dim(), "koila::chunked: dimension ", options.dim, " of a tensor of shape ",
                    tensor.sizes(), "; it is from ", -tensor.dim(), " to ", tensor.dim() - 1);
  if constexpr (fits) {
    const auto each = [&](std::int64_t begin, std::int64_t end) {
      at::Tensor chunk = tensor.narrow(options.dim, begin, end - begin);
      f(chunk, begin, end);
    };
    return detail::run_range("koila::chunked", 0, tensor.size(options.dim), initial, each, options, detail::key_of(f, site, options, tensor.device()));
  }
  return 0;
}
template <class F>
std::int64_t chunked(const at::Tensor& tensor, std::int64_t initial, F&& f, std::int64_t dim = 0, CallSite site = CallSite::here()) {
  return chunked(tensor, initial, std::forward<F>(f), BatchOptions().with_dim(dim), site);
}

// The same with the cache as an argument: koila::explicit_::range(cache, 0, 1024, 128, f).
namespace explicit_ {

template <class F>
decltype(auto) batch(SizeCache& cache, std::int64_t initial, F&& f, const BatchOptions& options = {}, CallSite site = CallSite::here()) {
  return koila::batch(initial, std::forward<F>(f), options.with_cache(cache), site);
}
template <class F>
std::int64_t range(SizeCache& cache, std::int64_t begin, std::int64_t end, std::int64_t initial_step, F&& f, const BatchOptions& options = {},
                   CallSite site = CallSite::here()) {
  return koila::range(begin, end, initial_step, std::forward<F>(f), options.with_cache(cache), site);
}
template <class F>
std::int64_t chunked(SizeCache& cache, const at::Tensor& tensor, std::int64_t initial, F&& f, const BatchOptions& options = {},
                     CallSite site = CallSite::here()) {
  return koila::chunked(tensor, initial, std::forward<F>(f), options.with_cache(cache), site);
}

}  // namespace explicit_

// The same with the function behind everything else, so that it reads as the body of a loop; it runs at once:
//
//     koila::execute::chunked(result, 1024, options)([&](at::Tensor chunk, int64_t begin, int64_t end) {
//       ...
//     });
//
// What the first pair of parentheses gives is for the second only: it may hold references to its arguments.
namespace execute {

inline auto batch(std::int64_t initial, const BatchOptions& options = {}, CallSite site = CallSite::here()) {
  return [=](auto&& f) -> decltype(auto) { return koila::batch(initial, std::forward<decltype(f)>(f), options, site); };
}
inline auto range(std::int64_t begin, std::int64_t end, std::int64_t initial_step, const BatchOptions& options = {}, CallSite site = CallSite::here()) {
  return [=](auto&& f) { return koila::range(begin, end, initial_step, std::forward<decltype(f)>(f), options, site); };
}
inline auto chunked(const at::Tensor& tensor, std::int64_t initial, const BatchOptions& options = {}, CallSite site = CallSite::here()) {
  return [=](auto&& f) { return koila::chunked(tensor, initial, std::forward<decltype(f)>(f), options, site); };
}

}  // namespace execute

}  // namespace koila

#endif  // KOILA_BATCH_H_
