// koila's C++ API for LibTorch programs, all of it. docs/cpp.md.
#ifndef KOILA_TORCH_H_
#define KOILA_TORCH_H_

#include "koila/accumulate.h"
#include "koila/batch.h"
#include "koila/budget.h"
#include "koila/category.h"
#include "koila/count.h"
#include "koila/events.h"
#include "koila/lazy.h"
#include "koila/memory.h"
#include "koila/report.h"
#include "koila/snapshot.h"
#include "koila/step.h"
#include "koila/track.h"

#endif  // KOILA_TORCH_H_
