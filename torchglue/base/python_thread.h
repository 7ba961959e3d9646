// The end of a thread of Python's.
#pragma once

namespace koila {

// Note [The end of a Python thread]
// threading.Thread.join() of Python 3.12 and before returns when the thread's state in Python is gone, which is before the thread itself has ended: another thread
// may train already while the first is still on its way out. What has to be done at a thread's end is therefore done where Python clears the thread's state: the last
// moment that every join waits for.

// Calls what is given on this thread where Python clears the thread's state, without Python's lock. Does nothing on a thread that Python does not know. At most one
// function for each thread. Takes Python's lock.
void at_python_thread_end(void (*ends)());

}  // namespace koila
