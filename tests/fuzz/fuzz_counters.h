// Counts what a fuzz target met, so that a run that exercised only one branch can be told a
// failure.
#pragma once

#include <cstdint>

struct FuzzCounters {
  uint64_t accepted = 0;
  uint64_t rejected = 0;
};

extern FuzzCounters fuzz_counters;
