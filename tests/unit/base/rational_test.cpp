#include "base/rational.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace tessera {
namespace {

TEST(Rational, SimplestFractionOfADouble) {
  EXPECT_EQ(Rational::from_double(0.1), Rational::ratio(1, 10));
  EXPECT_EQ(Rational::from_double(1.0 / 3), Rational::ratio(1, 3));
  EXPECT_EQ(Rational::from_double(1e-6), Rational::ratio(1, 1000000));
  EXPECT_EQ(Rational::from_double(-0.125), Rational::ratio(-1, 8));
  EXPECT_EQ(Rational::from_double(1.0 / 768), Rational::ratio(1, 768));
  EXPECT_EQ(Rational::from_double(4096), Rational(4096));
}

TEST(Rational, RoundTripsThroughText) {
  std::mt19937_64 rng(7);
  for (int i = 0; i < 20000; i++) {
    double x = std::ldexp(double(int64_t(rng())), int(rng() % 200) - 150);
    if (i % 3 == 0) x = double(int(rng() % 2000) - 1000) / double(1 + rng() % 500);
    Rational r = Rational::from_double(x);
    EXPECT_EQ(r.to_double(), x);
    auto back = Rational::parse(r.str());
    ASSERT_TRUE(back) << r.str();
    EXPECT_EQ(*back, r) << r.str();
  }
  for (double x : {double(INFINITY), -double(INFINITY), 0.0, 5e-324, 1.7976931348623157e308})
    EXPECT_EQ(Rational::parse(Rational::from_double(x).str())->to_double(), x);
  EXPECT_EQ(Rational::parse("nan")->str(), "nan");
  for (int64_t n : {INT64_MIN, INT64_MIN + 1, INT64_MAX})
    EXPECT_EQ(Rational::parse(Rational(n).str()), Rational(n));
}

// Found by fuzzing: a decimal too long for an exact fraction was kept as n*2^e and printed so, but
// read back as a fraction.
TEST(Rational, LongDecimalsHaveOneForm) {
  for (const char* text : {"9223372036854.775808", "0.000000010000000000000000001",
                           "4611686018427387905.5", "123456789012345678901234567890"}) {
    auto r = Rational::parse(text);
    ASSERT_TRUE(r) << text;
    auto back = Rational::parse(r->str());
    ASSERT_TRUE(back) << r->str();
    EXPECT_EQ(*back, *r) << text << " -> " << r->str();
  }
}

TEST(Rational, MalformedText) {
  for (const char* s : {"", "-", "1/0", "1/", "/2", "1.", "e5", "1e", "1e99999", "0x10", "--1",
                        "1/-2", "1.5/2", "3*2^", "3*2^99999", "infinity", "1e400"})
    EXPECT_FALSE(Rational::parse(s)) << s;
}

TEST(Rational, Arithmetic) {
  EXPECT_EQ(*Rational::mul(Rational::ratio(2, 3), Rational::ratio(3, 4)), Rational::ratio(1, 2));
  EXPECT_EQ(*Rational::add(Rational::ratio(1, 6), Rational::ratio(1, 3)), Rational::ratio(1, 2));
  EXPECT_EQ(*Rational::ratio(-2, 3).inverse(), Rational::ratio(-3, 2));
  EXPECT_FALSE(Rational(0).inverse());
  EXPECT_FALSE(Rational::mul(Rational(int64_t(1) << 40), Rational(int64_t(1) << 40)));
}

}  // namespace
}  // namespace tessera
