#include "search/mugraph/normal_form.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>

namespace tessera::mugraph {
namespace {

// --- terms over the axioms of Mirage, OSDI'25, Table 2 ----------------------------------------

struct Tree;
using T = std::shared_ptr<const Tree>;
struct Tree {
  char op;  // v: variable, + * / : binary, e: exp, s: sum over `axis`
  int id = 0;
  T a, b;
};

T var(int id) { return std::make_shared<Tree>(Tree{'v', id, nullptr, nullptr}); }
T bin(char op, T a, T b) { return std::make_shared<Tree>(Tree{op, 0, std::move(a), std::move(b)}); }
T exp(T a) { return std::make_shared<Tree>(Tree{'e', 0, std::move(a), nullptr}); }
T sum(int axis, T a) { return std::make_shared<Tree>(Tree{'s', axis, std::move(a), nullptr}); }

std::string show(const T& t) {
  switch (t->op) {
  case 'v': return std::string(1, char('a' + t->id));
  case 'e': return "exp(" + show(t->a) + ")";
  case 's': return "sum" + std::to_string(t->id) + "(" + show(t->a) + ")";
  default: return "(" + show(t->a) + t->op + show(t->b) + ")";
  }
}

// Variable 0 varies with no axis, 1 with axis 0, 2 with axis 1, 3 with both, then again.
AxisMask axes_of_variable(int id) { return AxisMask(id % 4); }

AxisMask axes(const T& t) {
  switch (t->op) {
  case 'v': return axes_of_variable(t->id);
  case 'e': return axes(t->a);
  case 's': return axes(t->a) & ~bit(t->id);
  default: return axes(t->a) | axes(t->b);
  }
}

PolyId form(NormalForms& nf, const T& t) {
  switch (t->op) {
  case 'v':
    return nf.input(uint32_t(t->id), axes_of_variable(t->id), std::string(1, char('a' + t->id)));
  case 'e': return nf.exp(form(nf, t->a));
  case 's': return nf.sum(form(nf, t->a), bit(t->id));
  case '+': return nf.add(form(nf, t->a), form(nf, t->b));
  case '*': return nf.mul(form(nf, t->a), form(nf, t->b));
  default: return nf.div(form(nf, t->a), form(nf, t->b));
  }
}

// All results of one axiom at the root, in either direction.
std::vector<T> at_root(const T& t, bool sums) {
  std::vector<T> out;
  auto is = [](const T& x, char op) { return x && x->op == op; };
  auto same = [](const T& x, const T& y) { return show(x) == show(y); };
  const T a = t->a, b = t->b;
  if (t->op == '+' || t->op == '*') {
    out.push_back(bin(t->op, b, a));
    if (is(a, t->op)) out.push_back(bin(t->op, a->a, bin(t->op, a->b, b)));
    if (is(b, t->op)) out.push_back(bin(t->op, bin(t->op, a, b->a), b->b));
  }
  if (t->op == '+') {
    if (is(a, '*') && is(b, '*') && same(a->b, b->b))
      out.push_back(bin('*', bin('+', a->a, b->a), a->b));
    if (is(a, '/') && is(b, '/') && same(a->b, b->b))
      out.push_back(bin('/', bin('+', a->a, b->a), a->b));
    if (sums && is(a, 's') && is(b, 's') && a->id == b->id)
      out.push_back(sum(a->id, bin('+', a->a, b->a)));
  }
  if (t->op == '*') {
    if (is(a, '+')) out.push_back(bin('+', bin('*', a->a, b), bin('*', a->b, b)));
    if (is(b, '/')) out.push_back(bin('/', bin('*', a, b->a), b->b));
    if (is(a, 'e') && is(b, 'e')) out.push_back(exp(bin('+', a->a, b->a)));
    if (sums && is(a, 's') && !(axes(b) & bit(a->id))) out.push_back(sum(a->id, bin('*', a->a, b)));
  }
  if (t->op == '/') {
    if (is(a, '+')) out.push_back(bin('+', bin('/', a->a, b), bin('/', a->b, b)));
    if (is(a, '*')) out.push_back(bin('*', a->a, bin('/', a->b, b)));
    if (is(a, '/')) out.push_back(bin('/', a->a, bin('*', a->b, b)));
    if (is(b, '*')) out.push_back(bin('/', bin('/', a, b->a), b->b));
    if (sums && is(a, 's') && !(axes(b) & bit(a->id))) out.push_back(sum(a->id, bin('/', a->a, b)));
  }
  if (t->op == 'e' && is(a, '+')) out.push_back(bin('*', exp(a->a), exp(a->b)));
  if (t->op == 's') {
    if (is(a, 's')) out.push_back(sum(a->id, sum(t->id, a->a)));
    if (is(a, '+')) out.push_back(bin('+', sum(t->id, a->a), sum(t->id, a->b)));
    if (is(a, '*') && !(axes(a->b) & bit(t->id))) out.push_back(bin('*', sum(t->id, a->a), a->b));
    if (is(a, '/') && !(axes(a->b) & bit(t->id))) out.push_back(bin('/', sum(t->id, a->a), a->b));
  }
  return out;
}

std::vector<T> neighbours(const T& t, bool sums) {
  std::vector<T> out = at_root(t, sums);
  if (t->op == 'v') return out;
  for (const T& x : neighbours(t->a, sums)) {
    out.push_back(t->op == 'e' ? exp(x) : t->op == 's' ? sum(t->id, x) : bin(t->op, x, t->b));
  }
  if (t->b) {
    for (const T& x : neighbours(t->b, sums)) out.push_back(bin(t->op, t->a, x));
  }
  return out;
}

// Denominators are variables, so that no product of two sums is ever divided by: how far such
// products are multiplied out is an option of the form, not part of the axioms.
T random_tree(std::mt19937& rng, int depth, bool with_exp, bool sums) {
  int kind = int(rng() % (depth == 0 ? 1 : 8));
  if (kind <= 1) return var(int(rng() % 6));
  if (kind <= 3)
    return bin('+', random_tree(rng, depth - 1, with_exp, sums),
               random_tree(rng, depth - 1, with_exp, sums));
  if (kind <= 5)
    return bin('*', random_tree(rng, depth - 1, with_exp, sums),
               random_tree(rng, depth - 1, with_exp, sums));
  if (kind == 6 && with_exp) return exp(random_tree(rng, depth - 1, false, sums));
  if (kind == 7 && sums) {
    T body = random_tree(rng, depth - 1, with_exp, sums);
    AxisMask on = axes(body);
    if (on) return sum(lowest(on), body);
    return body;
  }
  return bin('/', random_tree(rng, depth - 1, with_exp, sums), var(int(rng() % 6)));
}

TEST(NormalForm, UnchangedByAxioms) {
  int steps = 0, trees = 0;
  for (uint32_t seed = 0; seed < 1500; ++seed) {
    std::mt19937 rng(seed);
    NormalForms nf({5, 7}, {1 << 20, false});
    T t = random_tree(rng, 4, true, true);
    const PolyId first = form(nf, t);
    ASSERT_NE(first, kNone);
    const T start = t;
    for (int i = 0; i < 15; ++i) {
      std::vector<T> next = neighbours(t, true);
      if (next.empty()) break;
      t = next[rng() % next.size()];
      ++steps;
      PolyId now = form(nf, t);
      ASSERT_EQ(first, now) << "seed " << seed << ": " << show(start) << " became " << show(t)
                            << "\n"
                            << nf.str(first) << "\n"
                            << nf.str(now);
    }
    ++trees;
  }
  EXPECT_EQ(trees, 1500);
  EXPECT_GT(steps, 8000);
}

// Different functions must have different forms: evaluated on numbers, unequal trees differ.
double value(const T& t, std::vector<int> at, const std::vector<std::vector<double>>& data) {
  static const int extent[2] = {5, 7};
  switch (t->op) {
  case 'v': {
    AxisMask m = axes_of_variable(t->id);
    size_t i = size_t((m & 1 ? at[0] : 0) * 8 + (m & 2 ? at[1] : 0));
    return data[size_t(t->id)][i];
  }
  case 'e': return std::exp(value(t->a, at, data));
  case 's': {
    double s = 0;
    for (int i = 0; i < extent[t->id]; ++i) {
      at[size_t(t->id)] = i;
      s += value(t->a, at, data);
    }
    return s;
  }
  case '+': return value(t->a, at, data) + value(t->b, at, data);
  case '*': return value(t->a, at, data) * value(t->b, at, data);
  default: return value(t->a, at, data) / value(t->b, at, data);
  }
}

TEST(NormalForm, EqualFormsAreEqualFunctions) {
  std::mt19937 rng(11);
  std::uniform_real_distribution<double> u(0.2, 1.2);
  std::vector<std::vector<double>> data(6, std::vector<double>(64));
  for (auto& d : data) {
    for (double& x : d) x = u(rng);
  }
  NormalForms nf({5, 7}, {16, false});
  std::map<PolyId, std::pair<double, T>> seen;
  std::map<double, PolyId> by_value;
  int repeated = 0;
  for (int i = 0; i < 20000; ++i) {
    T t = random_tree(rng, 3, true, true);
    PolyId p = form(nf, t);
    if (p == kNone) continue;
    double v = value(t, {2, 3}, data);
    if (!std::isfinite(v) || std::fabs(v) > 1e12) continue;
    auto [it, fresh] = seen.emplace(p, std::make_pair(v, t));
    if (fresh) continue;
    ++repeated;
    ASSERT_NEAR(it->second.first, v, 1e-9 * std::fabs(v))
        << show(it->second.second) << " and " << show(t);
  }
  EXPECT_GT(repeated, 1000);
}

// Brute force: everything equal to E by the axioms, up to a number of trees, and all subterms.
struct Closure {
  std::set<std::string> subterms;
  bool complete = true;
};

void add_subterms(const T& t, std::set<std::string>& out) {
  if (!out.insert(show(t)).second) return;
  if (t->a) add_subterms(t->a, out);
  if (t->b) add_subterms(t->b, out);
}

Closure close(const T& e, size_t limit) {
  Closure c;
  std::set<std::string> seen{show(e)};
  std::vector<T> todo{e};
  for (size_t i = 0; i < todo.size(); ++i) {
    add_subterms(todo[i], c.subterms);
    if (todo.size() > limit) {
      c.complete = false;
      break;
    }
    for (const T& n : neighbours(todo[i], false)) {
      if (seen.insert(show(n)).second) todo.push_back(n);
    }
  }
  return c;
}

bool part_of(NormalForms& nf, const T& e, const std::vector<PolyId>& goals) {
  PolyId p = nf.primitive(form(nf, e)).form;
  for (PolyId g : goals) {
    if (!nf.embeddings(p, g).empty()) return true;
  }
  return false;
}

// A program that divides by something it also multiplies with has parts that cancel; Table 2 keeps
// them, the form does not. Such programs are left out below.
void count_variables(const T& t, bool below, std::map<int, int>& above, std::map<int, int>& under) {
  if (t->op == 'v') {
    ++(below ? under : above)[t->id];
    return;
  }
  count_variables(t->a, below, above, under);
  if (t->b) count_variables(t->b, below != (t->op == '/'), above, under);
}
bool cancels(const T& t) {
  std::map<int, int> above, under;
  count_variables(t, false, above, under);
  for (const auto& [id, n] : under) {
    if (above.count(id)) return true;
  }
  return false;
}

TEST(NormalForm, PartOfAgreesWithBruteForce) {
  std::string lost;
  int both_yes = 0, both_no = 0, only_closure = 0, only_form = 0, undecided = 0;
  for (uint32_t seed = 0; seed < 600; ++seed) {
    std::mt19937 rng(seed);
    T whole = random_tree(rng, 3, true, false);
    if (cancels(whole)) continue;
    Closure c = close(whole, 3000);
    // The search runs two formulations, products of sums multiplied out or not; a part of either
    // counts. Like terms are collected, and no part splits a coefficient: 2x + y has no part x + y.
    NormalForms nf({5, 7}, {1 << 20, false}), kept({5, 7}, {2, false});
    std::vector<PolyId> goals = nf.goals({form(nf, whole)}, 1000);
    std::vector<PolyId> kept_goals = kept.goals({form(kept, whole)}, 1000);
    bool collected = false;
    for (PolyId g : kept_goals) {
      for (const Term& t : kept.poly(g).terms) collected = collected || !t.coef.one();
    }
    if (collected) continue;
    // Candidates: subterms of equal trees (must be admitted), and random trees.
    std::vector<T> parts{whole};
    T walk = whole;
    for (int i = 0; i < 6; ++i) {
      std::vector<T> next = neighbours(walk, false);
      if (next.empty()) break;
      walk = next[rng() % next.size()];
      T sub = walk;
      while (sub->op != 'v' && rng() % 3) sub = sub->b && rng() % 2 ? sub->b : sub->a;
      parts.push_back(sub);
    }
    for (int i = 0; i < 6; ++i) parts.push_back(random_tree(rng, 2, true, false));
    for (const T& p : parts) {
      bool in = c.subterms.count(show(p)) > 0;
      bool admitted = part_of(nf, p, goals) || part_of(kept, p, kept_goals);
      if (!in && !c.complete)
        ++undecided;
      else if (in && admitted)
        ++both_yes;
      else if (!in && !admitted)
        ++both_no;
      else if (in) {
        ++only_closure;
        lost += show(p) + " of " + show(whole) + "\n";
      } else {
        ++only_form;
      }
    }
  }
  RecordProperty("both_yes", both_yes);
  RecordProperty("both_no", both_no);
  RecordProperty("only_normal_form", only_form);
  RecordProperty("undecided", undecided);
  // Known gap: a written-out product of sums, f(e+a) + d(e+a), as part of (f+d)(e+a)²; seeing it
  // would need polynomial factorisation.
  EXPECT_LE(only_closure * 1000, both_yes) << "pruned wrongly:\n" << lost;
  EXPECT_GT(both_yes, 1000);
  EXPECT_GT(both_no, 700);
  EXPECT_LE(only_form * 50, both_no) << "prunes much less than the axioms allow";
}

// Mirage's own way of deciding it: Z3 on the axioms of Table 2. Whatever Z3 entails must be
// admitted.
std::string smt(const T& t) {
  switch (t->op) {
  case 'v': return std::string(1, char('a' + t->id));
  case 'e': return "(exp_ " + smt(t->a) + ")";
  default:
    return std::string("(") +
           (t->op == '+'   ? "add"
            : t->op == '*' ? "mul"
                           : "div_") +
           " " + smt(t->a) + " " + smt(t->b) + ")";
  }
}

const char* const kTable2 = R"((set-option :timeout 400)
(declare-sort E)
(declare-fun add (E E) E) (declare-fun mul (E E) E) (declare-fun div_ (E E) E)
(declare-fun exp_ (E) E) (declare-fun sub (E E) Bool)
(assert (forall ((x E) (y E)) (= (add x y) (add y x))))
(assert (forall ((x E) (y E)) (= (mul x y) (mul y x))))
(assert (forall ((x E) (y E) (z E)) (= (add x (add y z)) (add (add x y) z))))
(assert (forall ((x E) (y E) (z E)) (= (mul x (mul y z)) (mul (mul x y) z))))
(assert (forall ((x E) (y E) (z E)) (= (add (mul x z) (mul y z)) (mul (add x y) z))))
(assert (forall ((x E) (y E) (z E)) (= (add (div_ x z) (div_ y z)) (div_ (add x y) z))))
(assert (forall ((x E) (y E) (z E)) (= (mul x (div_ y z)) (div_ (mul x y) z))))
(assert (forall ((x E) (y E) (z E)) (= (div_ (div_ x y) z) (div_ x (mul y z)))))
(assert (forall ((x E) (y E)) (= (mul (exp_ x) (exp_ y)) (exp_ (add x y)))))
(assert (forall ((x E)) (sub x x)))
(assert (forall ((x E) (y E)) (sub x (add x y))))
(assert (forall ((x E) (y E)) (sub x (mul x y))))
(assert (forall ((x E) (y E)) (sub x (div_ x y))))
(assert (forall ((x E) (y E)) (sub y (div_ x y))))
(assert (forall ((x E)) (sub x (exp_ x))))
(assert (forall ((x E) (y E) (z E)) (=> (and (sub x y) (sub y z)) (sub x z))))
(declare-const a E) (declare-const b E) (declare-const c E)
(declare-const d E) (declare-const e E) (declare-const f E)
)";

TEST(NormalForm, AdmitsWhateverZ3Entails) {
  if (std::system("z3 --version >/dev/null 2>&1") != 0) GTEST_SKIP() << "no z3 executable on PATH";
  const std::string base = ::testing::TempDir() + "tessera_table2_" + std::to_string(::getpid());
  int entailed = 0, asked = 0;
  for (uint32_t seed = 5000; asked < 24 && seed < 5200; ++seed) {
    std::mt19937 rng(seed);
    T whole = random_tree(rng, 2, true, false);
    if (whole->op == 'v' || cancels(whole)) continue;
    T part = random_tree(rng, 1, false, false);
    if (rng() % 2) {  // something that occurs after a few rewrites
      T walk = whole;
      for (int i = 0; i < 3; ++i) {
        std::vector<T> next = neighbours(walk, false);
        if (!next.empty()) walk = next[rng() % next.size()];
      }
      part = walk->b && rng() % 2 ? walk->b : walk->a;
    }
    ++asked;
    {
      std::ofstream out(base + ".smt2");
      out << kTable2 << "(assert (not (sub " << smt(part) << " " << smt(whole)
          << ")))\n(check-sat)\n";
    }
    [[maybe_unused]] int status =
        std::system(("z3 " + base + ".smt2 > " + base + ".out 2>&1").c_str());
    std::string answer;
    std::ifstream(base + ".out") >> answer;
    if (answer != "unsat") continue;  // "unknown": Z3 cannot tell, which proves nothing
    ++entailed;
    NormalForms nf({5, 7}, {1 << 20, false}), kept({5, 7}, {2, false});
    EXPECT_TRUE(part_of(nf, part, nf.goals({form(nf, whole)}, 1000)) ||
                part_of(kept, part, kept.goals({form(kept, whole)}, 1000)))
        << show(part) << " of " << show(whole);
  }
  std::remove((base + ".smt2").c_str());
  std::remove((base + ".out").c_str());
  EXPECT_GE(entailed, 8);
}

// --- single rules -----------------------------------------------------------------------------

class Forms : public ::testing::Test {
 protected:
  NormalForms nf{{4, 6}, {}};
  PolyId x = nf.input(0, 3, "x");  // axes 0 and 1
  PolyId g = nf.input(1, 2, "g");  // axis 1
  PolyId y = nf.input(2, 1, "y");  // axis 0
};

TEST_F(Forms, SumsCaptureWhatDependsOnTheirAxis) {
  EXPECT_EQ(nf.sum(nf.mul(x, y), 2), nf.mul(nf.sum(x, 2), y));
  EXPECT_NE(nf.sum(nf.mul(x, g), 2), nf.mul(nf.sum(x, 2), g));
  EXPECT_EQ(nf.sum(nf.mul(g, y), 3), nf.mul(nf.sum(g, 2), nf.sum(y, 1)));
  EXPECT_EQ(nf.sum(y, 2), nf.scale(y, 6));  // the extent of the axis
}

TEST_F(Forms, ShiftsOfExponentsCancel) {
  uint32_t max = nf.function({"reduce_max", false, true});
  PolyId m = nf.fn(max, {x}, 2);
  PolyId shifted = nf.exp(nf.add(x, nf.scale(m, -1)));
  EXPECT_EQ(nf.div(shifted, nf.sum(shifted, 2)), nf.div(nf.exp(x), nf.sum(nf.exp(x), 2)));
  NormalForms keep({4, 6}, {16, true});
  PolyId x2 = keep.input(0, 3, "x");
  PolyId m2 = keep.fn(keep.function({"reduce_max", false, true}), {x2}, 2);
  PolyId s2 = keep.exp(keep.add(x2, keep.scale(m2, -1)));
  EXPECT_NE(keep.div(s2, keep.sum(s2, 2)), keep.div(keep.exp(x2), keep.sum(keep.exp(x2), 2)));
}

TEST_F(Forms, RootsRespectSigns) {
  Q half = Q::ratio(1, 2);
  EXPECT_NE(nf.pow(nf.mul(x, x), half), x);  // |x|
  EXPECT_EQ(nf.mul(nf.pow(x, half), nf.pow(x, half)), x);
  // √(xy) is defined where both are negative, √x·√y is not.
  EXPECT_NE(nf.pow(nf.mul(x, y), half), nf.mul(nf.pow(x, half), nf.pow(y, half)));
  PolyId s = nf.sum(nf.mul(x, x), 2);
  EXPECT_EQ(nf.pow(nf.mul(s, y), half), nf.mul(nf.pow(s, half), nf.pow(y, half)));
  EXPECT_EQ(nf.pow(nf.scale(s, 4), half), nf.scale(nf.pow(s, half), 2));
  EXPECT_EQ(nf.pow(nf.pow(s, half), 2), s);
}

TEST_F(Forms, PowersOfSumsCombine) {
  PolyId p = nf.add(x, y);
  EXPECT_EQ(nf.mul(p, nf.pow(p, Q::ratio(-1, 2))), nf.pow(p, Q::ratio(1, 2)));
  EXPECT_EQ(nf.div(p, p), nf.one());
  EXPECT_EQ(nf.div(nf.scale(p, 3), p), nf.constant(3));
  EXPECT_EQ(nf.div(nf.mul(g, p), p), g);
}

TEST_F(Forms, NumbersThatDoNotFitHaveNoForm) {
  PolyId big = nf.constant(Q::ratio(int64_t(1) << 62, 1));
  EXPECT_EQ(nf.mul(big, nf.mul(big, x)), kNone);
  EXPECT_EQ(nf.add(x, nf.mul(big, big)), kNone);
  EXPECT_EQ(nf.div(x, nf.constant(0)), kNone);
}

TEST_F(Forms, PartsAreFoundWithoutCancellation) {
  PolyId s = nf.sum(nf.mul(x, nf.mul(x, y)), 2);
  std::vector<PolyId> goals =
      nf.goals({nf.div(nf.sum(nf.mul(x, g), 2), nf.pow(s, Q::ratio(1, 2)))}, 100);
  auto part = [&](PolyId p) {
    for (PolyId q : goals) {
      if (!nf.embeddings(nf.primitive(p).form, q).empty()) return true;
    }
    return false;
  };
  EXPECT_TRUE(part(nf.mul(x, g)));
  EXPECT_TRUE(part(nf.sum(nf.mul(x, g), 2)));
  EXPECT_TRUE(part(nf.mul(x, x)));
  EXPECT_TRUE(part(s));
  EXPECT_TRUE(part(nf.pow(s, Q::ratio(1, 2))) || part(nf.pow(s, Q::ratio(-1, 2))));
  EXPECT_FALSE(part(nf.sum(x, 2)));               // sums do not float past factors of their axis
  EXPECT_FALSE(part(nf.pow(x, Q::ratio(1, 2))));  // √x is no part of x
  EXPECT_FALSE(part(nf.mul(g, g)));
  EXPECT_FALSE(part(nf.add(x, g)));
}

TEST(Coefficients, AreExact) {
  EXPECT_EQ(power(Coef(Q::ratio(1, 768)), Q::ratio(1, 2)), power(Coef(768), Q::ratio(-1, 2)));
  Coef r = power(Coef(768), Q::ratio(1, 2));
  EXPECT_EQ(r.root, 3);
  EXPECT_EQ(r.q, Q(16));
  EXPECT_EQ(r * r, Coef(768));
  EXPECT_TRUE((r + Coef(1)).bad());
  EXPECT_EQ(r + r, Coef(2) * r);
  EXPECT_TRUE(power(Coef(-2), Q::ratio(1, 2)).bad());
  EXPECT_TRUE(Q::ratio(1, 0).bad());
  EXPECT_EQ(Q::from(*Rational::parse("1e-05")), Q::ratio(1, 100000));
}

}  // namespace
}  // namespace tessera::mugraph
