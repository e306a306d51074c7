// Numbers by hash, in one flat array: synthesis looks up every value it computes, and most are new.
#pragma once
#include <cstdint>
#include <vector>

#include "search/synth/node.h"

namespace tessera::synth {

class HashIndex {
 public:
  HashIndex() : slots_(1024) {}

  // What was put under this hash; kNone where nothing was.
  uint32_t find(uint64_t hash) const {
    for (size_t at = hash & (slots_.size() - 1); slots_[at].value != kNone;
         at = (at + 1) & (slots_.size() - 1))
      if (slots_[at].hash == hash) return slots_[at].value;
    return kNone;
  }
  // Keeps what is there already.
  void put(uint64_t hash, uint32_t value) {
    if (2 * (used_ + 1) > slots_.size()) grow();
    size_t at = hash & (slots_.size() - 1);
    for (; slots_[at].value != kNone; at = (at + 1) & (slots_.size() - 1))
      if (slots_[at].hash == hash) return;
    slots_[at] = {hash, value};
    ++used_;
  }

 private:
  struct Slot {
    uint64_t hash = 0;
    uint32_t value = kNone;
  };
  void grow() {
    std::vector<Slot> old(4 * slots_.size());
    old.swap(slots_);
    used_ = 0;
    for (const Slot& s : old)
      if (s.value != kNone) put(s.hash, s.value);
  }

  std::vector<Slot> slots_;  // a power of two, at most half of them taken
  size_t used_ = 0;
};

}  // namespace tessera::synth
