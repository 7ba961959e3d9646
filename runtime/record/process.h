// A process told from others that have, or had, the same number.
#ifndef KOILA_RUNTIME_RECORD_PROCESS_H_
#define KOILA_RUNTIME_RECORD_PROCESS_H_

#include <cstdint>

namespace koila::record {

// When process `pid` began, in the kernel's ticks since the machine did. 0 when there is none: dead, only not yet waited for, or of another
// container, whose numbers are others.
std::uint64_t birth_of(std::int64_t pid);

inline bool is_alive(std::int64_t pid, std::uint64_t birth) { return birth != 0 && birth_of(pid) == birth; }

}  // namespace koila::record

#endif  // KOILA_RUNTIME_RECORD_PROCESS_H_
