#include "search/mugraph/coef.h"

#include <cmath>
#include <numeric>

namespace tessera::mugraph {
namespace {

__extension__ typedef __int128 Wide;

Q overflow() {
  Q q;
  q.den = 0;
  return q;
}

Wide gcd(Wide a, Wide b) {
  if (a < 0) a = -a;
  if (b < 0) b = -b;
  while (b != 0) {
    if (a <= INT64_MAX && b <= INT64_MAX) return std::gcd(int64_t(a), int64_t(b));
    Wide t = a % b;
    a = b;
    b = t;
  }
  return a;
}

// n = outside²·inside; exact for the primes below 1024 and for a remaining perfect square.
void split_square(int64_t n, int64_t& outside, int64_t& inside) {
  outside = 1;
  inside = 1;
  for (int64_t p = 2; p < 1024 && p * p <= n; ++p) {
    while (n % (p * p) == 0) {
      n /= p * p;
      outside *= p;
    }
    if (n % p == 0) {
      n /= p;
      inside *= p;
    }
  }
  auto r = int64_t(std::llround(std::sqrt(double(n))));
  if (r > 1 && r <= 3037000499 && r * r == n)
    outside *= r;
  else
    inside *= n;
}

}  // namespace

Q Q::ratio(__int128 n, __int128 d) {
  if (d == 0) return overflow();
  if (d < 0) {
    n = -n;
    d = -d;
  }
  Wide g = gcd(n, d);
  if (g > 1) {
    n /= g;
    d /= g;
  }
  if (n > INT64_MAX || n < -INT64_MAX || d > INT64_MAX) return overflow();
  Q q;
  q.num = int64_t(n);
  q.den = int64_t(d);
  return q;
}

Q Q::from(const Rational& r) {
  if (!r.finite()) return overflow();
  Wide n = r.num(), d = r.den();
  int e = r.exp2();
  if (e > 62 || e < -62) return overflow();
  if (e > 0) n *= Wide(1) << e;
  if (e < 0) d *= Wide(1) << -e;
  return ratio(n, d);
}

Q operator*(const Q& a, const Q& b) {
  if (a.bad() || b.bad()) return overflow();
  return Q::ratio(Wide(a.num) * b.num, Wide(a.den) * b.den);
}
Q operator+(const Q& a, const Q& b) {
  if (a.bad() || b.bad()) return overflow();
  if (a.den == 1 && b.den == 1) return Q::ratio(Wide(a.num) + b.num, 1);
  return Q::ratio(Wide(a.num) * b.den + Wide(b.num) * a.den, Wide(a.den) * b.den);
}
Q operator-(const Q& a) {
  Q q = a;
  q.num = -q.num;
  return q;
}
Q operator-(const Q& a, const Q& b) { return a + (-b); }
Q inverse(const Q& a) { return a.bad() ? a : Q::ratio(a.den, a.num); }

double Coef::value() const { return q.value() * std::sqrt(double(root)); }

Coef operator*(const Coef& a, const Coef& b) {
  Coef c(a.q * b.q);
  if (a.root == 1 || b.root == 1) {
    c.root = a.root * b.root;
    return c;
  }
  int64_t g = std::gcd(a.root, b.root);
  Wide r = Wide(a.root / g) * (b.root / g);
  if (r > INT64_MAX) return Coef(overflow());
  c.root = int64_t(r);
  c.q = c.q * Q(g);
  return c;
}

Coef operator/(const Coef& a, const Coef& b) { return a * power(b, -1); }

Coef operator+(const Coef& a, const Coef& b) {
  if (a.zero()) return b;
  if (b.zero()) return a;
  if (a.root != b.root) return Coef(overflow());
  Coef c(a.q + b.q);
  if (!c.zero()) c.root = a.root;
  return c;
}

Coef operator-(const Coef& a) {
  Coef c = a;
  c.q = -c.q;
  return c;
}

Coef magnitude(const Coef& a) { return a.q.num < 0 ? -a : a; }

Coef power(const Coef& c, const Q& e) {
  if (c.bad() || e.bad()) return Coef(overflow());
  if (e.zero()) return 1;
  if (c.one()) return 1;
  if (e.den > 2 || (e.den == 2 && (c.q.num <= 0 || c.root != 1))) return Coef(overflow());
  if (c.zero()) return e.num > 0 ? Coef(0) : Coef(overflow());
  int64_t n = e.num < 0 ? -e.num : e.num;
  if (n > 64) return Coef(overflow());
  Coef base = c;
  if (e.den == 2) {  // √(n/d) = √(n·d)/d
    Wide nd = Wide(c.q.num) * c.q.den;
    if (nd > INT64_MAX) {
      int64_t on, in, od, id;
      split_square(c.q.num, on, in);
      split_square(c.q.den, od, id);
      if (in != 1 || id != 1) return Coef(overflow());
      base = Coef(Q::ratio(on, od));
    } else {
      int64_t outside, inside;
      split_square(int64_t(nd), outside, inside);
      base = Coef(Q::ratio(outside, c.q.den));
      base.root = inside;
    }
  }
  Coef r = 1;
  for (int64_t i = 0; i < n; ++i) r = r * base;
  if (e.num < 0) {  // 1/(q√s) = √s/(q·s)
    Coef inv(inverse(r.q * Q(r.root)));
    inv.root = r.root;
    r = inv;
  }
  return r;
}

}  // namespace tessera::mugraph
