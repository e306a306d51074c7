#include "base/rational.h"

#include <charconv>
#include <cmath>

namespace tessera {
namespace {

using Wide = __int128;
constexpr Wide kBound = Wide(1) << 62;

Wide positive_gcd(Wide a, Wide b) {
  if (a < 0) a = -a;
  while (b != 0) {
    Wide t = a % b;
    a = b;
    b = t;
  }
  return a == 0 ? 1 : a;
}

bool fits(Wide x) { return x < kBound && x > -kBound; }

std::optional<Rational> reduced(Wide num, Wide den) {
  if (den < 0) {
    num = -num;
    den = -den;
  }
  Wide g = positive_gcd(num, den);
  num /= g;
  den /= g;
  if (!fits(num) || !fits(den)) return std::nullopt;
  return Rational::ratio(int64_t(num), int64_t(den));
}

// The fraction with the smallest denominator in [lo, hi], 0 < lo <= hi, by continued fractions.
std::optional<std::pair<Wide, Wide>> simplest_between(long double lo, long double hi) {
  Wide h1 = 1, h0 = 0, k1 = 0, k0 = 1;  // convergents
  for (int depth = 0; depth < 64; depth++) {
    long double fl = std::floor(lo);
    if (fl > 4e18L) return std::nullopt;
    if (fl == lo || fl + 1 <= hi) {
      Wide a = Wide(fl == lo ? fl : fl + 1);
      return std::pair{a * h1 + h0, a * k1 + k0};
    }
    Wide a = Wide(fl), h = a * h1 + h0, k = a * k1 + k0;
    if (!fits(h) || !fits(k)) return std::nullopt;
    h0 = h1, h1 = h, k0 = k1, k1 = k;
    long double new_lo = 1 / (hi - fl), new_hi = 1 / (lo - fl);
    lo = new_lo, hi = new_hi;
  }
  return std::nullopt;
}

}  // namespace

Rational Rational::ratio(int64_t num, int64_t den) {
  Rational r;
  if (den == 0) {
    r.num_ = (num > 0) - (num < 0);
    r.den_ = 0;
    return r;
  }
  Wide n = num, d = den;
  if (d < 0) n = -n, d = -d;
  Wide g = positive_gcd(n, d);
  r.num_ = int64_t(n / g);
  r.den_ = int64_t(d / g);
  return r;
}

Rational Rational::infinity(bool negative) { return ratio(negative ? -1 : 1, 0); }
Rational Rational::nan() { return ratio(0, 0); }

Rational Rational::from_double(double x) {
  if (std::isnan(x)) return nan();
  if (std::isinf(x)) return infinity(x < 0);
  if (x == 0) return Rational(0);
  bool negative = x < 0;
  double a = std::fabs(x);
  if (a == std::floor(a) && a < 4.6e18) return Rational(int64_t(x));
  // Half-way points to the neighbouring doubles, exact in the 64-bit significand of long double.
  long double lo = (static_cast<long double>(a) + std::nextafter(a, 0.0)) / 2;
  long double hi = (static_cast<long double>(a) + std::nextafter(a, INFINITY)) / 2;
  if (a > 1e-15 && a < 1e15) {
    if (auto s = simplest_between(lo, hi); s && fits(s->first) && fits(s->second)) {
      Rational r = ratio(int64_t(s->first), int64_t(s->second));
      if (r.to_double() == a) return negative ? -r : r;
    }
  }
  // A short decimal such as 1e-30 or 2.5e20 keeps its decimal meaning where it fits.
  char buffer[40];
  auto end = std::to_chars(buffer, buffer + sizeof buffer, a).ptr;
  if (auto r = parse(std::string_view(buffer, size_t(end - buffer)));
      r && r->to_double() == a && r->exp2_ == 0)
    return negative ? -*r : *r;
  int e = 0;
  double m = std::frexp(a, &e);
  const Rational r = dyadic(int64_t(std::ldexp(m, 53)), e - 53);
  return negative ? -r : r;
}

Rational Rational::dyadic(int64_t n, int exp2) {
  Rational r(n);
  if (n == 0) return r;
  while (r.num_ % 2 == 0) r.num_ /= 2, exp2++;
  if (exp2 >= 0 && exp2 < 60 && fits(Wide(r.num_) << exp2))
    r.num_ <<= exp2;
  else if (exp2 < 0 && exp2 > -62)
    r.den_ = int64_t(1) << -exp2;
  else
    r.exp2_ = exp2;
  return r;
}

std::optional<Rational> Rational::parse(std::string_view text) {
  if (text == "inf") return infinity(false);
  if (text == "-inf") return infinity(true);
  if (text == "nan") return nan();
  int64_t whole = 0;  // the least one, too, whose negative does not fit
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), whole);
  if (problem == std::errc() && end == text.data() + text.size()) return Rational(whole);
  bool negative = !text.empty() && text[0] == '-';
  if (negative) text.remove_prefix(1);
  if (text.empty() || text[0] < '0' || text[0] > '9') return std::nullopt;
  auto integer = [](std::string_view s) -> std::optional<int64_t> {
    int64_t v = 0;
    auto [p, ec] = std::from_chars(s.data(), s.data() + s.size(), v);
    if (ec != std::errc() || p != s.data() + s.size() || !fits(v)) return std::nullopt;
    return v;
  };
  auto signed_result = [&](std::optional<Rational> r) {
    return r && negative ? std::optional(-*r) : r;
  };
  if (auto star = text.find("*2^"); star != text.npos) {
    auto n = integer(text.substr(0, star)), e = integer(text.substr(star + 3));
    if (!n || !e || std::abs(*e) > 4096) return std::nullopt;
    return signed_result(dyadic(*n, int(*e)));
  }
  if (auto slash = text.find('/'); slash != text.npos) {
    auto n = integer(text.substr(0, slash)), d = integer(text.substr(slash + 1));
    if (!n || !d || *d <= 0) return std::nullopt;
    return signed_result(ratio(*n, *d));
  }
  // Decimal: digits [. digits] [e exponent]
  Wide mantissa = 0;
  int64_t exponent = 0;
  size_t i = 0;
  bool seen_point = false, overflow = false;
  for (; i < text.size(); i++) {
    char c = text[i];
    if (c == '.' && !seen_point) {
      seen_point = true;
    } else if (c >= '0' && c <= '9') {
      if (mantissa > kBound / 10) {
        overflow = true;
        if (!seen_point) exponent++;
        continue;
      }
      mantissa = mantissa * 10 + (c - '0');
      if (seen_point) exponent--;
    } else {
      break;
    }
  }
  if (text[i - 1] == '.') return std::nullopt;
  if (i < text.size()) {
    if (text[i] != 'e' && text[i] != 'E') return std::nullopt;
    auto tail = text.substr(i + 1);
    if (!tail.empty() && tail[0] == '+') tail.remove_prefix(1);
    auto e = integer(tail);
    if (!e || std::abs(*e) > 5000) return std::nullopt;
    exponent += *e;
  }
  if (mantissa == 0) return Rational(0);
  Wide num = mantissa, den = 1;
  bool exact = !overflow;
  for (; exponent > 0 && exact; exponent--) exact = fits(num * 10) && (num *= 10, true);
  for (; exponent < 0 && exact; exponent++)
    if (num % 10 == 0)
      num /= 10;
    else
      exact = fits(den * 10) && (den *= 10, true);
  if (exact)
    if (auto r = reduced(num, den)) return signed_result(r);
  double d = std::strtod(std::string(text).c_str(), nullptr);
  if (std::isinf(d) || d == 0) return std::nullopt;
  int e = 0;
  double m = std::frexp(d, &e);
  return signed_result(dyadic(int64_t(std::ldexp(m, 53)), e - 53));
}

double Rational::to_double() const {
  if (den_ == 0) return num_ == 0 ? NAN : num_ > 0 ? INFINITY : -INFINITY;
  return double(std::ldexp(static_cast<long double>(num_) / static_cast<long double>(den_), exp2_));
}

std::string Rational::str() const {
  if (den_ == 0) return num_ == 0 ? "nan" : num_ > 0 ? "inf" : "-inf";
  if (exp2_ != 0) return std::to_string(num_) + "*2^" + std::to_string(exp2_);
  if (den_ == 1) return std::to_string(num_);
  // Short decimals print as decimals when they read back as the same fraction.
  char buffer[40];
  auto end = std::to_chars(buffer, buffer + sizeof buffer, to_double()).ptr;
  std::string decimal(buffer, end);
  if (auto back = parse(decimal); back && *back == *this) return decimal;
  return std::to_string(num_) + "/" + std::to_string(den_);
}

Rational Rational::operator-() const {
  Rational r = *this;
  r.num_ = -r.num_;
  return r;
}

std::optional<Rational> Rational::mul(const Rational& a, const Rational& b) {
  if (!a.finite() || !b.finite() || a.exp2_ || b.exp2_) return std::nullopt;
  Wide g1 = positive_gcd(a.num_, b.den_), g2 = positive_gcd(b.num_, a.den_);
  return reduced((a.num_ / g1) * (b.num_ / g2), (a.den_ / g2) * (b.den_ / g1));
}

std::optional<Rational> Rational::add(const Rational& a, const Rational& b) {
  if (!a.finite() || !b.finite() || a.exp2_ || b.exp2_) return std::nullopt;
  Wide g = positive_gcd(a.den_, b.den_);
  Wide left = Wide(a.num_) * (b.den_ / g), right = Wide(b.num_) * (a.den_ / g);
  Wide den = Wide(a.den_) * (b.den_ / g);
  return reduced(left + right, den);
}

std::optional<Rational> Rational::inverse() const {
  if (!finite() || exp2_ || num_ == 0) return std::nullopt;
  return ratio(den_, num_);
}

}  // namespace tessera
