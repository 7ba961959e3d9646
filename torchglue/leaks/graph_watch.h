// Watches for graphs that the program keeps from step to step.
#pragma once

#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

namespace koila {

// Note [Graphs that add up]
// After `total += loss` the graphs of all steps hang on `total`. Their saved tensors went with the backward pass, so no tensor adds up, and the nodes
// do: 0.5 to 1 KiB each, on the heap of the host, where no account of tensors shows them. So now and then, in a long run ever more rarely, the heap is asked what is in
// use (glibc's mallinfo2, 0.1 ms), tensors taken off; when that grows throughout, the program is searched for what keeps old graphs.
// What is found goes to the report as a leak with graph_nodes. Other growth of the heap is none of koila's, and is not reported.
class GraphWatch {
 public:
  // At the end of an outermost backward pass; see Note [Looking into the program].
  void after_step(bool may_search);
  // Nodes with a lower sequence number were made before the last two steps. 0 until there were that many.
  uint64_t old_before() const { return boundaries_.size() < kBoundaries ? 0 : boundaries_.front(); }

 private:
  static constexpr size_t kBoundaries = 3;

  void search(int64_t per_step, int64_t grown);

  int64_t steps_ = 0;
  int64_t next_look_ = 16;  // before it, much is made once
  int64_t next_search_ = 0;
  std::deque<uint64_t> boundaries_;                     // sequence numbers at the ends of the last steps
  std::vector<std::pair<int64_t, int64_t>> looks_;      // step, and bytes of the heap that are no tensors
  std::pair<int64_t, int64_t> first_ = {0, 0};          // the first look
};

}  // namespace koila
