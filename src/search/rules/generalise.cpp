#include "search/rules/generalise.h"

#include <algorithm>
#include <map>
#include <set>

#include "search/rules/check.h"
#include "search/rules/instance.h"

namespace tessera::rules {
namespace {

using synth::Form, synth::kNone, synth::Node, synth::ValueId;

constexpr int kLooks = 10;  // random instances at each step

std::string letter(size_t i, const char* letters) {
  const std::string all = letters;
  return i < all.size() ? std::string(1, all[i]) : all[0] + std::to_string(i);
}

class Restating {
 public:
  Restating(const Rule& from, const std::vector<Replacement>& variables)
      : from_(from), variables_(variables), made_(from.nodes.size(), kNone) {
    to_.name = from.name;
    to_.real = from.real;
    to_.integer = from.integer;
    to_.learned = from.learned;
    to_.checked = from.checked;
  }

  std::optional<Rule> run(ValueId left, ValueId right) {
    to_.left = value(left);
    const size_t names = to_.variables.size(), numbers = constants_.size();
    to_.right = value(right);
    if (to_.variables.size() != names || constants_.size() != numbers) return std::nullopt;
    for (const Condition& c : from_.conditions) {
      const size_t before = to_.variables.size();
      to_.conditions.push_back({c.kind, value(c.value), c.implied});
      if (to_.variables.size() != before) return std::nullopt;
    }
    return std::move(to_);
  }

 private:
  ValueId value(ValueId v) {
    if (made_[v] == kNone) made_[v] = make(v);
    return made_[v];
  }
  ValueId make(ValueId v) {
    for (const Replacement& r : variables_)
      if (r.value == v) return variable(r.shape, r.boolean);
    Node n = from_.nodes[v];
    if (n.form == Form::Leaf) {
      const Variable& x = from_.variables[n.attr];
      return variable(x.shape, x.boolean);
    }
    // What indexes lists of the rule.
    if (n.form == Form::Broadcast) {
      to_.shapes.push_back(pattern(from_.shapes[n.attr]));
      n.attr = to_.shapes.size() - 1;
    } else if (n.form == Form::Stack) {
      Rule::Stack s = from_.stacks[n.attr];
      for (ValueId& a : s.args) a = value(a);
      to_.stacks.push_back(std::move(s));
      n.attr = to_.stacks.size() - 1;
    }
    for (int i = 0; i < n.arity; ++i) n.arg[size_t(i)] = value(n.arg[size_t(i)]);
    if (has_constant(n)) n.attr = constant(uint32_t(n.attr));
    return add_node(to_, n);
  }
  ValueId variable(const ShapePattern& shape, bool boolean) {
    Node leaf;
    leaf.attr = to_.variables.size();
    to_.variables.push_back({letter(leaf.attr, "ABCDEFGH"), pattern(shape), boolean});
    return add_node(to_, leaf);
  }
  ShapePattern pattern(ShapePattern s) {
    if (s.leading && !s.leading->empty())
      s.leading =
          letter(size_t(leading_.emplace(*s.leading, leading_.size()).first->second), "stuvw");
    for (std::string& d : s.dims)
      if (d != "1") d = letter(size_t(dims_.emplace(d, dims_.size()).first->second), "mnkpqr");
    return s;
  }
  uint32_t constant(uint32_t index) {
    Constant c = from_.constants[index];
    if (c.kind == Constant::Kind::Variable) {
      c.name =
          letter(size_t(constants_.emplace(c.name, constants_.size()).first->second), "cdefgh");
    } else if (c.kind != Constant::Kind::Literal) {
      c.a = constant(c.a);
      c.b = constant(c.b);
    }
    return add_unique(to_.constants, c);
  }

  const Rule& from_;
  const std::vector<Replacement>& variables_;
  Rule to_;
  std::vector<ValueId> made_;
  std::map<std::string, size_t> dims_, leading_, constants_;
};

bool good(const std::optional<Rule>& r, int looks = kLooks) { return r && plausible(*r, looks, 5); }

// f(x, a) = f(x, b) says no more than a = b.
Rule without_context(Rule rule) {
  for (;;) {
    const Node &l = rule.nodes[rule.left], &r = rule.nodes[rule.right];
    if (l.form != r.form || l.kind != r.kind || l.attr != r.attr || l.arity != r.arity) return rule;
    std::vector<std::pair<ValueId, ValueId>> differ;
    auto compare = [&](std::array<ValueId, 3> right) {
      std::vector<std::pair<ValueId, ValueId>> found;
      for (size_t i = 0; i < size_t(l.arity); ++i)
        if (l.arg[i] != right[i]) found.emplace_back(l.arg[i], right[i]);
      if (found.size() == 1) differ = found;
    };
    compare(r.arg);
    if (differ.empty() && has(l.kind, algebra::Commutative))
      compare({r.arg[1], r.arg[0], r.arg[2]});
    if (differ.size() != 1) return rule;
    const Form form = rule.nodes[differ[0].first].form;
    if (form == Form::Leaf || form == Form::Const) return rule;
    std::optional<Rule> inner = restated(rule, differ[0].first, differ[0].second);
    if (!good(inner)) return rule;
    rule = std::move(*inner);
  }
}

// Subterms become variables, large ones first.
Rule with_variables(Rule rule) {
  for (bool changed = true; changed;) {
    changed = false;
    Rng rng(3);
    std::optional<std::vector<Type>> typed;
    Assignment at;
    for (int i = 0; i < 8 && !typed; ++i) {
      at = draw(rule, Sizes::Unlike, rng);
      typed = types(rule, at, DType::F64);
    }
    if (!typed) return rule;
    // Axes by extent: unlike extents have unlike names.
    std::map<int64_t, std::string> names{{1, "1"}};
    for (const auto& [name, extent] : at.dims) names.emplace(extent, name);
    const std::vector<bool> left = reached(rule, rule.left);
    for (ValueId v = rule.left; v-- > 0 && !changed;) {
      const Form form = rule.nodes[v].form;
      if (!left[v] || form == Form::Leaf || form == Form::Const) continue;
      Replacement r{v, {}, (*typed)[v].dtype == DType::Bool};
      bool named = true;
      for (int64_t e : extents((*typed)[v].shape)) {
        named = named && names.count(e);
        if (named) r.shape.dims.push_back(names[e]);
      }
      if (!named) continue;
      std::optional<Rule> more = restated(rule, rule.left, rule.right, {r});
      if (!more || more->nodes[more->left].form == Form::Leaf || !good(more)) continue;
      rule = std::move(*more);
      changed = true;
    }
  }
  return rule;
}

// 0, 1 or −1: sums and products with it are written without it.
bool unit(const Constant& c) {
  return c.kind == Constant::Kind::Literal && c.value.is_integer() && std::abs(c.value.num()) <= 1;
}

// Each side its own nodes, so that constants change on one side only.
Rule separated(Rule s) {
  const std::vector<bool> left = reached(s, s.left), right = reached(s, s.right);
  const size_t count = s.nodes.size();
  std::vector<ValueId> copy(count);
  for (ValueId v = 0; v < count; ++v) {
    copy[v] = v;
    const Node n = s.nodes[v];
    if (!right[v] || !left[v] || n.form == Form::Leaf || n.form == Form::Stack) continue;
    copy[v] = ValueId(s.nodes.size());
    s.nodes.push_back(n);
  }
  for (ValueId v = 0; v < s.nodes.size(); ++v) {
    if (v < count && (left[v] || !right[v])) continue;
    for (int i = 0; i < s.nodes[v].arity; ++i)
      s.nodes[v].arg[size_t(i)] = copy[s.nodes[v].arg[size_t(i)]];
  }
  s.right = copy[s.right];
  return s;
}

// Numbers of the left side become variables, and numbers of the right side what is made of them.
class Numbers {
 public:
  explicit Numbers(Rule rule) : rule_(std::move(rule)) {}

  Rule run() {
    for (bool changed = true; changed;) {
      changed = false;
      sides_ = separated(rule_);
      left_ = reached(sides_, sides_.left);
      right_ = reached(sides_, sides_.right);
      ours_ = numbers_in(left_);
      for (uint32_t literal : ours_) {
        if (sides_.constants[literal].kind != Kind::Literal) continue;
        if (!tried_.insert(print(rule_) + std::to_string(literal)).second) continue;
        changed = vary(literal);
        if (changed) break;
      }
    }
    return rule_;
  }

 private:
  using Kind = Constant::Kind;

  std::set<uint32_t> numbers_in(const std::vector<bool>& side) const {
    std::set<uint32_t> found;
    for (ValueId v = 0; v < side.size(); ++v)
      if (side[v] && has_constant(sides_.nodes[v])) found.insert(uint32_t(sides_.nodes[v].attr));
    return found;
  }

  // Makes the number a variable; whether the rule is plausible with some choice for the right side.
  bool vary(uint32_t literal) {
    Rule r = sides_;
    const uint32_t variable =
        add_unique(r.constants, {Kind::Variable, {}, "new" + std::to_string(literal)});
    const std::vector<uint32_t> made = made_of(r, variable, literal);
    std::vector<std::optional<Rational>> known(r.constants.size());
    for (size_t k = 0; k < r.constants.size(); ++k)  // any value; literals are not looked at
      if (r.constants[k].kind == Kind::Variable) known[k] = Rational(2);
    known[variable] = sides_.constants[literal].value;
    std::vector<uint32_t> numbers;
    std::vector<std::vector<uint32_t>> options;
    for (uint32_t t : numbers_in(right_)) {
      numbers.push_back(t);
      options.push_back({t});
      // A number that is made of variables may become another such number.
      const std::optional<Rational> now = value(r, t, known);
      for (uint32_t m : made)
        if (now && value(r, m, known) == now) options.back().push_back(m);
    }
    // Every choice of options, last ones first.
    std::vector<size_t> at = mapped(options, [&](const auto& o) { return o.size() - 1; });
    for (int tries = 0; tries < 60; ++tries) {
      Rule t = r;
      for (ValueId v = 0; v < t.nodes.size(); ++v) {
        Node& n = t.nodes[v];
        if (!has_constant(n)) continue;
        if (left_[v] && n.attr == literal) {
          n.attr = variable;
        } else if (right_[v] && !left_[v]) {
          const size_t i = size_t(std::ranges::find(numbers, n.attr) - numbers.begin());
          n.attr = options[i][at[i]];
        }
      }
      const std::optional<Rule> stated = restated(t, t.left, t.right);
      if (good(stated)) {
        rule_ = *stated;
        return true;
      }
      size_t i = 0;
      while (i < at.size() && at[i] == 0) at[i] = options[i].size() - 1, ++i;
      if (i == at.size()) return false;
      --at[i];
    }
    return false;
  }

  // What may stand for a number of the right side.
  std::vector<uint32_t> made_of(Rule& r, uint32_t variable, uint32_t literal) const {
    std::vector<uint32_t> made{variable};
    auto make = [&](Kind kind, uint32_t a, uint32_t b) {
      made.push_back(add_unique(r.constants, {kind, {}, "", a, b}));
    };
    auto number = [&](const Rational& x) { return add_unique(r.constants, {Kind::Literal, x}); };
    const uint32_t zero = number(0), one = number(1), two = number(2);
    make(Kind::Add, variable, one);
    make(Kind::Sub, variable, one);
    make(Kind::Sub, one, variable);
    make(Kind::Sub, zero, variable);
    make(Kind::Mul, variable, two);
    make(Kind::Div, variable, two);
    make(Kind::Div, one, variable);
    make(Kind::Mul, variable, variable);
    make(Kind::Add, variable, two);
    make(Kind::Sub, variable, two);
    make(Kind::Add, made[7], one);
    for (uint32_t other : ours_) {
      if (other == literal || unit(sides_.constants[other])) continue;
      // Those that have names already come first.
      const bool named = sides_.constants[other].kind == Kind::Variable;
      make(Kind::Add, named ? other : variable, named ? variable : other);
      make(Kind::Sub, variable, other);
      make(Kind::Sub, other, variable);
      make(Kind::Mul, named ? other : variable, named ? variable : other);
      make(Kind::Div, variable, other);
      make(Kind::Div, other, variable);
    }
    return made;
  }

  Rule rule_, sides_;
  std::vector<bool> left_, right_;  // by node of `sides_`
  std::set<uint32_t> ours_;         // numbers of the left side
  std::set<std::string> tried_;
};

// Whether the types of the left side fit at unlike extents, as names that only happen to be equal
// make them.
bool fits(const Rule& rule) {
  Rng rng(9);
  for (Sizes sizes : {Sizes::Unlike, Sizes::Bare, Sizes::Unlike, Sizes::Bare})
    if (!build(rule, {rule.left}, draw(rule, sizes, rng), DType::F64)) return false;
  return true;
}

class Shapes {
 public:
  explicit Shapes(Rule rule) : best_(std::move(rule)) {}

  Rule run() {
    lead();
    shorten();
    split();
    return best_;
  }

 private:
  bool take(Rule r) {
    const std::optional<Rule> stated = restated(r, r.left, r.right);
    // Shapes that go wrong are few among those drawn.
    if (!stated || !fits(*stated) || !good(stated) || !good(stated, 5 * kLooks)) return false;
    best_ = *stated;
    return true;
  }

  // "..." in front of as many variables as possible, any axes rather than the same ones.
  void lead() {
    const size_t n = best_.variables.size();
    if (n > 5) return;
    std::vector<unsigned> sets;
    for (unsigned set = 1; set < 1u << n; ++set) sets.push_back(set);
    std::ranges::stable_sort(
        sets, [](unsigned a, unsigned b) { return __builtin_popcount(a) > __builtin_popcount(b); });
    for (unsigned set : sets) {
      for (const char* leading : {"", "s"}) {
        for (bool bare : {true, false}) {
          Rule r = best_;
          for (size_t v = 0; v < n; ++v) {
            if (!(set >> v & 1)) continue;
            r.variables[v].shape.leading = leading;
            if (bare) r.variables[v].shape.dims.clear();
          }
          for (ShapePattern& s : r.shapes) {
            s.leading = "s";
            if (bare) s.dims.clear();
          }
          if (take(r)) return;
          if (!bare || leading[0] == 0) continue;
          // A number, as often as the left side has elements.
          const Node spread = synth::view(Form::Broadcast, r.right, r.shapes.size());
          r.shapes.push_back({"s", {}});
          r.right = add_node(r, spread);
          if (take(std::move(r))) return;
        }
      }
    }
  }

  // Extents behind "..." that need no name.
  void shorten() {
    for (bool changed = true; changed;) {
      changed = false;
      for (size_t v = 0; v < best_.variables.size() && !changed; ++v) {
        const ShapePattern& s = best_.variables[v].shape;
        if (!s.leading || s.dims.empty()) continue;
        Rule r = best_;
        r.variables[v].shape.dims.erase(r.variables[v].shape.dims.begin());
        changed = take(std::move(r));
      }
      // All at once, where they have to stay the same.
      if (!changed) {
        Rule r = best_;
        bool any = false;
        auto drop = [&](ShapePattern& s) {
          if (!s.leading || s.dims.empty()) return;
          s.dims.erase(s.dims.begin());
          any = true;
        };
        for (Variable& v : r.variables) drop(v.shape);
        for (ShapePattern& s : r.shapes) drop(s);
        changed = any && take(std::move(r));
      }
    }
  }

  // Extents that need not be equal, or 1.
  void split() {
    for (bool changed = true; changed;) {
      changed = false;
      std::map<std::string, int> uses;
      for (const Variable& v : best_.variables)
        for (const std::string& d : v.shape.dims) ++uses[d];
      for (size_t v = 0; v < best_.variables.size() && !changed; ++v) {
        for (size_t d = 0; d < best_.variables[v].shape.dims.size() && !changed; ++d) {
          const std::string& name = best_.variables[v].shape.dims[d];
          if (name != "1" && uses[name] < 2) continue;
          Rule r = best_;
          r.variables[v].shape.dims[d] = "other";
          changed = take(std::move(r));
        }
      }
    }
  }

  Rule best_;
};

// The rule for positive variables, where it is not true of all numbers.
std::optional<Rule> under_conditions(const Rule& raw) {
  for (auto kind : {Condition::Kind::NonNegative, Condition::Kind::Positive}) {
    Rule r = raw;
    restrict_all(r, kind);
    std::optional<Rule> stated = restated(r, r.left, r.right);
    if (!good(stated)) continue;
    drop_restrictions(*stated, [](const Rule& fewer) { return good(fewer); });
    return stated;
  }
  return std::nullopt;
}

}  // namespace

std::optional<Rule> restated(const Rule& rule, ValueId left, ValueId right,
                             const std::vector<Replacement>& variables) {
  return Restating(rule, variables).run(left, right);
}

void restrict_all(Rule& rule, Condition::Kind kind) {
  for (ValueId v = 0; v < rule.nodes.size(); ++v)
    if (rule.nodes[v].form == Form::Leaf && !rule.variables[rule.nodes[v].attr].boolean)
      rule.conditions.push_back({kind, v, false});
}

void drop_restrictions(Rule& rule, const std::function<bool(const Rule&)>& holds) {
  for (size_t c = 0; c < rule.conditions.size();) {
    Rule fewer = rule;
    fewer.conditions.erase(fewer.conditions.begin() + long(c));
    if (!rule.conditions[c].implied && holds(fewer))
      rule = std::move(fewer);
    else
      ++c;
  }
}

int size(const Rule& rule, ValueId side) {
  const std::vector<bool> in = reached(rule, side);
  int count = 0;
  for (ValueId v = 0; v < in.size(); ++v) {
    const Form f = rule.nodes[v].form;
    count += in[v] && (f == Form::Pointwise || f == Form::Reduce || f == Form::Dot ||
                       f == Form::Stack || f == Form::Diagonal || f == Form::Triangle);
  }
  return count;
}

bool about_numbers(const Rule& rule) {
  constexpr int64_t kMost = 6;
  const std::vector<bool> left = reached(rule, rule.left);
  for (ValueId v = 0; v < left.size(); ++v) {
    const Node& n = rule.nodes[v];
    if (!left[v] || (!has_constant(n))) continue;
    const Constant& c = rule.constants[n.attr];
    if (c.kind == Constant::Kind::Literal &&
        (std::abs(c.value.num()) > kMost || c.value.den() > 2 || c.value.exp2() != 0))
      return true;
  }
  return false;
}

std::vector<Rule> generalised(const Rule& raw) {
  std::optional<Rule> start = restated(raw, raw.left, raw.right);
  if (!start) return {};
  if (!good(start)) start = under_conditions(*start);
  if (!start) return {};
  Rule rule = Numbers(with_variables(without_context(*start))).run();
  std::vector<Rule> found{Shapes(rule).run()};
  // Sums over all axes: of any number of axes, too.
  Rule all = rule;
  bool whole = false;
  Rng rng(4);
  const std::optional<std::vector<Type>> typed =
      types(rule, draw(rule, Sizes::Unlike, rng), DType::F64);
  for (Node& n : all.nodes) {
    if (!typed || n.form != Form::Reduce) continue;
    if (n.attr + 1 != uint64_t(1) << (*typed)[n.arg[0]].rank()) continue;
    n.attr = kAllAxes;
    whole = true;
  }
  if (whole && good(all)) {
    all = Shapes(all).run();
    bool led = false;
    for (const Variable& v : all.variables) led = led || v.shape.leading;
    if (led) found.push_back(std::move(all));
  }
  for (Rule& r : found) {
    if (const auto needed = assumptions(r))
      r.conditions.insert(r.conditions.end(), needed->begin(), needed->end());
    r.integer = r.conditions.empty() && holds_for_integers(r, 8, 6);
  }
  return found;
}

}  // namespace tessera::rules
