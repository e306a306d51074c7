#include "search/rules/check.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/error.h"
#include "base/text.h"
#include "eval/eval.h"
#include "search/rules/instance.h"
#include "verify/all_sizes.h"
#include "verify/funnel.h"

namespace tessera::rules {
namespace {

using synth::Form, synth::Node, synth::ValueId;

constexpr int kRedraws = 12;  // of sizes that do not fit the left side

// Both sides at one assignment that fits the left side.
struct Sides {
  Assignment at;
  std::optional<Graph> left, right;
};
std::optional<Sides> sides(const Rule& rule, Sizes sizes, DType dtype, Rng& rng) {
  for (int i = 0; i < kRedraws; ++i) {
    Sides s;
    s.at = draw(rule, sizes, rng);
    s.left = build(rule, {rule.left}, s.at, dtype);
    if (!s.left) continue;
    bool numbers = true;
    for (const Node& n : rule.nodes)
      if (has_constant(n)) numbers = numbers && value(rule, uint32_t(n.attr), s.at.numbers);
    if (!numbers) continue;
    s.right = build(rule, {rule.right}, s.at, dtype);
    return s;
  }
  return std::nullopt;
}
bool same_interface(const Sides& s) {
  return s.right && s.left->type(s.left->outputs()[0]) == s.right->type(s.right->outputs()[0]);
}

// "A [3 2], B [2], c = 1/2"
std::string told(const Rule& rule, const Assignment& at, DType dtype) {
  std::string text = name(dtype);
  for (size_t v = 0; v < rule.variables.size(); ++v)
    text += " " + rule.variables[v].name + "[" + joined(at.shapes[v]) + "]";
  for (size_t c = 0; c < rule.constants.size(); ++c)
    if (at.numbers[c]) text += " " + rule.constants[c].name + "=" + at.numbers[c]->str();
  return text;
}

// Kinds of inputs of a first look.
enum class Look { Normal, Positive, Few };

std::vector<NDArray> inputs(const Graph& g, Look look, Rng& rng) {
  std::vector<NDArray> all;
  for (TensorId t : g.inputs()) {
    NDArray a = NDArray::zeros(g.type(t).dtype, extents(g.type(t).shape));
    for (double& x : a.reals) {
      const double u = 2 * rng.unit() - 1;
      x = look == Look::Few        ? double(rng.between(-2, 2))
          : look == Look::Positive ? 0.25 + 2 * rng.unit()
                                   : u + std::copysign(0.1, u);
    }
    for (int64_t& x : a.ints) x = int64_t(rng.below(a.dtype == DType::Bool ? 2 : 9));
    all.push_back(std::move(a));
  }
  return all;
}

}  // namespace

bool plausible(const Rule& rule, int instances, uint64_t seed) {
  Rng rng(seed);
  int64_t compared = 0;
  for (int i = 0; i < instances; ++i) {
    const Sizes sizes = i == 0 ? Sizes::Unlike : i == 1 ? Sizes::One : Sizes::Mixed;
    const std::optional<Sides> s = sides(rule, sizes, DType::F64, rng);
    if (!s) continue;
    if (!same_interface(*s)) return false;
    for (Look look : {Look::Positive, Look::Normal, Look::Few}) {
      const std::vector<NDArray> in = inputs(*s->left, look, rng);
      const NDArray a = eval(*s->left, in)[0], b = eval(*s->right, in)[0];
      if (a.ints != b.ints) return false;
      compared += int64_t(a.ints.size());
      double scale = 1;
      for (double x : a.reals)
        if (std::isfinite(x)) scale = std::max(scale, std::fabs(x));
      for (size_t k = 0; k < a.reals.size(); ++k) {
        if (!std::isfinite(a.reals[k])) continue;
        ++compared;
        if (!(std::fabs(a.reals[k] - b.reals[k]) <= 1e-9 * scale)) return false;
      }
    }
  }
  return compared > 0;
}

bool holds_for_integers(const Rule& rule, int instances, uint64_t seed) {
  Rng rng(seed);
  int compared = 0;
  for (int i = 0; i < instances; ++i) {
    const DType dtype = i % 2 ? DType::I64 : DType::I32;
    const std::optional<Sides> s = sides(rule, i == 0 ? Sizes::Unlike : Sizes::Mixed, dtype, rng);
    if (!s) continue;
    if (!same_interface(*s)) return false;
    VerifyOptions options;
    options.scales = false;
    options.seed = rng();
    options.minimise = false;
    try {
      if (!verify(*s->left, *s->right, options).equal()) return false;
    } catch (const Error&) {
      return false;
    }
    ++compared;
  }
  return compared > 0;
}

namespace {

// What the left side's operators ask of their operands.
std::vector<Condition> asked_by_left(const Rule& rule) {
  std::vector<Condition> asked;
  const std::vector<bool> in_left = reached(rule, rule.left);
  using Kind = Condition::Kind;
  auto ask = [&](Kind kind, ValueId v) {
    for (const Condition& c : asked)
      if (c.kind == kind && c.value == v) return;
    asked.push_back({kind, v, true});
  };
  for (size_t v = 0; v < in_left.size(); ++v) {
    const Node& n = rule.nodes[v];
    if (!in_left[v] || n.form != Form::Pointwise) continue;
    if (n.kind == OpKind::Div && rule.nodes[n.arg[1]].form != Form::Const)
      ask(Kind::Nonzero, n.arg[1]);
    if (n.kind == OpKind::Sqrt) ask(Kind::NonNegative, n.arg[0]);
    if (n.kind == OpKind::Rsqrt || n.kind == OpKind::Log || n.kind == OpKind::Power) {
      ask(Kind::Positive, n.arg[0]);
      ask(Kind::NonNegative, n.arg[0]);  // what comes of -inf may be a number again
    }
    if (n.kind != OpKind::Pow) continue;
    const Constant& c = rule.constants[n.attr];
    if (c.kind != Constant::Kind::Literal)
      ask(Kind::Positive, n.arg[0]);
    else if (!c.value.is_integer())
      ask(c.value.negative() ? Kind::Positive : Kind::NonNegative, n.arg[0]);
    else if (c.value.negative())
      ask(Kind::Nonzero, n.arg[0]);
  }
  return asked;
}

bool met(Condition::Kind kind, double x) {
  switch (kind) {
  case Condition::Kind::Positive: return x > 0;
  case Condition::Kind::NonNegative: return x >= 0;
  case Condition::Kind::Nonzero: return x != 0;
  }
  unreachable("Condition");
}

// A rule at single elements: where both sides are numbers, and which conditions hold.
struct Point {
  bool left, right;
  std::vector<bool> met;
};
std::vector<Point> points(const Rule& rule, const std::vector<Condition>& conditions) {
  constexpr int kPoints = 400;
  static constexpr double kTelling[] = {0, -1, 1, -2, 2, -0.5, 0.5, -3};
  std::vector<ValueId> values{rule.left, rule.right};
  for (const Condition& c : conditions) values.push_back(c.value);
  Rng rng(77);
  Rule bare = rule;  // without `where`: its inputs are the variables
  bare.conditions.clear();
  std::vector<Point> found;
  for (int i = 0; i < kPoints; ++i) {
    const std::optional<Graph> g = build(bare, values, draw(rule, Sizes::One, rng), DType::F64);
    if (!g) continue;
    std::vector<NDArray> in = inputs(*g, Look::Normal, rng);
    for (NDArray& a : in)
      for (double& x : a.reals)
        if (rng.chance(0.8)) x = kTelling[rng.below(std::size(kTelling))];
    bool holds = true;
    for (const Condition& c : rule.conditions)
      if (const Node& n = rule.nodes[c.value]; !c.implied && n.form == Form::Leaf)
        for (double x : in[n.attr].reals) holds = holds && met(c.kind, x);
    if (!holds) continue;
    const std::vector<NDArray> out = eval(*g, in);
    auto number = [&](size_t k) {
      if (!is_float(out[k].dtype)) return double(out[k].ints.at(0));
      return out[k].reals.size() == 1 ? out[k].reals[0] : NAN;
    };
    Point p{std::isfinite(number(0)), std::isfinite(number(1)), {}};
    for (size_t c = 0; c < conditions.size(); ++c)
      p.met.push_back(met(conditions[c].kind, number(2 + c)));
    found.push_back(std::move(p));
  }
  return found;
}

}  // namespace

std::optional<std::vector<Condition>> assumptions(const Rule& rule) {
  const std::vector<Condition> asked = asked_by_left(rule);
  std::vector<Point> grown;  // where the domain grows: some condition has to fail
  std::vector<bool> too_strong(asked.size(), false);
  for (Point& p : points(rule, asked)) {
    if (p.left && !p.right) return std::nullopt;
    for (size_t c = 0; p.left && c < asked.size(); ++c)
      if (!p.met[c]) too_strong[c] = true;
    if (!p.left && p.right) grown.push_back(std::move(p));
  }
  // The fewest that tell all such points, the most telling first.
  std::vector<Condition> kept;
  while (!grown.empty()) {
    size_t best = 0;
    std::ptrdiff_t most = 0;
    for (size_t c = 0; c < asked.size(); ++c) {
      if (too_strong[c]) continue;
      const auto fails = [&](const Point& p) { return !p.met[c]; };
      const auto count = std::ranges::count_if(grown, fails);
      if (count > most) most = count, best = c;
    }
    if (most == 0) return std::nullopt;
    kept.push_back(asked[best]);
    std::erase_if(grown, [&](const Point& p) { return !p.met[best]; });
  }
  return kept;
}

namespace {

// What is wrong with the conditions of a rule on its domain; empty if nothing.
std::string wrong_domain(const Rule& rule) {
  std::vector<Condition> declared =
      those(rule.conditions, [&](const Condition& c) { return c.implied; });
  auto told = [&](const Condition& c) {
    Rule one = rule;
    one.conditions = {c};
    const std::string text = print(one);
    const size_t from = text.find("  assumes ") + 2;
    return "'" + text.substr(from, text.find('\n', from) - from) + "'";
  };
  std::vector<bool> useful(declared.size(), false);
  for (const Point& p : points(rule, declared)) {
    if (p.left && !p.right) return "the right side is undefined where the left side is not";
    bool fails = false;
    for (size_t c = 0; c < declared.size(); ++c) {
      if (p.met[c]) continue;
      if (p.left) return "the left side is defined without " + told(declared[c]);
      fails = true;
      useful[c] = useful[c] || p.right;
    }
    if (p.left || !p.right || fails) continue;
    const auto needed = assumptions(rule);
    return "the right side is defined at more inputs than the left side" +
           (needed && !needed->empty() ? ": it needs " + told(needed->front()) : "");
  }
  for (size_t c = 0; c < declared.size(); ++c)
    if (!useful[c]) return "the domain does not grow where not: " + told(declared[c]);
  return "";
}

// With all that `sizes` says, but no axes for "..." of the variable `without`, if there is one.
std::string not_for_all_sizes(const Rule& rule, Sizes sizes, std::optional<size_t> without,
                              Rng& rng) {
  constexpr size_t kInstances = 4;
  const DType dtype = rule.real ? DType::F64 : DType::I64;
  for (int attempt = 0; attempt < kRedraws; ++attempt) {
    const std::vector<std::optional<Rational>> numbers = draw(rule, Sizes::One, rng).numbers;
    std::vector<Graph> left, right;
    while (left.size() < kInstances) {
      Assignment a = draw(rule, sizes, rng);
      a.numbers = numbers;
      if (without) {
        std::vector<int64_t>& shape = a.shapes[*without];
        shape.erase(shape.begin(), shape.end() - long(rule.variables[*without].shape.dims.size()));
      }
      const auto l = build(rule, {rule.left}, a, dtype), r = build(rule, {rule.right}, a, dtype);
      if (!l || !r) break;
      left.push_back(*l);
      right.push_back(*r);
    }
    if (left.size() < kInstances) continue;
    const AllSizes found = equal_for_all_sizes(left, right);
    return found.proved || found.what == kNoSizes ? "" : found.what;
  }
  return "";  // it takes no such axes
}

}  // namespace

std::string not_for_all_sizes(const Rule& rule, uint64_t seed) {
  Rng rng(seed);
  for (Sizes sizes : {Sizes::AnyBare, Sizes::Any})
    if (const std::string why = not_for_all_sizes(rule, sizes, std::nullopt, rng); !why.empty())
      return why;
  for (size_t v = 0; rule.variables.size() > 1 && v < rule.variables.size(); ++v)
    if (const auto& leading = rule.variables[v].shape.leading; leading && leading->empty())
      if (const std::string why = not_for_all_sizes(rule, Sizes::Any, v, rng); !why.empty())
        return why;
  return "";
}

CheckResult check(const Rule& rule, const CheckOptions& o) {
  CheckResult result;
  auto fail = [&](std::string why) {
    result.why = std::move(why);
    return result;
  };
  if (!rule.real && !rule.integer) return fail("it holds for no element type");
  for (const Condition& c : rule.conditions)
    if (!c.implied &&
        (rule.nodes[c.value].form != Form::Leaf || c.kind == Condition::Kind::Nonzero))
      return fail("only 'where VARIABLE > 0' and 'where VARIABLE >= 0' can be checked");
  if (!rule.real) {
    if (!holds_for_integers(rule, o.instances, o.seed)) return fail("refuted for integers");
    result.instances = o.instances;
    result.all_sizes = not_for_all_sizes(rule, o.seed).empty();
    result.holds = true;
    return result;
  }
  result.all_sizes = not_for_all_sizes(rule, o.seed).empty();
  Rng rng(o.seed);
  int fitting = 0;
  for (int i = 0; i < o.instances; ++i) {
    if (o.cancel && o.cancel->load(std::memory_order_relaxed)) return fail("cancelled");
    const DType dtype = i % 4 == 3 ? DType::F64 : DType::F32;
    const Sizes sizes = i == 0 ? Sizes::Unlike : i == 1 ? Sizes::One : Sizes::Mixed;
    const std::optional<Sides> s = sides(rule, sizes, dtype, rng);
    if (!s) continue;
    ++fitting;
    const std::string where = " at " + told(rule, s->at, dtype);
    if (!same_interface(*s))
      return fail((s->right ? "the sides have different types" : "the right side has no type") +
                  where);
    VerifyOptions options;
    options.scales = false;
    options.seed = rng();
    options.cancel = o.cancel;
    options.minimise = false;
    // Instances of few elements: terms of larger ones overwhelm a solver.
    options.second_opinion = o.second_opinion && sizes != Sizes::Mixed;
    options.z3 = o.z3;
    try {
      const Verdict v = verify(*s->left, *s->right, options);
      if (v.refuted()) return fail("refuted" + where + ": " + v.counterexample().what);
      if (v.unknown()) {
        // Some sizes leave nothing to compare, as where a maximum decides that all is undefined.
        if (v.why_unknown().reason == UnknownReason::Undefined) continue;
        return fail(std::string("cannot tell (") + name(v.why_unknown().reason) + ")" + where +
                    ": " + v.why_unknown().what);
      }
      result.agreed += v.certificate().second_opinion.rfind("agrees", 0) == 0;
    } catch (const Error& e) {
      return fail(std::string(e.what()) + where);
    }
    ++result.instances;
  }
  if (fitting < (o.instances + 1) / 2) return fail("the left side's types fit at hardly any sizes");
  if (result.instances == 0) return fail("nothing could be compared");
  if (const std::string wrong = wrong_domain(rule); !wrong.empty()) return fail(wrong);
  if (rule.integer && !holds_for_integers(rule, std::max(4, o.instances / 4), o.seed + 1))
    return fail("it does not hold for integers");
  result.holds = true;
  return result;
}

}  // namespace tessera::rules
