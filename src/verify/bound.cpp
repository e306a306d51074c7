#include "verify/bound.h"

#include <algorithm>
#include <cmath>

#include "base/text.h"
#include "verify/degree_algebra.h"

namespace tessera {
namespace {

using degree_algebra::log_add;

constexpr double kMostSigns = 6;  // of 2^6 patterns one is hit in as many draws as there may be

}  // namespace

DrawBound draw_bound(const Degrees& a, const Degrees& b, const Characters& characters) {
  DrawBound r;
  std::vector<std::string> granted;
  constexpr double log_p = 59, log_q = log_p - 1;
  // Of 2^29 chains, those at which a number vanishes that is none: at most 16 of up to 950 bits.
  constexpr double kVanishes = -25;
  const double degree = std::max({a.numerator + b.denominator, b.numerator + a.denominator, 1.0});
  const double log_terms =
      log_add(a.log_terms_num + b.log_terms_den, b.log_terms_num + a.log_terms_den) - 1;
  const double roots = characters.roots;
  const bool independent = !characters.told && roots > kMostSigns;  // as is taken for granted
  r.text = "degree " + significant(degree, 4);

  // Roots: the product of all conjugates is a polynomial; arguments are conditioned on residues.
  double log_miss = std::log2(degree) - log_p;
  const double log_roots = roots <= 0 ? 0 : roots <= 16 ? 2 * roots : std::log2(roots) + 4;
  log_miss += log_roots;
  if (roots > 0) {
    r.text += ", roots " + significant(roots, 4);
    if (roots > 16 || independent)
      granted.push_back("many square roots behave as independent variables");
  }
  if (const double m = a.unknowns + b.unknowns; m > 0) {
    const double d = 2 * std::max({a.unknown_degree, b.unknown_degree, 1.0});
    r.text += ", unknown functions " + significant(m, 4);
    log_miss = log_add(log_miss, 2 * std::log2(m) + std::log2(d) - log_p + log_roots);
  }
  if (a.has_exp || b.has_exp) {
    const double k = std::max(1.0, log_terms + 1);
    const double d = std::max({a.exponent_degree, b.exponent_degree, 1.0});
    const double size = std::max(a.log_exponent_size, 0.0) + 1 + std::max(b.log_exponent_size, 0.0);
    r.text += ", exponentials 2^" + decimals(k, 1) + " of degree " + significant(d, 4);
    const bool hard = a.hard_exponent || b.hard_exponent;
    double best = 0, best_bits = 0;
    if (!hard)
      for (double log_b = 3; log_b < log_q; log_b += 0.5) {
        const double miss = log_add(k + std::log2(d) - log_b, size + d * log_b + 2 - log_q);
        if (miss < best) best = miss, best_bits = log_b;
      }
    if (best < -4) {
      log_miss = log_add(log_miss, best);
      r.exponent_bound = uint64_t(std::exp2(std::floor(best_bits)));
      r.text += " drawn below 2^" + decimals(std::floor(best_bits), 0);
      log_miss += 0.5;  // the bound was optimised over half steps
    } else {
      log_miss = log_add(log_miss, std::min(-1.0, k + std::log2(d) - log_q));
      granted.push_back(
          "a sum of exponentials vanishes at random exponents with probability k·d/q");
    }
  }
  log_miss = log_add(log_miss, kVanishes);
  if (!(log_miss < 0)) log_miss = 0;  // of degrees beyond the primes nothing is known
  // Sign tests: a pattern on which the programs differ must be hit. Roots that depend on one
  // another are signs, too.
  // Where signs decide, they may decide which roots there are, and which depend on which.
  const double of_roots = characters.signs > 0 ? 2 * roots : characters.dependent,
               signs = characters.signs + (independent ? 0 : of_roots);
  if (signs > 0) {
    r.text += ", sign tests " + significant(signs, 4);
    const double weil = std::exp2(std::log2(signs * degree) - log_p / 2);
    const double hit = std::exp2(-signs) * (1 - std::exp2(log_miss)) - weil;
    log_miss = hit <= 0 || signs > kMostSigns ? 0 : std::log1p(-hit) / std::log(2.0);
  }
  if (a.sampled_integers || b.sampled_integers) {
    granted.push_back("integer inputs were sampled");
    r.branches = false;
  }
  r.log2_miss = log_miss;
  r.basis = "proved";
  for (size_t i = 0; i < granted.size(); i++)
    r.basis += (i == 0 ? ", assuming that " : " and that ") + granted[i];
  return r;
}

}  // namespace tessera
