#include "search/rules/rewrite.h"

#include <algorithm>
#include <functional>
#include <map>
#include <set>

#include "search/rules/generalise.h"
#include "search/rules/instance.h"

namespace tessera::rules {
namespace {

using synth::Form, synth::kNone, synth::Node, synth::ValueId;

// Terms of one rule, which other rules rewrite.
class Terms {
 public:
  explicit Terms(const Rule& rule) : rule_(rule) {
    // Shapes are compared at sizes at which names are unlike, and at others.
    Rng rng(21);
    for (int i = 0; i < 12 && at_.size() < 3; ++i) {
      at_.push_back(draw(rule, i == 0 ? Sizes::Unlike : Sizes::Mixed, rng));
      if (auto t = types(rule_, at_.back(), DType::F64))
        typed_.push_back(std::move(*t));
      else
        at_.pop_back();
    }
  }

  bool comparable() const { return !at_.empty(); }

  // What a term becomes in a few steps, by key.
  std::set<std::string> reachable(ValueId from, const std::vector<Rule>& by, int steps) {
    constexpr size_t kMost = 400;
    std::set<std::string> seen{key(from)};
    std::vector<ValueId> now{from};
    for (int step = 0; step < steps; ++step) {
      std::vector<ValueId> next;
      for (ValueId term : now)
        for (const Rule& k : by)
          for (ValueId v : rewritten(term, k))
            if (seen.size() < kMost && seen.insert(key(v)).second) next.push_back(v);
      now = std::move(next);
    }
    return seen;
  }

  // Equal up to the order of operands that commute?
  std::string key(ValueId v) {
    const Node& n = rule_.nodes[v];
    std::string text = std::to_string(int(n.form)) + "." + std::to_string(int(n.kind)) + ".";
    if (has_constant(n))
      text += number(uint32_t(n.attr));
    else if (n.form == Form::Stack)
      text += std::to_string(rule_.stacks[n.attr].axis);
    else if (n.form == Form::Broadcast) {
      // To the shape that it has already; else shapes are told by what they are at our sizes.
      bool changes = false;
      for (const auto& t : typed_) {
        changes = changes || !(t[v] == t[n.arg[0]]);
        text += t[v].str();
      }
      if (!changes) return key(n.arg[0]);
    } else
      text += std::to_string(n.attr);
    std::vector<std::string> args = mapped(operands(rule_, v), [&](ValueId a) { return key(a); });
    if (n.form == Form::Pointwise && has(n.kind, algebra::Commutative)) std::ranges::sort(args);
    text += "(";
    for (const std::string& a : args) text += a + ",";
    return text + ")";
  }

  // The term after each application of the rule anywhere in it.
  std::vector<ValueId> rewritten(ValueId term, const Rule& by) {
    std::vector<ValueId> result;
    for (const Condition& c : by.conditions)
      if (!c.implied) return result;
    const std::vector<bool> places = reached(rule_, term);
    for (ValueId place = 0; place < places.size(); ++place) {
      if (!places[place]) continue;
      for (const Match& m : matches(by, place)) {
        const size_t before = rule_.nodes.size();
        const ValueId made = instance(by, by.right, m);
        std::map<ValueId, ValueId> with{{place, made}};
        const ValueId whole = made == kNone || made == place ? kNone : exchanged(term, with);
        if (whole == kNone || !typed()) {
          rule_.nodes.resize(before);
          continue;
        }
        result.push_back(whole);
      }
    }
    return result;
  }

  // Types for nodes that are new; false where they have none.
  bool typed() {
    for (size_t i = 0; i < at_.size(); ++i) {
      if (typed_[i].size() == rule_.nodes.size()) continue;
      auto t = types(rule_, at_[i], DType::F64);
      if (!t) return false;
      typed_[i] = std::move(*t);
    }
    return true;
  }

 private:
  struct Match {
    std::vector<ValueId> variables;
    std::vector<uint32_t> constants;  // of ours, for those of the other rule that are variables
  };

  std::string number(uint32_t index) const {
    const Constant& c = rule_.constants[index];
    if (c.kind == Constant::Kind::Literal) return c.value.str();
    if (c.kind == Constant::Kind::Variable) return c.name;
    std::string a = number(c.a), b = number(c.b);
    const bool commutes = c.kind == Constant::Kind::Add || c.kind == Constant::Kind::Mul;
    if (commutes && b < a) std::swap(a, b);
    return std::to_string(int(c.kind)) + "[" + a + "," + b + "]";
  }

  std::vector<Match> matches(const Rule& by, ValueId place) {
    std::vector<Match> found;
    const Node &p = by.nodes[by.left], &n = rule_.nodes[place];
    if (p.form != n.form || p.kind != n.kind) return found;
    Match m{std::vector<ValueId>(by.variables.size(), kNone),
            std::vector<uint32_t>(by.constants.size(), kNone)};
    match(by, by.left, place, m, [&] {
      if (shapes_fit(by, m)) found.push_back(m);
    });
    return found;
  }

  void match(const Rule& by, ValueId pattern, ValueId v, Match& m,
             const std::function<void()>& then) {
    const Node &p = by.nodes[pattern], &n = rule_.nodes[v];
    if (p.form == Form::Leaf) {
      ValueId& bound = m.variables[p.attr];
      if (bound != kNone && bound != v) return;
      const ValueId before = bound;
      bound = v;
      then();
      bound = before;
      return;
    }
    if (p.form != n.form || p.kind != n.kind) return;
    if (has_constant(p)) {
      const Constant& c = by.constants[p.attr];
      uint32_t& bound = m.constants[p.attr];
      const uint32_t before = bound;
      if (c.kind == Constant::Kind::Literal) {
        if (!(rule_.constants[n.attr] == c)) return;
      } else if (c.kind != Constant::Kind::Variable ||
                 (bound != kNone && bound != uint32_t(n.attr))) {
        return;
      } else {
        bound = uint32_t(n.attr);
      }
      operand(by, {p.arg.begin(), p.arg.begin() + p.arity},
              {n.arg.begin(), n.arg.begin() + n.arity}, 0, m, then);
      bound = before;
      return;
    }
    if (p.form == Form::Broadcast) return;
    const std::vector<ValueId> args = operands(rule_, v), wanted = operands(by, pattern);
    if (args.size() != wanted.size()) return;
    if (p.form == Form::Stack) {
      if (by.stacks[p.attr].axis != rule_.stacks[n.attr].axis) return;
    } else if (p.form == Form::Reduce && p.attr == kAllAxes) {
      for (const auto& t : typed_)
        if (n.attr != kAllAxes && n.attr + 1 != uint64_t(1) << t[n.arg[0]].rank()) return;
    } else if (p.attr != n.attr) {
      return;
    }
    operand(by, wanted, args, 0, m, then);
    if (p.form == Form::Pointwise && has(p.kind, algebra::Commutative))
      operand(by, wanted, {args[1], args[0]}, 0, m, then);
  }
  void operand(const Rule& by, const std::vector<ValueId>& wanted, const std::vector<ValueId>& args,
               size_t i, Match& m, const std::function<void()>& then) {
    if (i == wanted.size()) return then();
    match(by, wanted[i], args[i], m, [&] { operand(by, wanted, args, i + 1, m, then); });
  }

  // What the other rule's names of extents stand for at our sizes number i.
  std::optional<Assignment> names(const Rule& by, const Match& m, size_t i) const {
    Assignment found;
    for (size_t v = 0; v < by.variables.size(); ++v) {
      const Variable& x = by.variables[v];
      const Type& type = typed_[i][m.variables[v]];
      if (x.boolean != (type.dtype == DType::Bool)) return std::nullopt;
      const std::vector<int64_t> e = extents(type.shape);
      const size_t named = x.shape.dims.size();
      if (e.size() < named || (!x.shape.leading && e.size() != named)) return std::nullopt;
      for (size_t d = 0; d < named; ++d) {
        const int64_t is = e[e.size() - named + d];
        const std::string& name = x.shape.dims[d];
        if (name == "1" ? is != 1 : found.dims.emplace(name, is).first->second != is)
          return std::nullopt;
      }
      if (!x.shape.leading || x.shape.leading->empty()) continue;
      const std::vector<int64_t> front(e.begin(), e.end() - long(named));
      if (found.leading.emplace(*x.shape.leading, front).first->second != front)
        return std::nullopt;
    }
    return found;
  }
  bool shapes_fit(const Rule& by, const Match& m) const {
    for (size_t i = 0; i < at_.size(); ++i)
      if (!names(by, m, i)) return false;
    return true;
  }
  // A shape of the other rule as one of ours, under a name that stands for all of it.
  std::optional<uint64_t> shape(const Rule& by, const ShapePattern& s, const Match& m) {
    const std::string name = "shape" + std::to_string(rule_.shapes.size());
    for (size_t i = 0; i < at_.size(); ++i) {
      const auto known = names(by, m, i);
      if (!known) return std::nullopt;
      std::vector<int64_t> extents;
      if (s.leading) {
        const auto front = known->leading.find(*s.leading);
        if (front == known->leading.end()) return std::nullopt;
        extents = front->second;
      }
      for (const std::string& d : s.dims) {
        const auto at = known->dims.find(d);
        if (d != "1" && at == known->dims.end()) return std::nullopt;
        extents.push_back(d == "1" ? 1 : at->second);
      }
      at_[i].leading[name] = extents;
    }
    rule_.shapes.push_back({name, {}});
    return rule_.shapes.size() - 1;
  }

  // A term of the other rule over what a match bound.
  ValueId instance(const Rule& by, ValueId v, const Match& m) {
    Node n = by.nodes[v];
    if (n.form == Form::Leaf) return m.variables[n.attr];
    if (rule_.nodes.size() > 4 * kMaxRuleNodes) return kNone;
    if (n.form == Form::Broadcast) {
      const auto to = shape(by, by.shapes[n.attr], m);
      if (!to) return kNone;
      n.attr = *to;
    }
    if (has_constant(n)) {
      const auto c = constant(by, uint32_t(n.attr), m);
      if (!c) return kNone;
      n.attr = *c;
    }
    std::vector<ValueId> args;
    for (ValueId a : operands(by, v)) {
      args.push_back(instance(by, a, m));
      if (args.back() == kNone) return kNone;
    }
    return with_operands(n, args, by.stacks);
  }
  std::optional<uint32_t> constant(const Rule& by, uint32_t index, const Match& m) {
    Constant c = by.constants[index];
    if (c.kind == Constant::Kind::Variable) return m.constants[index];
    if (c.kind != Constant::Kind::Literal) {
      const auto a = constant(by, c.a, m), b = constant(by, c.b, m);
      if (!a || !b || *a == kNone || *b == kNone) return std::nullopt;
      c.a = *a;
      c.b = *b;
      const uint32_t made = add_unique(rule_.constants, c);
      // Numbers that are known are one number.
      if (const auto known = value(rule_, made, {}))
        return add_unique(rule_.constants, {Constant::Kind::Literal, *known});
      return made;
    }
    return add_unique(rule_.constants, c);
  }
  ValueId with_operands(Node n, const std::vector<ValueId>& args,
                        const std::vector<Rule::Stack>& stacks) {
    if (n.form == Form::Stack)
      n.attr = add_unique(rule_.stacks, {args, stacks[n.attr].axis});
    else
      std::ranges::copy(args, n.arg.begin());
    return add_node(rule_, n);
  }
  ValueId exchanged(ValueId v, std::map<ValueId, ValueId>& with) {
    if (const auto at = with.find(v); at != with.end()) return at->second;
    std::vector<ValueId> args;
    const std::vector<ValueId> old = operands(rule_, v);
    for (ValueId a : old) args.push_back(exchanged(a, with));
    const ValueId made =
        args == old ? v : with_operands(rule_.nodes[v], args, std::vector(rule_.stacks));
    with[v] = made;
    return made;
  }

  Rule rule_;
  std::vector<Assignment> at_;  // sizes, and the types of all nodes at them
  std::vector<std::vector<Type>> typed_;
};

}  // namespace

bool follows(const Rule& rule, const std::vector<Rule>& from) {
  for (const Rule& k : from)
    if (k.variables == rule.variables && print(k, k.left) == print(rule, rule.left) &&
        print(k, k.right) == print(rule, rule.right))
      return true;
  Terms terms(rule);
  if (!terms.comparable()) return false;
  const std::set<std::string> right = terms.reachable(rule.right, from, 2);
  for (const std::string& key : terms.reachable(rule.left, from, 3))
    if (right.count(key)) return true;
  return false;
}

bool reducible(const Rule& rule, const std::vector<Rule>& by) {
  Terms terms(rule);
  if (!terms.comparable()) return false;
  return std::ranges::any_of(by, [&](const Rule& k) {
    return size(k, k.right) < size(k, k.left) && size(k, k.left) < size(rule, rule.left) &&
           !terms.rewritten(rule.left, k).empty();
  });
}

}  // namespace tessera::rules
