#include "search/rules/rule.h"

#include "base/check.h"
#include "base/names.h"
#include "base/text.h"
#include "search/synth/explain.h"

namespace tessera::rules {

using synth::Form, synth::infix, synth::Node, synth::numpy_name, synth::Text, synth::ValueId;

ValueId add_node(Rule& rule, const Node& node) {
  for (ValueId v = 0; v < rule.nodes.size(); ++v)
    if (same_operation(rule.nodes[v], node)) return v;
  rule.nodes.push_back(node);
  return ValueId(rule.nodes.size() - 1);
}

std::vector<ValueId> operands(const Rule& rule, ValueId v) {
  const Node& n = rule.nodes[v];
  if (n.form == Form::Stack) return rule.stacks[n.attr].args;
  return {n.arg.begin(), n.arg.begin() + n.arity};
}

std::vector<bool> reached(const Rule& rule, ValueId from) {
  std::vector<bool> in(rule.nodes.size(), false);
  std::vector<ValueId> open{from};
  while (!open.empty()) {
    const ValueId v = open.back();
    open.pop_back();
    if (in[v]) continue;
    in[v] = true;
    for (ValueId a : operands(rule, v)) open.push_back(a);
  }
  return in;
}

uint64_t flipped(uint64_t mask, int rank) {
  uint64_t r = 0;
  for (int i = 0; i < rank; ++i)
    if (mask >> i & 1) r |= uint64_t(1) << (rank - 1 - i);
  return r;
}

std::optional<Rational> value(const Rule& rule, uint32_t constant,
                              const std::vector<std::optional<Rational>>& bound) {
  const Constant& c = rule.constants[constant];
  using Kind = Constant::Kind;
  if (c.kind == Kind::Literal) return c.value;
  if (c.kind == Kind::Variable)
    return constant < bound.size() ? bound[constant] : std::optional<Rational>();
  const auto a = value(rule, c.a, bound), b = value(rule, c.b, bound);
  if (!a || !b) return std::nullopt;
  std::optional<Rational> r;
  if (c.kind == Kind::Add) r = Rational::add(*a, *b);
  if (c.kind == Kind::Sub) r = Rational::add(*a, -*b);
  if (c.kind == Kind::Mul) r = Rational::mul(*a, *b);
  if (c.kind == Kind::Div && !b->is_zero())
    if (const auto inverse = b->inverse()) r = Rational::mul(*a, *inverse);
  return r && r->finite() ? r : std::nullopt;
}

namespace {

class Printer {
 public:
  using enum synth::Strength;

  explicit Printer(const Rule& rule) : rule_(rule) {}

  Text value(ValueId v) const {
    const Node& n = rule_.nodes[v];
    switch (n.form) {
    case Form::Leaf: return {rule_.variables[n.attr].name, Atom};
    case Form::Const: return constant(uint32_t(n.attr));
    case Form::Pointwise: return pointwise(n, v);
    case Form::Reduce: {
      const std::string function = numpy_name(n.kind);
      if (n.attr == kAllAxes) return call(function, v);
      return call(function, v, ", axis=" + axes(n.attr));
    }
    case Form::Dot: return binary(" @ ", Product, value(n.arg[0]), value(n.arg[1]));
    case Form::Transpose: {
      const int r = int(n.attr & 15);
      if (n.attr == (2 | 1 << 4)) return call("transpose", v);
      const auto perm = mapped(r, [&](int i) { return int(n.attr >> (4 * i + 4) & 15) - r; });
      return call("transpose", v, ", axes=(" + joined(perm, ", ") + ")");
    }
    case Form::Unsqueeze: return call("expand_dims", v, ", axis=" + axes(n.attr));
    case Form::Squeeze: return call("squeeze", v, ", axis=" + axes(n.attr));
    case Form::Broadcast: return call("broadcast_to", v, ", shape=" + shape(rule_.shapes[n.attr]));
    case Form::Diagonal: return call("diagonal", v);
    case Form::Triangle: {
      const int64_t k = int64_t(n.attr);
      return call(name(n.kind), v, k == 0 ? "" : ", k=" + std::to_string(k));
    }
    case Form::Stack: {
      const Rule::Stack& s = rule_.stacks[n.attr];
      return call("stack", v, ", axis=" + std::to_string(-1 - int(s.axis)));
    }
    case Form::Extent:
    case Form::Identity:
    case Form::Spread:
    case Form::Kept: break;
    }
    unreachable("no rule has kept operators");
  }

  static std::string shape(const ShapePattern& s) {
    std::string text = "[";
    if (s.leading) text += "..." + *s.leading;
    for (const std::string& d : s.dims) text += (text.size() > 1 ? " " : "") + d;
    return text + "]";
  }

 private:
  static std::string axes(uint64_t mask) {
    std::vector<int> named = mapped(synth::axes_of(mask), [&](int axis) { return -1 - axis; });
    std::ranges::reverse(named);
    return named.size() == 1 ? joined(named) : "(" + joined(named, ", ") + ")";
  }
  Text call(const std::string& function, ValueId v, const std::string& more = "") const {
    const auto text = [&](ValueId a) { return value(a).text; };
    return {function + "(" + joined(operands(rule_, v), ", ", text) + more + ")", Atom};
  }
  Text constant(uint32_t index) const {
    const Constant& c = rule_.constants[index];
    switch (c.kind) {
    case Constant::Kind::Literal: {
      const bool plain = c.value.is_integer();
      return {c.value.str(), c.value.negative() ? Sum : plain ? Atom : Sum};
    }
    case Constant::Kind::Variable: return {c.name, Atom};
    case Constant::Kind::Add: return binary(" + ", Sum, constant(c.a), constant(c.b));
    case Constant::Kind::Sub: return binary(" - ", Sum, constant(c.a), constant(c.b));
    // As factors of a product they would be read as factors of its other ones: made a group.
    case Constant::Kind::Mul:
      return {binary(" * ", Product, constant(c.a), constant(c.b)).text, Sum};
    case Constant::Kind::Div:
      return {binary(" / ", Product, constant(c.a), constant(c.b)).text, Sum};
    }
    unreachable("Constant");
  }
  Text pointwise(const Node& n, ValueId v) const {
    auto arg = [&](int i) { return value(n.arg[size_t(i)]); };
    if (const std::string sign = infix(n.kind); !sign.empty())
      return binary(" " + sign + " ", sign == "*" || sign == "/" ? Product : Sum, arg(0), arg(1));
    if (n.kind == OpKind::Neg) return {"-" + wrap(arg(0), Power), Sign};
    if (n.kind == OpKind::Pow)
      return {wrap(arg(0), Atom) + "**" + wrap(constant(uint32_t(n.attr)), Atom), Power};
    return call(numpy_name(n.kind), v);
  }

  const Rule& rule_;
};

const char* comparison(Condition::Kind kind) {
  return name_of<Condition::Kind::Nonzero>(kind, {" > 0", " >= 0", " != 0"});
}

}  // namespace

std::string print(const Rule& rule, ValueId v) { return Printer(rule).value(v).text; }

std::string print(const Rule& rule) {
  std::string text = "rule " + rule.name + "\n";
  std::string names;
  auto declare = [&](const std::string& what) { names += (names.empty() ? "  " : ", ") + what; };
  for (const Variable& v : rule.variables)
    declare(v.name + (v.boolean ? " bool " : " ") + Printer::shape(v.shape));
  for (const Constant& c : rule.constants)
    if (c.kind == Constant::Kind::Variable) declare(c.name + " constant");
  if (!names.empty()) text += names + "\n";
  text += "  " + print(rule, rule.left) + " = " + print(rule, rule.right) + "\n";
  for (const Condition& c : rule.conditions)
    text += std::string(c.implied ? "  assumes " : "  where ") + print(rule, c.value) +
            comparison(c.kind) + "\n";
  if (rule.real || rule.integer)
    text += std::string("  holds for ") + (rule.real ? "real" : "") +
            (rule.real && rule.integer ? ", " : "") + (rule.integer ? "integer" : "") + "\n";
  if (!rule.learned.empty()) text += "  learned " + rule.learned + "\n";
  if (!rule.checked.empty()) text += "  checked " + rule.checked + "\n";
  return text;
}

}  // namespace tessera::rules
