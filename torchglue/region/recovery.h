// What can be done for a region whose rows have run out of memory.
#pragma once

#include "torchglue/region/micro_batch_loop.h"
#include "torchglue/region/region.h"

namespace koila {

// Answers the loop's questions for one region. Thread contract: the region's.
class Recovery final : public MicroBatchLoop::Host {
 public:
  // What becomes of micro-batch 0, which runs beside the program: it is what fails, and half made; or it stands by, and can be made again.
  enum class FirstFrame { kFails, kStandsBy };
  Recovery(Region& region, FirstFrame first_frame) : region_(region), first_frame_(first_frame) {}

  bool ran_out(const std::exception& error) override;
  std::exception_ptr keep(const std::exception& error) override;
  bool try_again(int& tries) override;
  bool make_room() override;
  bool shrink(int64_t rows) override;
  bool serve() override;
  void clean_up() override;

 private:
  Region& region_;
  FirstFrame first_frame_;
};

}  // namespace koila
