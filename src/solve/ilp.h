// 0/1 integer linear programs: minimise cost·x over x in {0,1}ⁿ under linear constraints. A
// built-in exact branch and bound always works; HiGHS serves where it is found.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace tessera {

enum class Relation : uint8_t { LessEqual, Equal, GreaterEqual };

struct IlpConstraint {
  std::vector<std::pair<int, double>> terms;  // (variable, coefficient), each variable once
  Relation relation = Relation::LessEqual;
  double bound = 0;
};

struct Ilp {
  std::vector<double> cost;  // one per variable
  std::vector<IlpConstraint> constraints;

  int add_variable(double cost);
  void add(std::vector<std::pair<int, double>> terms, Relation relation, double bound);
  double value(const std::vector<bool>& x) const;
  bool feasible(const std::vector<bool>& x) const;
};

enum class IlpStatus : uint8_t {
  Optimal,     // proved
  Feasible,    // the budget ended; `bound` says how far from proved
  Infeasible,  // proved
  Unknown,     // the budget ended without any solution
};
const char* name(IlpStatus);

struct IlpResult {
  IlpStatus status = IlpStatus::Unknown;
  std::vector<bool> x;  // of Optimal and Feasible
  double value = 0;
  double bound = 0;  // no solution costs less
  int64_t nodes = 0;
  std::string solver;  // "built-in", or "HiGHS" and its version
  double gap() const { return value - bound; }
};

struct IlpOptions {
  int64_t max_nodes = 100'000;  // deterministic, unlike a time limit
  int root_steps = 200;         // of the bound's ascent, at the root and at other nodes
  int node_steps = 8;
  std::function<bool()> stopped;  // asked now and then, if any: ends the search like its budget
};

// The built-in solver: a depth-first search with propagation, bounded by Lagrangian relaxation.
// Multipliers of any value give a valid bound, so no rounding error can prove what is not so.
IlpResult solve_ilp(const Ilp& ilp, const IlpOptions& options = {});

// HiGHS, looked for once: the shared library $TESSERA_HIGHS, or libhighs.so of the system. Its
// version; null if there is none.
const char* highs_version();
// Requires highs_version().
IlpResult solve_ilp_highs(const Ilp& ilp);

}  // namespace tessera
