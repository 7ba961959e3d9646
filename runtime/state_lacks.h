// How much memory an optimizer's state lacks when it runs out while the optimizer makes it, in its first step.
#ifndef KOILA_RUNTIME_STATE_LACKS_H_
#define KOILA_RUNTIME_STATE_LACKS_H_

#include <cstdint>
#include <string>

#include "runtime/events.h"

namespace koila {

// Whether the reason says that it ran out there.
bool is_about_state(const std::string& reason);

// The reason with figures, from what was made of the state and the bytes of the parameters. State comes in tensors of the parameters' sizes, as many for
// each; how many is not known before all are there, so that what is told is the least.
std::string with_what_state_lacks(const OomEvent& event, std::int64_t parameters, std::int64_t made);

}  // namespace koila

#endif  // KOILA_RUNTIME_STATE_LACKS_H_
