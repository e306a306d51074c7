// How tests talk to the stand-in for CUDA's driver (cuda_driver.cpp), besides its driver functions.
// Exported without decoration, so that Python's ctypes can call them as well.
#pragma once
#include <cstdint>

extern "C" {
// Back to the beginning, with so many devices of one kind; limits in bytes.
void stand_in_reset(int devices, int major, int minor, int64_t memory, int64_t shared);
void stand_in_version(int version);  // of the driver, 1000 · major + 10 · minor
void stand_in_clusters(int count);   // for how many thread-block clusters there is room
// The `nth` call from now on (1: the next) of a function, such as "cuMemAlloc_v2", gives `result`.
void stand_in_fail(const char* function, int nth, int result);
int stand_in_calls(const char* function);  // so far
int64_t stand_in_allocated();              // bytes in use, all devices
int stand_in_contexts();                   // primary contexts in use
int stand_in_threads_run();                // threads of kernels that have run
// For stand-ins of libraries: work(data) is done when the stream's turn comes, perhaps more than
// once (in a graph); `data` is then freed by release(data). 0, or an error of the driver.
int stand_in_enqueue(void* stream, int (*work)(void*), void (*release)(void*), void* data);
}
