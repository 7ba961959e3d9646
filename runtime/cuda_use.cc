#include "runtime/cuda_use.h"

#include <exception>

#include "runtime/device_memory.h"
#include "runtime/runtime.h"

namespace koila {

int torch_uses_cuda = 0;

void note_torch_uses_cuda() {
  if (__atomic_load_n(&torch_uses_cuda, __ATOMIC_RELAXED) == 0) __atomic_store_n(&torch_uses_cuda, 1, __ATOMIC_RELEASE);
}

void on_earlier_segment(int device, std::uintptr_t address, std::size_t bytes) {
  if (device < 0 || !is_device(device)) return;
  try {
    DeviceMemory& memory = Runtime::get()->device_memory();
    memory.add(address, {static_cast<std::int64_t>(bytes), static_cast<std::int16_t>(device), memory.source(MemoryKind::kDevice, "c10_cuda")}, /*held=*/0);
    note_torch_uses_cuda();
  } catch (const std::exception&) {  // no memory for an entry: it stays uncounted
  }
}

}  // namespace koila
