// What the host bodies of the device functions (host.cuh) ask of the emulator (emulator.h). Plain
// data and functions, so that a kernel in a shared library of its own can be bound to it.
#pragma once

namespace ts::host {

enum class Access { ReadGlobal, WriteGlobal, AtomicGlobal, ReadShared, WriteShared };

// Lines are those of the kernel's source; a fault is thrown from inside the call.
struct Api {
  int (*thread)();         // of the block
  int (*threads)();        // in the block
  int (*block)(int axis);  // of the grid
  int (*grid)(int axis);
  char* (*shared)();
  void (*access)(Access access, const void* address, int bytes, int line);
  // Named barrier `id`, complete when `threads` threads have arrived, of which some wait.
  void (*barrier)(int id, int threads, bool wait, int line);
  // All lanes of `mask` meet; the last one runs `all` over what each lane brought. Only where
  // `orders` do the lanes see each other's memory afterwards.
  void (*collective)(const char* name, unsigned mask, void* mine,
                     void (*all)(void* const* lanes, unsigned mask), bool orders, int line);
  // Global to shared memory, done when it is waited for; bytes beyond `read` become zeros.
  void (*copy_async)(void* to, const void* from, int bytes, int read, int line);
  void (*copy_commit)(int line);
  void (*copy_wait)(int pending, int line);
};

}  // namespace ts::host
