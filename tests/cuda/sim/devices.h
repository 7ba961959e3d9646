// The devices that exist and the one that each thread uses.
#pragma once

#include "tests/cuda/sim/call.h"

namespace sim {

int device_count();
void set_device_count(int count);
bool valid_device(int device);

// This thread's device; cudaErrorNoDevice where there is none, cudaErrorInvalidDevice where it was taken away. Activates the device's context.
cudaError_t use_device(int* device);
cudaError_t set_device(int device);
void forget_current_device();

// Whether a device was used since it was last reset: the primary context's state.
bool device_active(int device);
void deactivate_devices();

// Attribute numbers of cudaDeviceAttr and CUdevice_attribute are the same.
int attribute_of(int attribute);

}  // namespace sim
