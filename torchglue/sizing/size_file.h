// KOILA_CACHE: what was learned of steps outlives the process.
#pragma once

#include <cstdint>

namespace koila {

class Signatures;

// Note [Sizes in a file]
// The seeds of a step and what its policy knows are written after the first steps that were split, and then ever less often; a process that begins takes
// up what the file has, and splits a like step from its first operator on, at the size that the others settled on. What the file says is
// checked like any guess: a seed that is none costs speed, and a size that does not fit is halved.
//
// Thread contract: the owner of the step.
class SizeFile {
 public:
  // `signatures` learn what the file knows. Does nothing where there is no KOILA_CACHE, and says why where it cannot be used.
  void load(Signatures& signatures);
  // The outermost backward pass is over.
  void step_over(const Signatures& signatures);

 private:
  void save(const Signatures& signatures);

  bool usable_ = false;  // there is one, and it is koila's
  int64_t steps_ = 0;  // since something was known
  int64_t due_ = 1;    // step after which it is written
};

}  // namespace koila
