// Placeholder until the command is merged.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

int main(int argc, char** argv) {
  const std::string first = argc > 1 ? argv[1] : "";
  if (first == "--version") return std::puts("koila " KOILA_VERSION), 0;
  if (first == "run" && argc > 3) {
    const auto own = std::filesystem::read_symlink("/proc/self/exe").parent_path();
    const auto library = std::filesystem::weakly_canonical(own / KOILA_LIB_FROM_BIN / "libkoila.so");
    setenv("LD_PRELOAD", library.c_str(), 1);
    execvp(argv[3], argv + 3);
  }
  return 2;
}
