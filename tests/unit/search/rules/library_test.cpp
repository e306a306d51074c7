// The rules that ship: each is true, is written as it prints, and stops being true when it is
// changed.
#include "search/rules/library.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "base/error.h"
#include "places.h"
#include "search/rules/check.h"
#include "search/rules/generalise.h"
#include "search/rules/rewrite.h"

namespace tessera::rules {
namespace {

using synth::Form;
using synth::Node;
using synth::ValueId;

const std::string kFolder = source_dir() + "/rules";

const std::vector<Rule>& shipped() {
  static const std::vector<Rule> rules = load_rules(kFolder);
  return rules;
}

// Which nodes a side is made of.
std::set<ValueId> nodes_of(const Rule& rule, ValueId side) {
  std::set<ValueId> seen;
  std::vector<ValueId> open{side};
  while (!open.empty()) {
    const ValueId v = open.back();
    open.pop_back();
    if (!seen.insert(v).second) continue;
    for (ValueId a : operands(rule, v)) open.push_back(a);
  }
  return seen;
}

// The right side with one node exchanged, as a rule.
std::optional<Rule> with_node(const Rule& rule, ValueId at, const Node& node) {
  Rule r = rule;
  std::vector<ValueId> now(rule.nodes.size());
  for (ValueId v = 0; v < rule.nodes.size(); ++v) now[v] = v;
  const std::set<ValueId> right = nodes_of(rule, rule.right);
  for (ValueId v : right) {  // operands first
    Node n = v == at ? node : rule.nodes[v];
    if (n.form == Form::Stack && v != at) {
      Rule::Stack s = rule.stacks[n.attr];
      for (ValueId& a : s.args) a = now[a];
      n.attr = r.stacks.size();
      r.stacks.push_back(s);
    }
    for (int i = 0; i < n.arity; ++i) n.arg[size_t(i)] = now[n.arg[size_t(i)]];
    now[v] = add_node(r, n);
  }
  r.right = now[rule.right];
  return restated(r, r.left, r.right);
}

std::vector<Rule> mutants(const Rule& rule) {
  std::vector<Rule> all;
  auto take = [&](const std::optional<Rule>& r) {
    if (r && !(print(*r, r->left) + print(*r, r->right) ==
               print(rule, rule.left) + print(rule, rule.right)))
      all.push_back(*r);
  };
  for (ValueId v : nodes_of(rule, rule.right)) {
    Node n = rule.nodes[v];
    if (n.form == Form::Pointwise && n.arity == 2) {
      Node swapped = n;
      std::swap(swapped.arg[0], swapped.arg[1]);
      if (!has(n.kind, algebra::Commutative)) take(with_node(rule, v, swapped));
      Node other = n;
      other.kind = n.kind == OpKind::Add ? OpKind::Sub : OpKind::Add;
      take(with_node(rule, v, other));
    }
    if (n.form == Form::Reduce) {
      Node other = n;
      other.kind = n.kind == OpKind::Sum ? OpKind::ReduceMax : OpKind::Sum;
      take(with_node(rule, v, other));
    }
    if (n.form == Form::Const) {
      Rule r = rule;
      Constant two;
      two.value = 11;
      n.attr = add_unique(r.constants, two);
      take(with_node(r, v, n));
    }
  }
  // Twice as much.
  Rule twice = rule;
  Node sum;
  sum.form = Form::Pointwise;
  sum.kind = OpKind::Add;
  sum.arity = 2;
  sum.arg = {rule.right, rule.right, synth::kNone};
  twice.right = add_node(twice, sum);
  take(restated(twice, twice.left, twice.right));
  return all;
}

TEST(RuleLibrary, ShipsDozensOfRulesFromProgramsAndTextbooks) {
  int programs = 0, exercises = 0, integers = 0, conditions = 0;
  for (const Rule& r : shipped()) {
    programs += r.learned.rfind("from ", 0) == 0 && r.learned.find("exercise") == std::string::npos;
    exercises += r.learned.find("from exercise") == 0;
    integers += r.integer;
    conditions += !r.conditions.empty();
    EXPECT_FALSE(r.learned.empty()) << r.name;
    EXPECT_FALSE(r.checked.empty()) << r.name;
  }
  EXPECT_GT(shipped().size(), 100u);
  EXPECT_GT(programs, 30);
  EXPECT_GT(exercises, 20);
  EXPECT_GT(integers, 50);
  EXPECT_GT(conditions, 10);
}

TEST(RuleLibrary, FilesHoldWhatPrintingWrites) {
  for (const auto& entry : std::filesystem::directory_iterator(kFolder)) {
    if (entry.path().extension() != ".rules") continue;
    std::ifstream in(entry.path());
    const std::string text((std::istreambuf_iterator<char>(in)), {});
    std::string printed;
    for (const Rule& r : parse_rules(text, entry.path().string()))
      printed += (printed.empty() ? "" : "\n") + print(r);
    // Comments stand before the first rule.
    EXPECT_EQ(text.substr(text.find("rule ")), printed) << entry.path();
  }
}

TEST(RuleLibrary, EveryRuleIsTrue) {
  CheckOptions options;
  options.instances = 6;
  options.seed = 20;
  for (const Rule& r : shipped()) {
    const CheckResult result = check(r, options);
    EXPECT_TRUE(result.holds) << print(r) << result.why;
  }
}

TEST(RuleLibrary, NoRuleFollowsFromOneBeforeIt) {
  std::vector<Rule> before;
  for (const Rule& r : shipped()) {
    for (const Rule& k : before)
      EXPECT_FALSE(k.variables == r.variables && print(k, k.left) == print(r, r.left) &&
                   print(k, k.right) == print(r, r.right))
          << r.name << " is " << k.name;
    before.push_back(r);
  }
}

TEST(RuleLibrary, ChangedRulesAreRefused) {
  CheckOptions options;
  options.instances = 8;
  int tried = 0, refused = 0;
  for (const Rule& r : shipped()) {
    int of_this = 0;
    for (const Rule& m : mutants(r)) {
      ++tried;
      const bool holds = check(m, options).holds;
      of_this += !holds;
      refused += !holds;
      // Some changes make another true rule; those are seen to be true by other means.
      EXPECT_TRUE(!holds || plausible(m, 200, 99)) << "of " << r.name << ":\n" << print(m);
    }
    EXPECT_GT(of_this, 0) << "no change of " << r.name << " was refused";
    for (size_t c = 0; c < r.conditions.size(); ++c) {
      Rule bare = r;
      bare.conditions.erase(bare.conditions.begin() + long(c));
      // Some conditions are for few inputs, such as products of which a factor underflows.
      CheckOptions many;
      many.instances = r.conditions[c].implied ? 8 : 1000;
      EXPECT_FALSE(check(bare, many).holds) << "without a condition:\n" << print(r);
    }
  }
  EXPECT_GT(tried, 300);
  EXPECT_GT(refused, tried * 97 / 100);
}

TEST(RuleLibrary, FoldersOfAUserNeedNotBeWhole) {
  const std::filesystem::path folder =
      std::filesystem::path(testing::TempDir()) / "tessera_rules_test";
  std::filesystem::create_directories(folder);
  auto write = [&](const char* name, const std::string& text) {
    std::ofstream(folder / name) << text;
  };
  write("a.rules", "rule a\n  A [m]\n  A + A = 2 * A\n");
  write("b.rules", std::string("rule b\n  A [m]\n  \0\xff", 19));
  write("c.rules", "rule a\n  A [m]\n  A * 1 = A\nrule c\n  A [m]\n  A * 1 = A\n");
  write("d.txt", "no rule");
  std::vector<Rule> rules;
  std::vector<std::string> problems;
  load_more(folder.string(), rules, problems);
  ASSERT_EQ(rules.size(), 2u);
  EXPECT_EQ(rules[0].name + rules[1].name, "ac");
  EXPECT_EQ(print(rules[0], rules[0].right), "2 * A");
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_NE(problems[0].find("b.rules:3:3: "), std::string::npos) << problems[0];
  EXPECT_THROW(load_rules(folder.string()), Error);
  write("b.rules", "");
  try {
    load_rules(folder.string());
    ADD_FAILURE() << "two rules of one name were read";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("c.rules:1:1: another file has a rule 'a' too"),
              std::string::npos)
        << e.what();
  }
  std::filesystem::remove_all(folder);
  EXPECT_TRUE(load_rules(folder.string()).empty());
}

}  // namespace
}  // namespace tessera::rules
