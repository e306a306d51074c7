// Worst-case degrees of what a program computes, its exponentials and unknown functions, by one
// pass over its graph. The derivation is in docs/verifier.md.
#pragma once
#include "eval/field_array.h"
#include "ir/graph.h"

namespace tessera {

// What one output element is, at worst: a quotient N/D of sums of monomials times exponentials.
struct Degrees {
  double numerator = 0, denominator = 0;        // total degrees
  double log_terms_num = 0, log_terms_den = 0;  // log2 of the number of exponentials
  double exponent_degree = 0;                   // of the polynomials in the exponents
  double log_exponent_size = 0;  // log2 of Σ|integer coefficients| of an exponent, N and D together
  bool has_exp = false;
  bool hard_exponent = false;     // exponents with quotients, roots or exponentials inside
  double unknowns = 0;            // applications of functions known by name only
  double unknown_degree = 0;      // largest degree of a difference of two of their arguments
  bool sampled_integers = false;  // depends on integer inputs, or indices known by name only
};
// The worst of all outputs, each figure by itself. The graph has static shapes.
// With unknown signs every decision is a function known by name, and nothing a sign test.
Degrees degrees(const Graph& graph, Signs signs = Signs::Character);

}  // namespace tessera
