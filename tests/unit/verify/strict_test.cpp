// What strict verdicts refuse beyond ordinary ones: other NaN, infinities and signs of zero, at the
// edges of the dtype too.
#include <gtest/gtest.h>

#include <cmath>

#include "verify/inputs.h"
#include "verify/programs.h"

namespace tessera {
namespace {

void only_strict_refuses(const std::string& a, const std::string& b) {
  EXPECT_TRUE(compare_programs(a, b, false).equal()) << a << "\n" << b;
  const Verdict v = compare_programs(a, b, true);
  ASSERT_TRUE(v.refuted()) << a << "\n" << b << "\n" << v.str();
  EXPECT_EQ(v.counterexample().kind, Difference::Definedness) << v.str();
}

TEST(Strict, RefusesOtherOverflow) {
  const std::string in = "a = input : f32[40,30]; b = input : f32[40,30]; ";
  // a + a is infinite where a·b + a·b is not.
  only_strict_refuses(in + "c = mul a, b; d = add c, c; return d",
                      in + "c = add a, a; d = mul c, b; return d");
  only_strict_refuses(in + "c = add a, b; d = sub c, a; return d", in + "return b");
  // Powers of two are exact: 2ab overflows where ab + ab does.
  EXPECT_TRUE(compare_programs(in + "c = mul a, b; d = add c, c; return d",
                               in + "two = const {value=2} : f32[]; c = mul a, b; d = mul c, two; "
                                    "return d",
                               true)
                  .equal());
}

TEST(Strict, RefusesOtherSignsOfZero) {
  const std::string in = "a = input : f64[40,30]; zero = const {value=0} : f64[]; ";
  only_strict_refuses(in + "b = add a, zero; return b", in + "return a");  // −0 + 0 = +0
  EXPECT_TRUE(compare_programs(in + "b = sub a, zero; return b", in + "return a", true).equal());
  only_strict_refuses(in + "b = neg a; c = sub zero, b; return c", in + "return a");
}

TEST(Strict, RefusesOtherNanAndInfinity) {
  const std::string in = "a = input : f32[40,30]; b = input : f32[40,30]; ";
  only_strict_refuses(in + "c = mul a, b; d = div c, b; return d", in + "return a");
  only_strict_refuses(in + "c = sqrt a; d = mul c, c; return d", in + "return a");
  only_strict_refuses(in + "c = log a; d = exp c; return d", in + "return a");
}

TEST(Strict, AcceptsWhatIsTheSameEverywhere) {
  const std::string in = "a = input : f32[40,30]; b = input : f32[40,30]; ";
  EXPECT_TRUE(compare_programs(in + "c = abs a; d = abs c; e = mul d, b; return e",
                               in + "c = abs a; e = mul c, b; return e", true)
                  .equal());
  EXPECT_TRUE(compare_programs(in + "c = transpose a {perm=[1,0]}; d = transpose b {perm=[1,0]}; "
                                    "e = add c, d; f = transpose e {perm=[1,0]}; return f",
                               in + "c = add a, b; return c", true)
                  .equal());
}

TEST(Strict, OnlyItsInputsHoldNegativeZeros) {
  // √y / √z is -inf at z = -0 where √(y / z) is NaN: a verdict must not hang on whether one is
  // drawn.
  Graph g;
  g.add_output(g.add(OpKind::Neg, {g.add_input({DType::F32, {1000, 1000}})}));
  const std::vector<IntRange> ranges = integer_ranges(g, g, {-8, 8});
  const auto zeros = [&](const std::string& family) {
    int64_t all = 0, negative = 0;
    const std::vector<NDArray> inputs = make_inputs(g, family, 7, ranges);
    for (double x : inputs[0].reals) {
      all += x == 0;
      negative += x == 0 && std::signbit(x);
    }
    EXPECT_GT(all, 0) << family;
    return negative;
  };
  EXPECT_EQ(zeros("alternating"), 0);
  EXPECT_EQ(zeros("zeros"), 0);
  EXPECT_GT(zeros("extreme"), 0);
}

}  // namespace
}  // namespace tessera
