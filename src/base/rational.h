// Exact scalar constants: num/den * 2^exp2, or one of ±inf and NaN (den == 0).
// A program's constants stay exact so that proof over finite fields means what the user wrote.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tessera {

class Rational {
 public:
  Rational() = default;
  Rational(int64_t n) : num_(n) {}  // NOLINT: an integer is a rational
  // num/den in lowest terms; den > 0, or den == 0 for inf (num 1), -inf (num -1), NaN (num 0).
  static Rational ratio(int64_t num, int64_t den);
  static Rational infinity(bool negative);
  static Rational nan();
  // The simplest rational that rounds to `x` (so 0.1 is 1/10 and 1/3.0 is 1/3); numbers out of
  // reach of 62-bit terms become their exact dyadic value.
  static Rational from_double(double x);
  // "3", "-0.25", "1e-06", "1/3", "inf", "-inf", "nan", "5*2^-90"; nullopt if malformed.
  static std::optional<Rational> parse(std::string_view text);

  int64_t num() const { return num_; }
  int64_t den() const { return den_; }
  int exp2() const { return exp2_; }
  bool finite() const { return den_ != 0; }
  bool is_zero() const { return den_ != 0 && num_ == 0; }
  bool is_integer() const { return den_ == 1 && exp2_ == 0; }
  bool negative() const { return num_ < 0; }
  double to_double() const;
  // Canonical text; parse(str()) gives the same value.
  std::string str() const;

  Rational operator-() const;
  // Products and sums; nullopt when the exact result needs more than 62 bits.
  static std::optional<Rational> mul(const Rational& a, const Rational& b);
  static std::optional<Rational> add(const Rational& a, const Rational& b);
  std::optional<Rational> inverse() const;

  friend bool operator==(const Rational&, const Rational&) = default;

 private:
  // n·2^exp2 in its one canonical form: a fraction wherever that fits 62 bits.
  static Rational dyadic(int64_t n, int exp2);

  int64_t num_ = 0;
  int64_t den_ = 1;
  int exp2_ = 0;
};

}  // namespace tessera
