// What was found for one region as text, so that a later run of the same search takes it up: the
// formulations that have plans, the plans, and what was counted on the way.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "search/engine.h"
#include "search/mugraph/solve.h"

namespace tessera::mugraph {

struct StoredRegion {
  struct StoredWorld {
    Formulation formulation;
    int split_axis = -1;  // whose reductions are split; -1: none
    bool as_written = false;
  };
  std::vector<StoredWorld> worlds;
  std::vector<Choice> choices;
  SearchReport counted;  // what the region added to the run's counters
  bool limited = false;
  std::string detail;
};

std::string print_region(const StoredRegion& region);
// Nothing where the text does not read.
std::optional<StoredRegion> read_region(const std::string& text);

}  // namespace tessera::mugraph
