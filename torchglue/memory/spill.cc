#include "torchglue/memory/spill.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>

#include "torchglue/base/process.h"

namespace koila {

namespace {

struct Mapping {
  void* data;
  size_t bytes;
};

void unmap(void* context) {
  auto* mapping = static_cast<Mapping*>(context);
  ::munmap(mapping->data, mapping->bytes);
  delete mapping;
}

[[noreturn]] void fail(const char* what, const std::string& folder, size_t bytes, int error) {
  process().runtime->on_note(("KOILA_SPILL_DIR=" + folder + ": " + std::strerror(error) + ". What was to be kept there had to fit into the budget.").c_str());
  TORCH_CHECK_WITH(OutOfMemoryError, false, "koila: ", what, " ", bytes, " bytes in KOILA_SPILL_DIR ", folder, ": ", std::strerror(error));
}

}  // namespace

at::DataPtr spill_allocate(size_t bytes) {
  if (bytes == 0) return {nullptr, at::Device(at::kCPU)};
  const std::string folder = process().runtime->settings->spill_dir;
  int file = ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (file < 0) {  // a file system without O_TMPFILE
    std::string name = folder + "/koila-spill-XXXXXX";
    file = ::mkostemp(name.data(), O_CLOEXEC);
    if (file >= 0) ::unlink(name.c_str());
  }
  // Beyond this limit a write is a signal, and no error.
  struct rlimit limit {};
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && bytes > limit.rlim_cur) {
    if (file >= 0) ::close(file);
    fail("no room to spill", folder, bytes, EFBIG);
  }
  if (file < 0) fail("cannot make a spill file of", folder, bytes, errno);
  if (const int error = ::posix_fallocate(file, 0, static_cast<off_t>(bytes)); error != 0) {
    ::close(file);
    fail("no room to spill", folder, bytes, error);
  }
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  const int error = errno;
  ::close(file);
  if (data == MAP_FAILED) fail("cannot map a spill file of", folder, bytes, error);
  return {data, new Mapping{data, bytes}, &unmap, at::Device(at::kCPU)};
}

void spill_read_ahead(const void* data, size_t bytes) {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const uintptr_t begin = reinterpret_cast<uintptr_t>(data) / page * page;
  ::madvise(reinterpret_cast<void*>(begin), reinterpret_cast<uintptr_t>(data) + bytes - begin, MADV_WILLNEED);
}

}  // namespace koila
