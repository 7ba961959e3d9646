// The fallback on the interceptor's dispatch key: every operator call of the owner thread comes here first.
#pragma once

namespace koila {

// Puts the interceptor in for the calling thread, for good.
void intercept_this_thread();

}  // namespace koila
