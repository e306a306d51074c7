// Programs with their decisions as unknowns: what makes a field test speak of every branch.
#pragma once
#include <string>
#include <variant>

#include "ir/graph.h"

namespace tessera {

// Whether the program decides anything by its inputs (comparisons, maxima, casts, indices, …) or
// computes with integers or bools: whether random numbers could miss one of its branches.
bool has_decisions(const Graph& graph);

// Whether results may jump where real inputs move: only then does it matter what happens where two
// numbers are exactly equal, since continuous programs that agree elsewhere agree there too.
bool has_jumps(const Graph& graph);
bool jumps(const Graph& graph, const Op& op);

// Whether an integer type or bool holds the number: constants that it does not hold wrap.
bool holds(DType dtype, const Rational& value);

// Whether a maximum over windows may see padding alone: then it is −∞.
bool is_infinite_in_padding(const Graph& graph, const Op& op);
// Whether a constant's or padding's infinity is multiplied by what may be negative or 0 for all
// that its form says: fields know −∞ alone.
bool turns_infinities(const Graph& graph);

struct NotAbstracted {
  std::string why;
};

// The program over f64 alone, for fields whose signs are unknown functions (Signs::Unknown).
//
// Every decision of numbers is written by the sign s of its argument r = a − b, which that field
// takes as an unknown odd function: a > b is (s² + s)/2, a = b is 1 − s². `where(c, x, y)` is
// y + c·(x − y), `and` a product, `not` 1 − c. Bools and integers are numbers; bool and integer
// inputs are variables like any other. Integers stand for their values before they wrap: ring
// operators commute with wrapping, everything else is an unknown function of such values unless
// interval arithmetic shows that they fit their dtype. Integers a > b is decided by the sign of
// a − b − 1/2, so that nothing ties. An index that depends on inputs selects a random position, if
// all positions of the table are computed alike.
//
// Two programs equal in such a field at a random point are equal as polynomials in inputs and
// decisions (Schwartz–Zippel), so for every outcome of every decision, however rare: for all
// inputs at which both are defined. The reverse does not hold: laws that need c·c = c or that one
// decision implies another are no polynomial identities.
//
// Constants, ranges and what is made of them alone are decided as they are.
std::variant<Graph, NotAbstracted> abstract_decisions(const Graph& graph);

}  // namespace tessera
