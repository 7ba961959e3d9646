// The SIM_* variables; control.h says what they mean.
#pragma once

namespace sim {

// Sets devices, capacities, failures, delays and reuse as the environment was when this was first called.
void apply_environment();

}  // namespace sim
