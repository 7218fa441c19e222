// The one translation unit that holds volk. Its symbols are hidden, so that a program with a volk
// of its own keeps its function pointers and we keep ours.
#include <dlfcn.h>  // outside: these symbols are not ours

#define VOLK_IMPLEMENTATION
#pragma GCC visibility push(hidden)
#include <volk.h>
#pragma GCC visibility pop
