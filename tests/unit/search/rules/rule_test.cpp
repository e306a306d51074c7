#include "search/rules/rule.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace tessera::rules {
namespace {

const char* const kRules = R"(
# two rules
rule diagonal-of-product
  A [m k], B [k m]
  diagonal(A @ B) = sum(A * transpose(B), axis=-1)
  holds for real, integer
  learned from stenso/diag_dot
  checked on 64 instances

rule powers
  A [...s m 1], c constant, d constant
  A**c * A**d / sqr(-A) - stack(A, A, axis=-3) = (A**(c + d - 2) + 1/3 * broadcast_to(2.5, shape=[...s m 1])) * (c * d)
  assumes A != 0
  where A + 1 >= 0
  holds for real
)";

TEST(Rule, ReadsWhatItPrints) {
  const std::vector<Rule> rules = parse_rules(kRules, "k.rules");
  ASSERT_EQ(rules.size(), 2u);
  const Rule& r = rules[0];
  EXPECT_EQ(r.name, "diagonal-of-product");
  EXPECT_EQ(r.line, 3);
  ASSERT_EQ(r.variables.size(), 2u);
  EXPECT_EQ(r.variables[1].shape.dims, (std::vector<std::string>{"k", "m"}));
  EXPECT_TRUE(r.integer);
  EXPECT_EQ(r.learned, "from stenso/diag_dot");
  EXPECT_EQ(r.nodes[r.left].form, synth::Form::Diagonal);
  EXPECT_EQ(print(r, r.right), "sum(A * transpose(B), axis=-1)");
  for (const Rule& rule : rules) {
    const std::string text = print(rule);
    EXPECT_EQ(print(parse_rules(text, "printed").at(0)), text);
  }
  EXPECT_NE(print(rules[1]).find("  A [...s m 1], c constant, d constant\n"), std::string::npos);
  EXPECT_NE(print(rules[1]).find("  assumes A != 0\n  where A + 1 >= 0\n"), std::string::npos);
}

TEST(Rule, ConstantsAreComputedFromThoseThatAMatchBinds) {
  const Rule r =
      parse_rules("rule p\n  A [...], c constant\n  A**c = A**((c + 1) / (c - 2))\n", "f")[0];
  const synth::Node &left = r.nodes[r.left], &right = r.nodes[r.right];
  std::vector<std::optional<Rational>> bound(r.constants.size());
  EXPECT_FALSE(value(r, uint32_t(right.attr), bound));
  bound[left.attr] = 4;
  EXPECT_EQ(value(r, uint32_t(right.attr), bound), Rational::ratio(5, 2));
  bound[left.attr] = 2;  // a denominator of 0
  EXPECT_FALSE(value(r, uint32_t(right.attr), bound));
}

TEST(Rule, RefusesWhatIsNoRuleAndTellsWhere) {
  const struct {
    std::string text, message;
  } cases[] = {
      {"  A [m]\n", "f:1:3: expected 'rule NAME' at the beginning of a line"},
      {"rules x\n", "f:1:1: expected 'rule', not 'rules x'"},
      {"rule x\n  A [m]\n", "f:1:1: rule 'x' has no equation LEFT = RIGHT"},
      {"rule x\n  A [m]\n  A = A\n",
       "f:3:5: the left side matches everything: it needs an operator"},
      {"rule x\n  A [m]\n  A + A = A + A\n", "f:3:9: both sides are the same"},
      {"rule x\n  A [m], B [m]\n  A + A = B\n", "f:3:9: 'B' is on the right only"},
      {"rule x\n  A [m], A [m]\n", "f:2:10: 'A' is declared twice"},
      {"rule x\n  A [m], c constant\n  A + A = c * A\n", "f:3:9: 'c' is on the right only"},
      {"rule x\n  A [m]\n  A + C = A\n", "f:3:7: 'C' is not declared"},
      {"rule x\n  A [m]\n  system(A) = A\n", "f:3:3: 'system' is not a function of rules"},
      {"rule x\n  A [m]\n  sum(A, axis=0) = A\n", "f:3:15: expected a number from -6 to -1, not 0"},
      {"rule x\n  A [m]\n  exp(A, axis=-1) = A\n", "f:3:3: 'exp' takes no 'axis'"},
      {"rule x\n  A [m]\n  exp(A, A) = A\n", "f:3:3: 'exp' takes 1 operands"},
      {"rule x\n  A [m]\n  A + 1/0 = A\n",
       "f:3:11: this number is not finite, or has more than 62 bits"},
      {"rule x\n  A [m]\n  A - A = broadcast_to(0, shape=[...])\n",
       "f:3:11: '...' of a result needs a name that a variable has, as in [...s m]"},
      {"rule x\n  A [m]\n  A + A = 2 * A\n  where A < 0\n",
       "f:4:11: expected '> 0', '>= 0' or '!= 0', not '< 0'"},
      {"rule x\n  A [m]\n  A + A = 2 * A\n  holds for complex\n",
       "f:4:13: expected 'real' or 'integer', not 'complex'"},
      {"rule x\n  A [m]\n  A + A = 2 * A\n  import os\n",
       "f:4:3: expected 'assumes', 'where', 'holds for', 'learned' or 'checked', not 'import os'"},
      {"rule x\n  A [m]\n  A + A = 2 * A\nrule x\n  A [m]\n  A + A = 2 * A\n",
       "f:4:1: rule 'x' is there twice"},
      {"rule x\n  A [m]\n  " + std::string(100, '(') + "A = A\n",
       "f:3:33: nested more than 60 deep"},
      {"rule x\n  A [m]\n  " + std::string(100, '-') + "A = A\n", "nested more than 60 deep"},
  };
  for (const auto& c : cases) {
    try {
      parse_rules(c.text, "f");
      ADD_FAILURE() << "accepted:\n" << c.text;
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::BadInput);
      EXPECT_NE(std::string(e.what()).find(c.message), std::string::npos) << e.what();
    }
  }
}

}  // namespace
}  // namespace tessera::rules
