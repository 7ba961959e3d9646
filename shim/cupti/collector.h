// KOILA_CUPTI=1: what CUPTI knows of memory that no hook sees, as a note of the report.
//
// All of it does nothing unless start() was called and CUPTI did its part. Thread-safe.
#ifndef KOILA_SHIM_CUPTI_COLLECTOR_H_
#define KOILA_SHIM_CUPTI_COLLECTOR_H_

#include <atomic>
#include <cstdint>
#include <string>

namespace koila::cupti {

// Loads CUPTI and asks it for what it knows, once; where that cannot be, one warning says why. To be called when the program has met CUDA, and the
// runtime keeps books.
void start();

namespace detail {
extern std::atomic<bool> active;
void seen(std::uint64_t address);
void poll();
}  // namespace detail

// A hook's block at `address`.
inline void seen(const void* address) {
  if (detail::active.load(std::memory_order_relaxed)) detail::seen(reinterpret_cast<std::uint64_t>(address));
}

// Lets CUPTI deliver what it has, if it has not been asked for a while. To be called outside CUDA, and never once the process exits.
inline void poll() {
  if (detail::active.load(std::memory_order_relaxed)) detail::poll();
}

// The note; "" when CUPTI is not asked. From what was delivered so far: it asks for nothing.
std::string describe();

}  // namespace koila::cupti

#endif  // KOILA_SHIM_CUPTI_COLLECTOR_H_
