// koila's C++ API for LibTorch programs, all of it. docs/cpp.md.
#ifndef KOILA_TORCH_H_
#define KOILA_TORCH_H_

#include "koila/accumulate.h"
#include "koila/batch.h"
#include "koila/lazy.h"
#include "koila/step.h"

#endif  // KOILA_TORCH_H_
