// Layouts of the tiles inside a kernel, as an integer program over one variable per tile and layout
// (Mirage, OSDI'25, §6, tensor layouts). Targets say which terms count: bulk copies and banks for
// GPUs, strided access for all.
#pragma once

#include <string>
#include <vector>

#include "cost/target.h"
#include "ir/graph.h"

namespace tessera {

struct TileLayout {
  int innermost = -1;     // axis whose neighbours lie side by side; -1: a scalar
  bool swizzled = false;  // rows are permuted so that a column meets every bank once
  friend bool operator==(const TileLayout&, const TileLayout&) = default;
};

struct TileLayouts {
  std::vector<TileLayout> layouts;  // by tensor of the block graph; arguments and results row-major
  double seconds = 0;               // of one block and iteration, beyond what no layout avoids
  bool optimal = true;
  double gap = 0;
  std::string str(const Graph& block_graph) const;
};

// For a valid block graph with static shapes.
TileLayouts choose_tile_layouts(const Graph& block_graph, const Target& target);

}  // namespace tessera
