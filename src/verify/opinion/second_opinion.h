// A second opinion on the equality of two programs, by another argument than the field's: laws of
// the operators over the reals, applied to terms over symbolic inputs, and Z3 where they do not
// suffice (Mirage §7's solver-based verifier). What it proves and what not: docs/decisions/0004.
#pragma once
#include <atomic>
#include <cstdint>
#include <string>

#include "ir/graph.h"

namespace tessera {

struct SecondOpinionOptions {
  std::string z3;      // its executable; empty: see find_z3()
  bool solver = true;  // false: normal forms only
  // Smaller instances are elements of the programs themselves: no axis that is folded is cut. Then
  // agreement is a proof for every branch, at these shapes.
  bool proof = false;
  double seconds = 20;   // for everything; normal forms get at most half of it
  int megabytes = 1024;  // for Z3
  uint64_t seed = 1;     // of the points where values are looked at
  const std::atomic<bool>* cancel = nullptr;
};

enum class Opinion {
  Agrees,      // all elements are proved equal wherever both programs are defined
  CannotTell,  // no proof, and no difference
  Disagrees,   // at some real inputs the programs differ; f64 shows it too
};
const char* name(Opinion);

struct SecondOpinion {
  Opinion opinion = Opinion::CannotTell;
  std::string what;       // one line: how it was proved, what is missing, or where they differ
  std::string shapes;     // of the inputs that were looked at, where smaller than the programs'
  int64_t elements = 0;   // of the outputs
  int64_t by_laws = 0;    // proved by normal forms
  int64_t by_solver = 0;  // proved by Z3
  double seconds = 0;
  std::string str() const;  // one line
};

// Both are kernel graphs with static shapes and the same interface.
SecondOpinion second_opinion(const Graph& spec, const Graph& candidate,
                             const SecondOpinionOptions& options = {});

}  // namespace tessera
