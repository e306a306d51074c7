#include "search/rules/learn.h"

#include <gtest/gtest.h>

#include "ir/text.h"
#include "search/rules/check.h"
#include "search/rules/generalise.h"
#include "search/rules/one_rule.h"
#include "search/rules/rewrite.h"

namespace tessera::rules {
namespace {

// The lines that say what a rule states.
std::string stated(const Rule& r) {
  const std::string text = print(r);
  return text.substr(text.find('\n') + 1);
}

TEST(Generalise, NumbersSubtermsAndShapesBecomeVariables) {
  const struct {
    const char *raw, *general;
  } cases[] = {
      {"  A [m k], B [k m]\n  diagonal(A @ B) = sum(A * transpose(B), axis=-1)\n",
       "  A [m n], B [n m]\n  diagonal(A @ B) = sum(A * transpose(B), axis=-1)\n"
       "  holds for real, integer\n"},
      {"  A [m k], x [k]\n  sum(A * x, axis=-1) = A @ x\n",
       "  A [... m], B [m]\n  sum(A * B, axis=-1) = A @ B\n  holds for real, integer\n"},
      {"  A [m k], B [m k]\n  3 * exp(A / B) + 4 * exp(A / B) = 7 * exp(A / B)\n",
       "  A [...], c constant, d constant\n  c * A + d * A = (c + d) * A\n"
       "  holds for real, integer\n"},
      {"  A [m k]\n  (A * 6) ** 3 = 216 * (A * A * A)\n", ""},
      {"  A [m k], B [m k], C [m k]\n  C - exp(A) * exp(B) = C - exp(A + B)\n",
       "  A [...], B [...]\n  exp(A) * exp(B) = exp(A + B)\n  holds for real\n"},
      {"  A [m k], B [m k]\n  A + B - B = A\n",
       "  A [...s], B [...s]\n  A + B - B = A\n  holds for real, integer\n"},
      {"  A [m k]\n  A / sqrt(A) = sqrt(A)\n",
       "  A [...]\n  A / sqrt(A) = sqrt(A)\n  assumes sqrt(A) != 0\n  holds for real\n"},
      {"  A [m k]\n  sqrt(A * A) = A\n",
       "  A [...]\n  sqrt(A * A) = A\n  where A >= 0\n  holds for real\n"},
      {"  A []\n  A / A = 1\n",
       "  A [...s]\n  A / A = broadcast_to(1, shape=[...s])\n  assumes A != 0\n  holds for real\n"},
      {"  A [m k]\n  A * A = A + A\n", ""},
  };
  for (const auto& c : cases) {
    const std::vector<Rule> found = generalised(rule(c.raw));
    if (*c.general == 0) {
      for (const Rule& r : found) EXPECT_TRUE(check(r).holds) << print(r);
      continue;
    }
    ASSERT_FALSE(found.empty()) << c.raw;
    EXPECT_EQ(stated(found[0]), c.general) << c.raw;
    EXPECT_TRUE(check(found[0]).holds) << check(found[0]).why;
  }
  EXPECT_TRUE(generalised(rule("  A [m k]\n  A * A = A + A\n")).empty());
}

TEST(Generalise, SumsOverEverythingTakeAnyNumberOfAxes) {
  const std::vector<Rule> found =
      generalised(rule("  A [m k]\n  sum(3 * A, axis=(-2, -1)) = 3 * sum(A, axis=(-2, -1))\n"));
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(stated(found[0]), "  A [... m n], c constant\n"
                              "  sum(c * A, axis=(-2, -1)) = c * sum(A, axis=(-2, -1))\n"
                              "  holds for real, integer\n");
  EXPECT_EQ(stated(found[1]), "  A [...], c constant\n  sum(c * A) = c * sum(A)\n"
                              "  holds for real, integer\n");
}

TEST(Learn, WhatASearchDiscovers) {
  Learner learner;
  const Graph program = parse(R"(graph g {
  A = input : f32[200,200]
  B = input : f32[200,200]
  C = matmul A, B
  D = reshape C {shape=[40000]}
  E = slice D {starts=[0], stops=[40000], steps=[201]}
  return E
})");
  const std::vector<Rule> learnt = learner.learn(program, "test/diagonal");
  ASSERT_EQ(learnt.size(), 1u);
  const std::string text = stated(learnt[0]);
  EXPECT_EQ(text.find("  A [m n], B [n m]\n  diagonal(A @ B) = sum("), 0u) << text;
  EXPECT_EQ(size(learnt[0], learnt[0].right), 2) << text;
  EXPECT_NE(text.find("  holds for real, integer\n"
                      "  learned from test/diagonal\n"
                      "  checked on 64 instances by the verifier\n"),
            std::string::npos)
      << text;
  // Known by now.
  Learner again({}, learner.known());
  EXPECT_TRUE(again.learn(learnt[0], "again").empty());
  EXPECT_EQ(again.counts().derived, 1);
}

TEST(Learn, ExercisesAreTheSameForTheSameSeed) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    EXPECT_TRUE(exercise(seed) == exercise(seed));
    EXPECT_FALSE(exercise(seed) == exercise(seed + 50)) << seed;
  }
}

TEST(Rewrite, WhatFollowsIsTold) {
  const std::vector<Rule> known = parse_rules(R"(
rule twice
  A [...]
  A + A = 2 * A
rule factor
  A [...], B [...], C [...]
  A * B + C * B = (A + C) * B
rule same
  A [...s], B [...s]
  A + B - B = A
rule product
  A [... m], x [m]
  sum(A * x, axis=-1) = A @ x
rule nothing
  A [...s]
  A - A = broadcast_to(0, shape=[...s])
)",
                                              "known");
  const struct {
    const char* body;
    bool follows;
  } cases[] = {
      {"  A [...]\n  exp(A) + exp(A) = 2 * exp(A)\n", true},          // a subterm
      {"  A [m k]\n  sqrt(A + A) = sqrt(2 * A)\n", true},             // inside, a narrower shape
      {"  A [...], B [...]\n  B * A + B * A = 2 * (B * A)\n", true},  // operands that commute
      {"  A [...], B [...]\n  A * B + B * A = B * (A + A)\n", true},  // both sides
      {"  A [...], B [...]\n  B * exp(A) + A * B = B * (exp(A) + A)\n", true},
      {"  A [...], B [...]\n  A + B - B = A\n", false},  // of other shapes it says nothing
      {"  A [m m], B [m m]\n  sum(A * B, axis=-1) = A @ B\n", false},
      {"  A [...]\n  A + A + A = 3 * A\n", false},
      {"  A [... m], B [m]\n  sum(B * A, axis=-1) = A @ B\n", true},
      {"  A [...], B [...]\n  A * B - A * B = B * A - A * B\n", true},
      {"  A [...s], B [...s]\n  A * B - A * B = B - B\n", true},
      {"  A [...], B [...]\n  A * B - A * B = B - B\n", false},  // other shapes, so not even equal
      {"  A []\n  A - A = 0\n", true},
  };
  for (const auto& c : cases) EXPECT_EQ(follows(rule(c.body), known), c.follows) << c.body;
  // What is said of a left side that another rule makes smaller is not worth saying.
  EXPECT_TRUE(reducible(rule("  A [...s], B [...s]\n  exp(A + B - B) = exp(A)\n"), known));
  EXPECT_FALSE(reducible(rule("  A [...], B [...]\n  exp(A + B - B) = exp(A)\n"), known));
  EXPECT_FALSE(reducible(rule("  A [...]\n  exp(A + A) = sqr(exp(A))\n"), known));
}

}  // namespace
}  // namespace tessera::rules
