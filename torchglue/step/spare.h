// What koila holds and can make again, let go of by the allocation that has no room.
#pragma once

#include <cstdint>

namespace koila {

// Note [Room in the allocator]
// In a backward pass the engine calls kernels, sums gradients and runs hooks outside of any region. What runs out there could not be made again, and there is nothing to halve. But the regions
// that the pass has not come to hold the graph of their first micro-batch, which only saves them one run of it. The allocator asks for these before it fails. In the forward pass it
// does not: each operator that joins would run all before it once more.

// Lets go of the first micro-batch of every live region that is not at work. False when there was none. The owner's thread only. Calls no allocator; destructors of the program's may run.
// Defined in region/of_session.cc, since regions lie above.
bool spare_first_frames();

// Releases the regions that nobody can ask for anything any more. False when there was none. Defined in region/of_session.cc.
bool release_unreachable_regions();

// Lets go of the gradients that the pass under way keeps beside the engine, see Note [Past a bridge], if that is all that is lacking: without koila the allocation would then have had its room. Where
// more is lacking they are what the step can be made from. False where nothing was let go of. The owner's thread only.
// Defined in rescue/past_bridges.cc.
bool spare_gradients(int64_t lacking);

}  // namespace koila
