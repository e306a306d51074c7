// What the host bodies of the device functions (host.cuh) ask of the emulator (emulator.h). Plain
// data and functions, so that a kernel in a shared library of its own can be bound to it.
#pragma once

namespace ts::host {

enum class Access { ReadGlobal, WriteGlobal, AtomicGlobal, ReadShared, WriteShared };

// Rows of bytes in shared and in global memory, one after the other in shared memory. Of rows and
// of bytes in them only those from `first` to before `last` lie in the global array: others are
// read as zeros and not written.
struct Rows {
  char* shared;
  char* global;     // of row 0, byte 0
  long long pitch;  // bytes between rows in global memory
  int rows, row_bytes;
  int first_row, last_row, first_byte, last_byte;
  // Shared memory: bits 4–6 of an offset are changed by bits 7–9, of rows of 64 bytes two of them,
  // of 32 one.
  bool swizzled;
};

// Bytes of shared memory.
struct Span {
  const void* from;
  int bytes;
};

// Lines are those of the kernel's source; a fault is thrown from inside the call.
struct Api {
  int (*thread)();         // of the block
  int (*threads)();        // in the block
  int (*block)(int axis);  // of the grid
  int (*grid)(int axis);
  char* (*shared)();
  void (*fault)(const char* what, int line);  // of whatever PTX leaves undefined
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
  // Between blocks: what the thread wrote, and whoever it has met at a barrier, is there for blocks
  // that learn of a ticket taken later; and what blocks fenced whose tickets it has seen is there
  // for it.
  void (*fence_device)(int line);
  // The counter as it was; it goes up by one, and from `count` - 1 back to 0.
  unsigned (*take_ticket)(unsigned* counter, unsigned count, int line);
  // Of all threads of x × y × z neighbouring blocks.
  void (*sync_cluster)(int x, int y, int z, int line);

  // From sm_90 on. Barriers in shared memory (PTX: mbarrier): a phase ends when `count` threads
  // have arrived and all bytes that were announced have been copied.
  void (*barrier_init)(void* barrier, int count, int line);
  void (*barrier_arrive)(void* barrier, int bytes, int line);  // announces bytes first
  void (*barrier_wait)(void* barrier, int parity, int line);   // for the end of a phase
  // A copy by the asynchronous proxy, in rows; global to shared memory, told to `barrier`.
  void (*copy_rows)(const Rows& rows, void* barrier, int line);
  // Shared to global memory, done when it is waited for.
  void (*store_rows)(const Rows& rows, int line);
  void (*store_commit)(int line);
  void (*store_wait)(int pending, int line);
  // What the thread has written to shared memory becomes visible to the asynchronous proxy.
  void (*fence_async)(int line);
  // Accumulators are as they should be; products follow, until they are committed.
  void (*product_begin)(int line);
  // A matrix product of the asynchronous proxy by the four warps of a group: `all` computes it over
  // what each thread brought, once it is waited for; until then `d` (`count` floats) is not to be
  // read and `reads` must stay as they are, which the first lane of each warp tells.
  void (*product)(float* d, int count, const void* mine, int mine_bytes,
                  void (*all)(void* const* threads), const Span* reads, int num_reads, int line);
  void (*product_commit)(int line);
  void (*product_wait)(int pending, int line);
};

}  // namespace ts::host
