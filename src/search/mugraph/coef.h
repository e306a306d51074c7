// Exact coefficients of normal forms: q·√s with q rational and s a square-free positive integer.
// Arithmetic that leaves this set (overflow, sums of unlike roots) yields a `bad` coefficient.
#pragma once
#include <cstdint>

#include "base/rational.h"

namespace tessera::mugraph {

// A rational of two 64-bit terms in lowest terms; den 0 marks an overflow and is absorbing.
struct Q {
  int64_t num = 0, den = 1;

  Q() = default;
  Q(int64_t n) : num(n) {}  // NOLINT: an integer is a rational
  static Q ratio(__int128 n, __int128 d);
  static Q from(const Rational& r);

  bool bad() const { return den == 0; }
  bool zero() const { return num == 0 && den != 0; }
  bool integer() const { return den == 1; }
  bool even() const { return den == 1 && num % 2 == 0; }
  double value() const { return double(num) / double(den); }
  Rational rational() const { return Rational::ratio(num, den); }
  friend bool operator==(const Q&, const Q&) = default;
};

Q operator*(const Q& a, const Q& b);
Q operator+(const Q& a, const Q& b);
Q operator-(const Q& a, const Q& b);
Q operator-(const Q& a);
Q inverse(const Q& a);

struct Coef {
  Q q = 1;
  int64_t root = 1;  // square-free as far as primes below 2^10 are concerned

  Coef() = default;
  Coef(Q r) : q(r) {}        // NOLINT
  Coef(int64_t n) : q(n) {}  // NOLINT
  bool bad() const { return q.bad(); }
  bool zero() const { return q.zero(); }
  bool one() const { return root == 1 && q == Q(1); }
  bool rational() const { return root == 1; }
  double value() const;
  friend bool operator==(const Coef&, const Coef&) = default;
};

Coef operator*(const Coef& a, const Coef& b);
Coef operator/(const Coef& a, const Coef& b);
// Bad where the roots differ and neither term is zero.
Coef operator+(const Coef& a, const Coef& b);
Coef operator-(const Coef& a);
Coef magnitude(const Coef& a);
// c^e for integer e, or for half-integer e and c > 0; bad otherwise.
Coef power(const Coef& c, const Q& e);

}  // namespace tessera::mugraph
