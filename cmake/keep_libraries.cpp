// Part of every program of a sanitizer build: libraries stay loaded once they are, so that reports
// can name the library of an address, and suppressions (.ci/*.txt) can tell drivers from our own
// code.
extern "C" int dlclose(void*) noexcept { return 0; }
