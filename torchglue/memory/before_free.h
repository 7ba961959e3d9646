// Who wants a last look at memory of the CPU before it is given back.
#pragma once

#include <atomic>

namespace koila {

// Called with the address of the memory, on the thread that gives it back. Null: nobody wants to know.
using BeforeFree = void (*)(const void* memory);
inline std::atomic<BeforeFree> before_free{nullptr};

inline void tell_before_free(const void* memory) {
  if (const BeforeFree tell = before_free.load(std::memory_order_relaxed)) tell(memory);
}

}  // namespace koila
