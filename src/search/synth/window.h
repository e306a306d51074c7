// Bottom-up enumeration over a few leaves: all programs of one operation, of two, of three …, one
// per value (STENSO, CGO'26, §4: stubs), and top-down steps that meet them (sketches with holes):
// what an operation with one known operand leaves of the target is looked up among the known
// values.
#pragma once
#include <cstdint>
#include <functional>
#include <set>
#include <vector>

#include "search/synth/egraph.h"

namespace tessera::synth {

// Operations that are tried, beyond + − · / , sums, products and transposes.
struct Grammar {
  bool quotients = false, roots = false, exponentials = false, order = false, diagonals = false,
       triangles = false;
  bool maxima = false, minima = false;
  int max_rank = 2;
  std::vector<Rational> constants;
  std::set<uint64_t> extents;  // as Form::Extent has them
};

struct WindowLimits {
  int64_t evaluations = 200'000;
  int max_size = 4;        // operations, views and constants not counted
  double seconds = 1e30;   // programs that cost more are not kept
  bool bound = true;       // nor those that cost more than one that was found
  double elements = 1e18;  // nor values with more elements
  bool holes = true;       // top-down steps too; without them a plain enumeration
  int operations = 0;      // that the target takes now: few are in reach of enumeration alone
  int64_t probes = 0;      // look-ups of sketches of two levels and more
};

struct WindowReport {
  int64_t evaluations = 0, values = 0, found = 0;
  bool complete = true;  // up to max_size
};

// Looks for programs over `leaves` that compute `target` at no more than limits.seconds, less once
// one is found, or another class that `live` holds, and adds what it finds as ways to compute
// those. Deterministic.
WindowReport search_window(EGraph& graph, const Grammar& grammar,
                           const std::vector<ValueId>& leaves, ValueId target,
                           const std::vector<bool>& live, const WindowLimits& limits,
                           const std::function<bool()>& stopped);

}  // namespace tessera::synth
