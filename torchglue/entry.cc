#include <ATen/ATen.h>

#include "runtime/abi.h"

extern "C" __attribute__((visibility("default"))) int koila_glue_attach(const koila_runtime* runtime, const koila_redirect*,
                                                                        const char* torch_version) {
  if (runtime->version != KOILA_ABI_VERSION) return 1;
  runtime->log(KOILA_LOG_DEBUG, torch_version);
  return 0;
}
