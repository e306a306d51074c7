#include "verify/any_functions.h"

#include <gtest/gtest.h>

#include <utility>

#include "base/text.h"
#include "ir/text.h"
#include "verify/funnel.h"
#include "verify/programs.h"

namespace tessera {
namespace {

// A program of x : f32[8,6] and weights u : f32[6,9], d : f32[9,4] around a function `f` of
// f32[8,4], of which nothing is known.
Graph around(const std::string& given, const std::string& result) {
  return program("x = input : f32[8,6]\n u = input {weight=true} : f32[6,9]\n"
                 "d = input {weight=true} : f32[9,4]\n" +
                 given + "y = opaque h {function=\"f\", payload=\"1\"} : f32[8,4]\n" + result);
}

const std::string kInTurn = "t = matmul x, u\n h = matmul t, d\n";
const std::string kFolded = "t = matmul u, d\n h = matmul x, t\n";
const std::string kSoftmax =
    "m = reduce_max y {axes=[1], keepdims=true}\n s = sub y, m\n e = exp s\n"
    "z = sum e {axes=[1], keepdims=true}\n r = div e, z\n return r";

VerifyOptions options() {
  VerifyOptions o;
  o.seed = 5;
  return o;
}

TEST(AnyFunctions, WhatIsAroundThemIsProved) {
  const Graph a = around(kInTurn, kSoftmax), b = around(kFolded, kSoftmax);
  const Verdict v = verify(a, b, options());
  ASSERT_TRUE(v.equal());
  const Certificate& c = v.certificate();
  EXPECT_EQ(c.spec_name, "p");
  EXPECT_EQ(c.inputs.size(), 3u);
  EXPECT_EQ(c.notes.back(), kAnyFunctions);
  EXPECT_TRUE(recheck(c, a, b, options()).ok) << recheck(c, a, b, options()).what;
  EXPECT_FALSE(recheck(c, a, a, options()).ok);
  Certificate without = c;  // says no longer how it was proved
  without.notes.pop_back();
  EXPECT_FALSE(recheck(without, a, b, options()).ok);
}

TEST(AnyFunctions, WhatTheyAreGivenAndWhatBecomesOfItCounts) {
  const Graph a = around(kInTurn, "return y");
  EXPECT_TRUE(verify(a, around(kFolded, "return y"), options()).equal());
  EXPECT_TRUE(verify(a, around(kInTurn + "g = relu h\n", "return y"), options()).equal());
  for (const Graph& b :
       {around("t = matmul u, d\n g = matmul x, t\n h = relu g\n", "return y"),
        around(kFolded, "r = mul y, y\n return r"), around(kFolded, "r = add y, h\n return r")})
    EXPECT_TRUE(verify(a, b, options()).unknown());
}

// Functions may look at what is infinite or none, return it, and decide by rounding.
TEST(AnyFunctions, MayLookAtAndReturnWhatIsNoNumber) {
  const auto given = [](const std::string& h, const std::string& rest = "return y") {
    return program(
        "x = input : f32[64]\n w = input : f32[64]\n c = const {value=41} : f32[]\n"
        "d = const {value=0.024390243902439025} : f32[]\n z = const {value=0} : f32[]\n" +
        h + "y = opaque h {function=\"f\", payload=\"1\"} : f32[64]\n" + rest);
  };
  const std::string x = "h = add x, w\n";
  const std::pair<Graph, Graph> wrong[] = {
      {given("l = log x\n h = exp l\n"), given("h = add x, z\n")},
      {given(x, "k = gt w, z\n r = where k, y, z\n return r"),
       given(x, "k = gt w, z\n m = cast k {dtype=f32}\n r = mul y, m\n return r")},
      {given(x, "r = exp y\n return r"),
       given(x, "r = exp y\n q = mul y, z\n s = add r, q\n return s")},
      {given(x, "k = gt y, z\n r = where k, y, z\n return r"),
       given(x, "k = gt y, z\n m = cast k {dtype=f32}\n r = mul y, m\n return r")},
  };
  for (const auto& [a, b] : wrong) EXPECT_FALSE(verify(a, b, options()).equal()) << print(b);
  EXPECT_TRUE(verify(given(x), given("h = add w, x\n"), options()).equal());
  const auto whole = [](const std::string& h) {  // which may be a floor
    return program("x = input : f32[64]\n c = const {value=41} : f32[]\n"
                   "d = const {value=0.024390243902439025} : f32[]\n" +
                   h + "y = opaque h {function=\"f\", payload=\"1\"} : i32[64]\n return y");
  };
  EXPECT_FALSE(verify(whole("h = div x, c\n"), whole("h = mul x, d\n"), options()).equal());
  EXPECT_TRUE(verify(whole("h = div x, c\n"), whole("h = div x, c\n"), options()).equal());
}

// Level bitwise, too: two calls of a function that draws numbers are not one.
TEST(AnyFunctions, CertificatesThatSayNothingOfThemAreRefused) {
  const std::string f = " = opaque x {function=\"f\", payload=\"1\"} : f32[4]\n";
  const Graph two = program("x = input : f32[4]\n a" + f + "b" + f + "y = sub a, b\n return y");
  const Graph one = program("x = input : f32[4]\n a" + f + "y = sub a, a\n return y");
  VerifyOptions o = options();
  o.level = Accuracy::Bitwise;
  EXPECT_TRUE(verify(two, one, o).unknown());
  const Verdict same = verify(two, two, o);
  ASSERT_TRUE(same.equal());
  Certificate c = same.certificate();
  EXPECT_TRUE(recheck(c, two, two, o).ok) << recheck(c, two, two, o).what;
  c.notes.clear();
  EXPECT_FALSE(recheck(c, two, two, o).ok);
  c.candidate_hash = structural_hash(one);
  EXPECT_FALSE(recheck(c, two, one, o).ok);
}

TEST(AnyFunctions, OfSeveralEachHasItsOwnOperands) {
  const auto two = [](const std::string& x, const std::string& y, const std::string& result) {
    return program("a = input : f32[4]\n b = input : f32[4]\n s = add a, b\n t = add b, a\n"
                   "x = opaque " +
                   x +
                   " {function=\"f\", payload=\"1\"} : f32[4]\n"
                   "y = opaque " +
                   y + " {function=\"f\", payload=\"1\"} : f32[4]\n" + result);
  };
  const Graph spec = two("a", "s", "r = sub x, y\n return r");
  EXPECT_TRUE(verify(spec, two("a", "t", "r = sub x, y\n return r"), options()).equal());
  EXPECT_FALSE(verify(spec, two("s", "a", "r = sub x, y\n return r"), options()).equal());
  EXPECT_FALSE(verify(spec, two("a", "s", "r = sub y, x\n return r"), options()).equal());
  EXPECT_FALSE(verify(spec, two("a", "a", "r = sub x, y\n return r"), options()).equal());
  EXPECT_FALSE(with_any_functions(spec, two("a", "s", "return x")));
  EXPECT_FALSE(with_any_functions(program("a = input : f32[4]\n return a"),
                                  program("a = input : f32[4]\n return a")));
}

}  // namespace
}  // namespace tessera
