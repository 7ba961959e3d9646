// Streams and events, on which all work is done as soon as it is asked for.
#pragma once

#include <cstddef>

namespace sim {

std::size_t live_streams();
std::size_t live_events();
void forget_streams_and_events();

}  // namespace sim
