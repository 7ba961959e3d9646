/* Copies data to a GPU and back in pieces, with the CUDA runtime and nothing else. Two mistakes are in it, for koila's report to show: one buffer is
 * never given back, and one is larger than any GPU.
 *
 *   gcc -o fill fill.c -I/usr/local/cuda/include -L/usr/local/cuda/lib64 -lcudart
 *   LD_PRELOAD=$PWD/build/lib/libkoila.so ./fill
 */
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kPieces = 8, kPieceBytes = 4 << 20 };

static void check(cudaError_t error, const char *what) {
  if (error == cudaSuccess) return;
  fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  exit(1);
}

int main(void) {
  char *staging = NULL, *table = NULL, *pieces[kPieces] = {NULL}, *huge = NULL;
  long sum = 0;
  check(cudaMallocHost((void **)&staging, kPieceBytes), "page-locked memory");
  check(cudaMalloc((void **)&table, 1 << 20), "the table"); /* never given back */
  check(cudaMemset(table, 0, 1 << 20), "the table");

  for (int i = 0; i < kPieces; ++i) {
    memset(staging, i, kPieceBytes);
    check(cudaMalloc((void **)&pieces[i], kPieceBytes), "a piece");
    check(cudaMemcpy(pieces[i], staging, kPieceBytes, cudaMemcpyHostToDevice), "to the device");
  }
  if (cudaMalloc((void **)&huge, (size_t)1 << 45) != cudaSuccess) printf("32 TiB: %s\n", cudaGetErrorString(cudaGetLastError()));
  for (int i = 0; i < kPieces; ++i) {
    check(cudaMemcpy(staging, pieces[i], kPieceBytes, cudaMemcpyDeviceToHost), "from the device");
    for (int j = 0; j < kPieceBytes; ++j) sum += staging[j];
    check(cudaFree(pieces[i]), "a piece");
  }
  check(cudaFreeHost(staging), "page-locked memory");
  printf("sum %ld\n", sum);
  return 0;
}
