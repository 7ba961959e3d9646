// Meeting torch: from Python through `initModule`, from a C++ LibTorch program through the preload's constructor, in a process that runs already through koila_attach().
#ifndef KOILA_SHIM_ATTACH_H_
#define KOILA_SHIM_ATTACH_H_

namespace koila::shim {

// What a call of `initModule` goes on to, given the function that the caller meant: that one itself, unless it is torch's; torch's is
// wrapped so that koila attaches once torch/_C is initialised.
void* choose_init_module(void* real);

// Loads libkoila_torch.so and hands it the runtime, once in a process; torch's libraries must be loaded and initialised. Stays out,
// with one line that says why, when there is no adapter for the torch that runs.
void attach();

}  // namespace koila::shim

#endif  // KOILA_SHIM_ATTACH_H_
