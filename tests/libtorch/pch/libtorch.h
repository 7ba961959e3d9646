// The precompiled header of the programs here: torch takes longer to read than they do to compile.
#include <torch/torch.h>
