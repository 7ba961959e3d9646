// What was learned about steps in micro-batches, in a file (KOILA_CACHE): a process that meets a like step starts from there.
//
// The file is JSON, for people to look into and to delete. Steps of several versions of torch, of several devices and from any number of
// processes at once stand in it, the ones last used first. Nothing in it is needed: whatever is wrong with it costs what was learned, one line,
// and never the program, so nothing here throws.
//
// A file that is not koila's is never written to, whatever KOILA_CACHE says. Neither is one that is damaged or of a newer koila: it may be worth
// more than what would be put in its place.
//
// Beside the file stand FILE.lock, which stays, for a lock that is deleted is held by two, and FILE.koila-partial while it is written. What is
// read is always one whole file: it is replaced by a rename. A new file takes its permissions from the umask like any other of the user's: who
// shares files with a group shares this one. One that was there keeps its own, and is left alone by those who may not write to it.
//
// Compiled into libkoila.so and into the adapter. No function keeps anything between calls; all may be called from any thread.
#ifndef KOILA_RUNTIME_SIZE_CACHE_H_
#define KOILA_RUNTIME_SIZE_CACHE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace koila {

// The least recently used steps go, and in a step's lists what stands in front. A step of more seeds is not kept: some of them would split it
// otherwise than all.
constexpr std::size_t kCachedSteps = 256;
constexpr std::size_t kCachedSeeds = 32;
constexpr std::size_t kCachedObservations = 32;
constexpr std::size_t kCachedFailures = 16;
constexpr std::size_t kCachedChoices = 32;
constexpr std::size_t kCachedNameBytes = 200;  // of an operator, a device, a version of torch
constexpr std::size_t kCacheFileBytes = 4U << 20;

// Where a like step starts to be split.
struct CachedSeed {
  std::string op;         // "aten::linear"; with its overload "aten::add.Tensor"
  std::uint64_t key = 0;  // of operator, shapes, types and grad mode; the same in every process of one version of torch
  int times = 1;          // seeds of the step that begin with that key; from 1
  int argument = -1;      // -1: none
  int element = -1;       // within the argument; -1: none
  std::int64_t dim = 0;   // its placement, as Shard(dim, outer, inner); dim from 0 to 63
  std::int64_t outer = 1;
  std::int64_t inner = 1;

  friend bool operator==(const CachedSeed&, const CachedSeed&) = default;
};

// A step in micro-batches of `rows` took so many bytes beyond what was there, and so long.
struct CachedObservation {
  std::int64_t rows = 0;
  std::int64_t bytes = 0;
  double seconds = 0;

  friend bool operator==(const CachedObservation&, const CachedObservation&) = default;
};

// Micro-batches of `rows` ran out of memory, with so many bytes available when the step began.
struct CachedFailure {
  std::int64_t rows = 0;
  std::int64_t available = 0;

  friend bool operator==(const CachedFailure&, const CachedFailure&) = default;
};

// The size that steps settled on with so many bytes available, in coarse steps. `timed`: for its speed (KOILA_POLICY=fastest), and not by memory alone. A file in
// which that does not stand is of an earlier koila, of whose sizes nobody knows.
struct CachedChoice {
  std::int64_t available = 0;
  std::int64_t rows = 0;
  bool timed = true;

  friend bool operator==(const CachedChoice&, const CachedChoice&) = default;
};

struct CachedStep {
  std::uint64_t id = 0;  // of the signature: over the keys of all seeds
  std::int64_t batch = 0;
  std::string device;  // "cpu", or a CUDA device's name
  std::vector<CachedSeed> seeds;
  std::vector<CachedObservation> observations;  // the newest last, as in the lists below
  std::vector<CachedFailure> failures;
  std::vector<CachedChoice> choices;
  std::int64_t used = 0;  // Unix seconds: when it was last learned from

  friend bool operator==(const CachedStep&, const CachedStep&) = default;
};

struct SizeCacheFile {
  std::vector<CachedStep> steps;  // the last used first; no two of the same id, batch and device
  std::string problem;            // one line, "" when there is none
  bool ours = true;               // absent, empty or a cache of koila's: it may be replaced
};

// The steps of that version of torch, each checked: rows from 1 to batch, a placement that multiplies out, nothing negative, no time to come in
// `used`. A step that is wrong is left out, and the line says so. A file that is not there is no problem, a folder that is not there is.
SizeCacheFile read_size_cache(const std::string& path, const std::string& torch_version);

struct SizeCacheWritten {
  std::string problem;  // one line of what went wrong, "" when nothing did
  bool busy = false;    // others were writing for as long as it could wait (some 0.2 s); nothing was written, and later it may be
};

// Puts `steps` into the file beside what others put there since. A step that is there already (same version of torch, id, batch and device) is
// replaced, but for observations of rows, failures of available bytes, and choices of available bytes and kind, that only the file has: these stay. Steps that
// read_size_cache would leave out are left out, and the line says so; bytes that are no UTF-8 come back as U+FFFD.
SizeCacheWritten write_size_cache(const std::string& path, const std::string& torch_version, const std::vector<CachedStep>& steps);

// Memory in coarse steps, so that like conditions are told from others: eight steps to a doubling, rounded down. 0 for what is negative.
std::int64_t coarse(std::int64_t available);

}  // namespace koila

#endif  // KOILA_RUNTIME_SIZE_CACHE_H_
