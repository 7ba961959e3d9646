// Calls interposed functions that it defines itself, with every register that may carry an argument in use.
//
// With -DLIBRARY: a "libtorch_cpu.so" whose functions have torch's names and other signatures. Else the program: it loads the library that
// argv[1] names, and calls through the preload, where the first call of each finds the real function and the second goes straight.
#include <cstdarg>
#include <cstdio>

struct Big {
  double values[6];
};

using Many = Big(int, long, int, long, int, long, int, long, double, float, double, float, double, float, double, float, double, int);
using Variadic = double(int, ...);

#ifdef LIBRARY

Big many(int a, long b, int c, long d, int e, long f, int g, long h, double i, float j, double k, float l, double m, float n, double o,
         float p, double q, int r) asm("_ZN2at8toDLPackERKNS_6TensorE");
Big many(int a, long b, int c, long d, int e, long f, int g, long h, double i, float j, double k, float l, double m, float n, double o,
         float p, double q, int r) {
  return {{double(a + b + c + d + e + f + g + h), i + j, k + l, m + n, o + p, q + r}};
}

double variadic(int count, ...) asm("_ZN2at17toDLPackVersionedERKNS_6TensorE");
double variadic(int count, ...) {
  va_list list;
  va_start(list, count);
  double sum = 0;
  for (int i = 0; i < count; ++i) sum += va_arg(list, double);
  va_end(list);
  return sum;
}

void throws(int) asm("_ZN2at17toDLPackNonOwningERKNS_6TensorEP8DLTensor");
void throws(int number) { throw number; }

#else

#include <dlfcn.h>

int main(int, char** argv) {
  auto* many = reinterpret_cast<Many*>(dlsym(RTLD_DEFAULT, "_ZN2at8toDLPackERKNS_6TensorE"));
  auto* variadic = reinterpret_cast<Variadic*>(dlsym(RTLD_DEFAULT, "_ZN2at17toDLPackVersionedERKNS_6TensorE"));
  auto* throws = reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "_ZN2at17toDLPackNonOwningERKNS_6TensorEP8DLTensor"));
  auto* missing = reinterpret_cast<void (*)()>(dlsym(RTLD_DEFAULT, "_Z15THPStorage_WrapN3c107StorageE"));
  if (many == nullptr || dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) == nullptr) return 1;
  for (int turn = 0; turn < 2; ++turn) {
    const Big big = many(1, 2, 3, 4, 5, 6, 7, 8, 10.5, 20.25f, 30, 40, 50, 60, 70, 80, 90, 100);
    for (const double value : big.values) std::printf("%g ", value);
    std::printf("%g ", variadic(9, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0));
    try {
      throws(42);
    } catch (int caught) {
      std::printf("%d\n", caught);
    }
  }
  std::fflush(stdout);
  missing();
  return 0;
}

#endif
