// Programs over integers and bools alone, run exactly on random and edge values.
#pragma once
#include <optional>

#include "verify/funnel.h"

namespace tessera {

// No floating-point tensor at any level.
bool is_integer_program(const Graph& graph);

struct IntegerTest {
  std::vector<FieldDraw> draws;
  std::optional<Counterexample> counterexample;
  bool cancelled = false;
};
// Programs that compute element by element from few narrow integers and bools: both are run at all
// values that these can take together, which proves them equal or not. Nothing where there are
// more.
std::optional<IntegerTest> exhaust(const Graph& spec, const Graph& candidate);
IntegerTest test_integers(const Graph& spec, const Graph& candidate, uint64_t seed, int draws,
                          const VerifyOptions& options);
IntegerTest replay_integers(const Graph& spec, const Graph& candidate, const FieldDraw& draw);

}  // namespace tessera
