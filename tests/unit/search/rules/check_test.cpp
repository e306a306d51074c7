#include "search/rules/check.h"
#include "search/rules/one_rule.h"

#include <gtest/gtest.h>

namespace tessera::rules {
namespace {

CheckResult checked(const std::string& body) { return check(rule(body)); }

TEST(RuleCheck, AcceptsTrueRules) {
  for (const char* body : {
           "  A [m k], B [k m]\n  diagonal(A @ B) = sum(A * transpose(B), axis=-1)\n"
           "  holds for real, integer\n",
           "  A [... m k], x [k]\n  sum(A * x, axis=-1) = A @ x\n",
           "  A [...], B [...], C [...]\n  A * B + C * B = (A + C) * B\n  holds for real, "
           "integer\n",
           "  A [...], c constant, d constant\n  c * A + d * A = (c + d) * A\n",
           "  A [...], B [...]\n  exp(log(A) - log(B)) = A / B\n  assumes A >= 0\n  assumes B >= "
           "0\n",
           "  A [...]\n  A / sqrt(A) = sqrt(A)\n  assumes A > 0\n",
           "  A [...]\n  sqrt(A * A) = A\n  where A >= 0\n",
           "  A [...s], B [...s]\n  max(stack(A, B, axis=-1), axis=-1) = maximum(A, B)\n",
           "  C bool [...], A [...], B [...]\n  where(C, A, B) + where(C, B, A) = where(C, A + B, "
           "A + B)\n",
       }) {
    const CheckResult r = checked(body);
    EXPECT_TRUE(r.holds) << body << r.why;
  }
}

TEST(RuleCheck, RefusesWrongOnes) {
  const struct {
    const char *body, *why;
  } cases[] = {
      // operands swapped
      {"  A [m k], B [k m]\n  diagonal(A @ B) = sum(A * transpose(A), axis=-1)\n", "type"},
      {"  A [m m], B [m m]\n  A @ B = B @ A\n", "refuted"},
      {"  A [...], B [...]\n  exp(log(A) - log(B)) = B / A\n", "refuted"},
      // too general shapes
      {"  A [...], B [...]\n  A + B - B = A\n", "different types"},
      {"  A [... m], B [... m]\n  sum(A * B, axis=-1) = A @ B\n", ""},
      // conditions dropped, needless, or others
      {"  A [...]\n  sqrt(A * A) = A\n", "refuted"},
      {"  A [...]\n  A / sqrt(A) = sqrt(A)\n", "it needs 'assumes sqrt(A) != 0'"},
      {"  A [...], B [...]\n  exp(log(A) - log(B)) = A / B\n  assumes A > 0\n",
       "it needs 'assumes B > 0'"},
      {"  A [...], B [...]\n  A / sqrt(B) - A = A * rsqrt(B) - A\n  assumes B > 0\n",
       "does not grow"},
      {"  A [...]\n  A + A = 2 * A\n  assumes A > 0\n", "defined without 'assumes A > 0'"},
      // integers wrap around and round
      {"  A [...]\n  (A + A) / 2 = A\n  holds for real, integer\n", "integers"},
      // true of real numbers, not of floats
      {"  A [... k]\n  log(sum(exp(A - expand_dims(max(A, axis=-1), axis=-1)), axis=-1)) + max(A, "
       "axis=-1) = "
       "log(sum(exp(A), axis=-1))\n",
       "refuted"},
  };
  for (const auto& c : cases) {
    const CheckResult r = checked(c.body);
    EXPECT_FALSE(r.holds) << c.body;
    EXPECT_NE(r.why.find(c.why), std::string::npos) << c.body << r.why;
  }
}

}  // namespace
}  // namespace tessera::rules
