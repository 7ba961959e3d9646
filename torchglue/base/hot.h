// Thread-local variables that each operator and each piece of memory asks for.
#pragma once

// Note [Hot thread-local variables]
// Of a library that is loaded late a thread-local variable is a call of the loader's, some fifteen times an operator. With this model its place is known when the library is
// loaded, in the room that the C library keeps for such libraries in every thread (1664 bytes as a rule). The adapter takes some 300 of them, whatever few of its variables are marked.
#define KOILA_HOT [[gnu::tls_model("initial-exec")]]
