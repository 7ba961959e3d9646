/* Memory that the system oversubscribes, as managed memory of a device is: large tensors lie in blocks of 64 KiB, of which as many are resident as
 * pager_limit() says. A block that is touched and is not there is read from an unlinked file, and the one that came first goes, written back if it was
 * written to. To be preloaded; it takes over posix_memalign(), with which PyTorch makes the memory of CPU tensors. Threads of the process take turns. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

enum { kBlock = 64 << 10, kBlocks = 1 << 18, kAbsent = 0, kClean = 1, kDirty = 2, kOut = 3 };

static char* arena;
static uint32_t length_of[kBlocks]; /* blocks of the allocation that begins here */
static uint8_t used[kBlocks], state[kBlocks];
static uint32_t queue[kBlocks], stamp_of[kBlocks], stamps[kBlocks];
static uint32_t head, tail, stamp, resident, next_free;
static int64_t limit_blocks, faults;
static int file = -1;
static atomic_flag busy = ATOMIC_FLAG_INIT;
static struct sigaction before;

static void enter(void) {
  while (atomic_flag_test_and_set(&busy)) {
  }
}

static void leave(void) { atomic_flag_clear(&busy); }

static char* address(uint32_t block) { return arena + (size_t)block * kBlock; }

static void drop(uint32_t block) {
  if (state[block] == kClean || state[block] == kDirty) {
    madvise(address(block), kBlock, MADV_DONTNEED);
    mprotect(address(block), kBlock, PROT_NONE);
    --resident;
  }
}

static void evict_one(void) {
  while (head != tail) {
    uint32_t block = queue[head], when = stamps[head];
    head = (head + 1) % kBlocks;
    if (stamp_of[block] != when || (state[block] != kClean && state[block] != kDirty)) continue; /* freed since */
    if (state[block] == kDirty && pwrite(file, address(block), kBlock, (off_t)block * kBlock) != kBlock) abort();
    drop(block);
    state[block] = kOut;
    return;
  }
}

static void bring(uint32_t block, int writes) {
  ++faults;
  if (state[block] == kClean) { /* written to for the first time since it came */
    mprotect(address(block), kBlock, PROT_READ | PROT_WRITE);
    state[block] = kDirty;
    return;
  }
  while (resident >= limit_blocks) evict_one();
  mprotect(address(block), kBlock, PROT_READ | PROT_WRITE);
  int was_out = state[block] == kOut;
  if (was_out && pread(file, address(block), kBlock, (off_t)block * kBlock) != kBlock) abort();
  if (was_out && !writes) mprotect(address(block), kBlock, PROT_READ);
  state[block] = was_out && !writes ? kClean : kDirty;
  ++resident;
  queue[tail] = block, stamps[tail] = stamp_of[block] = ++stamp;
  tail = (tail + 1) % kBlocks;
}

static void on_fault(int number, siginfo_t* info, void* context) {
  char* where = info->si_addr;
  if (!arena || where < arena || where >= arena + (size_t)kBlocks * kBlock) {
    sigaction(number, &before, NULL);
    return;
  }
#ifdef __x86_64__
  int writes = (((ucontext_t*)context)->uc_mcontext.gregs[REG_ERR] & 2) != 0;
#else
  int writes = 1;
#endif
  enter();
  bring((where - arena) / kBlock, writes);
  leave();
}

/* Bytes that may be resident from now on, of what is allocated from now on. */
void pager_limit(int64_t bytes) {
  limit_blocks = bytes / kBlock;
  if (arena || !bytes) return;
  FILE* backing = tmpfile();
  if (!backing) abort();
  file = fileno(backing);
  char* reserved = mmap(NULL, (size_t)kBlocks * kBlock, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) abort();
  struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER};
  sigaction(SIGSEGV, &action, &before);
  arena = reserved;
}

int64_t pager_faults(void) { return faults; }

static void* allocate(uint32_t blocks) {
  enter();
  uint32_t run = 0, looked = 0;
  for (uint32_t at = next_free; looked < 2 * kBlocks; ++at, ++looked) {
    if (at == kBlocks) at = 0, run = 0;
    run = used[at] ? 0 : run + 1;
    if (run < blocks) continue;
    uint32_t begin = at + 1 - blocks;
    for (uint32_t i = begin; i <= at; ++i) used[i] = 1;
    length_of[begin] = blocks;
    next_free = (at + 1) % kBlocks;
    leave();
    return address(begin);
  }
  leave();
  return NULL;
}

int posix_memalign(void** out, size_t alignment, size_t size) {
  static int (*real)(void**, size_t, size_t);
  if (!arena || size < kBlock) {
    if (!real) real = (int (*)(void**, size_t, size_t))dlsym(RTLD_NEXT, "posix_memalign");
    return real(out, alignment, size);
  }
  *out = allocate((size + kBlock - 1) / kBlock);
  return *out ? 0 : ENOMEM;
}

void free(void* memory) {
  static void (*real)(void*);
  if (!arena || (char*)memory < arena || (char*)memory >= arena + (size_t)kBlocks * kBlock) {
    if (!real) real = (void (*)(void*))dlsym(RTLD_NEXT, "free");
    real(memory);
    return;
  }
  enter();
  uint32_t begin = ((char*)memory - arena) / kBlock;
  for (uint32_t i = begin; i < begin + length_of[begin]; ++i) {
    drop(i);
    state[i] = kAbsent, used[i] = 0;
  }
  leave();
}
