#include <algorithm>
#include <map>
#include <set>

#include "base/text.h"
#include "search/rules/rule.h"

namespace tessera::rules {
namespace {

using synth::Form, synth::kMaxAxes, synth::Node, synth::ValueId;

constexpr size_t kMaxBytes = size_t(4) << 20, kMaxRules = 20'000;
constexpr int kMaxDepth = 60;

class Parser : Scanner {
 public:
  Parser(std::string_view text, const std::string& file) : Scanner(text, file) {}

  std::vector<Rule> run() {
    if (text().size() > kMaxBytes) fail("more than 4 MB of rules");
    std::vector<Rule> rules;
    std::set<std::string> names;
    int line = 1;
    for (size_t counted = 0; next_line(); rules.push_back(std::move(rule_))) {
      const auto passed = text().substr(counted, at() - counted);
      line += int(std::ranges::count(passed, '\n'));
      counted = at();
      if (rules.size() >= kMaxRules) fail("more than 20,000 rules");
      rule_ = Rule();
      rule_.line = line;
      names_.clear();
      if (indented()) fail("expected 'rule NAME' at the beginning of a line");
      const size_t from = at();
      expect("rule");
      rule_.name = word("the name of the rule", "-./");
      end_of_line();
      if (!names.insert(rule_.name).second) fail("rule '" + rule_.name + "' is there twice", from);
      bool equation_read = false;
      while (next_line() && indented())
        if (!equation_read && rest().find('=') == std::string::npos)
          declarations();
        else if (!equation_read)
          equation(), equation_read = true;
        else
          remark();
      if (!equation_read) fail("rule '" + rule_.name + "' has no equation LEFT = RIGHT", from);
    }
    return rules;
  }

 private:
  // Goes to the next line that holds something, to its first character.
  bool next_line() {
    skip_lines();
    return at() < text().size();
  }
  bool indented() const { return column_of(at()) > 1; }

  std::string taken_rest() {
    const std::string text = rest();
    go_to(at() + (at_end() ? 0 : text.size()));
    return text;
  }

  void remark() {
    if (take("assumes")) {
      condition(true);
    } else if (take("where")) {
      condition(false);
    } else if (take("holds")) {
      expect("for");
      holds_for();
    } else if (take("learned")) {
      rule_.learned = taken_rest();
    } else if (take("checked")) {
      rule_.checked = taken_rest();
    } else {
      fail("expected 'assumes', 'where', 'holds for', 'learned' or 'checked', not " +
           in_quotes(rest()));
    }
  }

  // A [m k], B bool [...], c constant
  void declarations() {
    do {
      const size_t from = skip();
      const std::string name = word("the name of a variable");
      if (names_.count(name)) fail(in_quotes(name) + " is declared twice", from);
      Node leaf;
      if (take("constant")) {
        leaf.form = Form::Const;
        leaf.attr = add_unique(rule_.constants, {Constant::Kind::Variable, {}, name});
      } else {
        Variable v;
        v.name = name;
        v.boolean = take("bool");
        v.shape = shape();
        leaf.attr = rule_.variables.size();
        rule_.variables.push_back(std::move(v));
      }
      names_[name] = leaf;
    } while (take(","));
    end_of_line();
  }

  void equation() {
    rule_.left = sum();
    const size_t from = skip();
    expect("=");
    const Form form = rule_.nodes[rule_.left].form;
    if (form == Form::Leaf || form == Form::Const)
      fail("the left side matches everything: it needs an operator", from);
    const std::set<std::string> known = names_in(rule_.left);
    rule_.right = sum();
    end_of_line();
    if (rule_.left == rule_.right) fail("both sides are the same", from);
    for (const std::string& name : names_in(rule_.right))
      if (!known.count(name)) fail(in_quotes(name) + " is on the right only", from);
  }

  void condition(bool implied) {
    const size_t from = skip();
    Condition c;
    c.implied = implied;
    c.value = sum();
    c.kind = take(">=")   ? Condition::Kind::NonNegative
             : take(">")  ? Condition::Kind::Positive
             : take("!=") ? Condition::Kind::Nonzero
                          : (fail("expected '> 0', '>= 0' or '!= 0', not " + in_quotes(rest())),
                             Condition::Kind::Nonzero);
    expect("0");
    end_of_line();
    const std::set<std::string> known = names_in(rule_.left);
    for (const std::string& name : names_in(c.value))
      if (!known.count(name)) fail(in_quotes(name) + " is not on the left side", from);
    rule_.conditions.push_back(c);
  }

  void holds_for() {
    rule_.real = rule_.integer = false;
    do {
      bool& which = take("real") ? rule_.real : take("integer") ? rule_.integer : unknown_;
      if (&which == &unknown_) fail("expected 'real' or 'integer', not " + in_quotes(rest()));
      which = true;
    } while (take(","));
    end_of_line();
  }

  ShapePattern shape() {
    expect("[");
    ShapePattern s;
    if (take("...")) {
      s.leading = "";
      if (is_alpha(peek())) s.leading = word("a name");
    }
    while (!take("]")) {
      if (s.dims.size() >= size_t(kMaxAxes)) fail("more than 6 axes");
      s.dims.push_back(take("1") ? "1" : word("the name of an extent, '1' or ']'"));
    }
    return s;
  }

  // The variables and constants a value is made of.
  std::set<std::string> names_in(ValueId v) const {
    std::set<std::string> names;
    std::vector<bool> made(rule_.constants.size());
    const std::vector<bool> in = reached(rule_, v);
    for (ValueId at = 0; at < in.size(); ++at) {
      const Node& n = rule_.nodes[at];
      if (in[at] && n.form == Form::Leaf) names.insert(rule_.variables[n.attr].name);
      if (in[at] && has_constant(n)) made[n.attr] = true;
    }
    for (size_t at = made.size(); at-- > 0;) {
      const Constant& c = rule_.constants[at];
      if (!made[at] || c.kind == Constant::Kind::Literal) continue;
      if (c.kind == Constant::Kind::Variable)
        names.insert(c.name);
      else
        made[c.a] = made[c.b] = true;
    }
    return names;
  }

  ValueId add(const Node& node) {
    const ValueId v = add_node(rule_, node);
    if (rule_.nodes.size() > kMaxRuleNodes) fail("more than 200 operations");
    return v;
  }
  bool is_constant(ValueId v) const { return rule_.nodes[v].form == Form::Const; }
  ValueId constant(const Constant& c) {
    return add(synth::leaf(Form::Const, add_unique(rule_.constants, c)));
  }
  ValueId literal(const Rational& r) { return constant({Constant::Kind::Literal, r}); }

  ValueId arithmetic(OpKind kind, ValueId a, ValueId b) {
    if (!is_constant(a) || !is_constant(b)) return add(synth::pointwise(kind, a, b));
    Constant c;
    c.kind = kind == OpKind::Add   ? Constant::Kind::Add
             : kind == OpKind::Sub ? Constant::Kind::Sub
             : kind == OpKind::Mul ? Constant::Kind::Mul
                                   : Constant::Kind::Div;
    c.a = uint32_t(rule_.nodes[a].attr);
    c.b = uint32_t(rule_.nodes[b].attr);
    // Numbers that are known are one number.
    Rule known;
    known.constants = rule_.constants;
    known.constants.push_back(c);
    const auto& left = rule_.constants[c.a];
    const auto& right = rule_.constants[c.b];
    if (left.kind != Constant::Kind::Literal || right.kind != Constant::Kind::Literal)
      return constant(c);
    const auto r = value(known, uint32_t(known.constants.size() - 1), {});
    if (!r) fail("this number is not finite, or has more than 62 bits");
    return literal(*r);
  }

  struct Depth {
    explicit Depth(Parser& p) : parser(p) {
      if (++parser.depth_ > kMaxDepth) parser.fail("nested more than 60 deep");
    }
    ~Depth() { --parser.depth_; }
    Parser& parser;
  };

  ValueId sum() {
    const Depth depth(*this);
    ValueId v = product();
    for (;;)
      if (take("+"))
        v = arithmetic(OpKind::Add, v, product());
      else if (take("-"))
        v = arithmetic(OpKind::Sub, v, product());
      else
        return v;
  }
  ValueId product() {
    ValueId v = signed_value();
    for (;;)
      if (take("*"))
        v = arithmetic(OpKind::Mul, v, signed_value());
      else if (take("/"))
        v = arithmetic(OpKind::Div, v, signed_value());
      else if (take("@"))
        v = dot(v, signed_value());
      else
        return v;
  }
  ValueId dot(ValueId a, ValueId b) {
    if (is_constant(a) || is_constant(b)) fail("a number has no axis to multiply along");
    return add(synth::product(a, b));
  }
  ValueId signed_value() {
    const Depth depth(*this);
    if (!take("-")) return power();
    const ValueId v = signed_value();
    return is_constant(v) ? arithmetic(OpKind::Sub, literal(0), v)
                          : add(synth::pointwise(OpKind::Neg, v));
  }
  ValueId power() {
    const ValueId base = atom();
    if (!take("**")) return base;
    const size_t from = at();
    const ValueId exponent = signed_value();
    if (is_constant(base)) fail("a number to a power: write its value", from);
    if (!is_constant(exponent)) return add(synth::pointwise(OpKind::Power, base, exponent));
    return add(synth::view(Form::Pointwise, base, rule_.nodes[exponent].attr, OpKind::Pow));
  }
  ValueId atom() {
    const size_t from = skip();
    if (take("(")) {
      const ValueId v = sum();
      expect(")");
      return v;
    }
    if (is_digit(peek())) return number();
    const std::string name = word("a variable, a number, a function or '('");
    if (const auto at = names_.find(name); at != names_.end() && !opens()) return add(at->second);
    if (!opens()) fail(in_quotes(name) + " is not declared", from);
    return call(name, from);
  }
  bool opens() {
    skip();
    return peek() == '(';
  }
  ValueId number() {
    const size_t from = at();
    auto more = [&](char last) {
      const char c = peek();
      if (is_digit(c) || c == '.' || c == 'e' || c == 'E' || c == '^') return true;
      return (c == '-' || c == '+') && (last == 'e' || last == 'E' || last == '^');
    };
    for (char last = ' '; text().substr(at(), 3) == "*2^" || more(last); last = text()[at() - 1])
      go_to(at() + (peek() == '*' ? 3 : 1));
    const std::string_view text = this->text().substr(from, at() - from);
    const auto value = Rational::parse(text);
    if (!value || !value->finite()) fail(in_quotes(text) + " is not a number", from);
    return literal(*value);
  }

  int integer(int least, int most) {
    const size_t from = skip();
    const bool negative = take("-");
    const auto digits = Scanner::number(9999);
    if (!digits) fail("expected a whole number, not " + in_quotes(rest()));
    const int value = int(negative ? -*digits : *digits);
    if (value < least || value > most)
      fail("expected a number from " + std::to_string(least) + " to " + std::to_string(most) +
               ", not " + std::to_string(value),
           from);
    return value;
  }
  // -1 or (-2, -1), counted from the end.
  std::vector<int> axes() {
    std::vector<int> list;
    if (!take("(")) return {integer(-kMaxAxes, -1)};
    do list.push_back(integer(-kMaxAxes, -1));
    while (list.size() < size_t(kMaxAxes) && take(","));
    expect(")");
    return list;
  }
  uint64_t mask(const std::vector<int>& list) {
    uint64_t mask = 0;
    for (int axis : list) {
      if (mask >> (-1 - axis) & 1) fail("an axis is named twice");
      mask |= uint64_t(1) << (-1 - axis);
    }
    return mask;
  }

  ValueId call(const std::string& name, size_t from) {
    const Depth depth(*this);
    expect("(");
    std::vector<ValueId> args{sum()};
    std::optional<std::vector<int>> along, order;
    std::optional<ShapePattern> to;
    std::optional<int> k;
    while (take(",")) {
      const size_t before = at();
      if (take("axis") && take("=")) {
        along = axes();
      } else if (go_to(before), take("axes") && take("=")) {
        order = axes();
      } else if (go_to(before), take("shape") && take("=")) {
        to = shape();
      } else if (go_to(before), take("k") && take("=")) {
        k = integer(-1, 1);
      } else {
        go_to(before);
        if (along || order || to || k) fail("operands come before what is named");
        if (args.size() >= 8) fail("more than 8 operands");
        args.push_back(sum());
      }
    }
    expect(")");
    const ValueId v = made(name, args, along, order, to, k, from);
    if (along || order || to || k)
      fail(in_quotes(name) + " takes no " +
               (along   ? "'axis'"
                : order ? "'axes'"
                : to    ? "'shape'"
                        : "'k'"),
           from);
    return v;
  }

  // Options that the function takes are moved out.
  ValueId made(const std::string& name, const std::vector<ValueId>& args,
               std::optional<std::vector<int>>& along, std::optional<std::vector<int>>& order,
               std::optional<ShapePattern>& to, std::optional<int>& k, size_t from) {
    Node n;
    auto one = [&](Form form, OpKind kind = OpKind::Input) {
      if (args.size() != 1) fail(in_quotes(name) + " takes one operand", from);
      n = synth::view(form, args[0], 0, kind);
    };
    const auto called = [&](OpKind kind) { return synth::numpy_name(kind) == name; };
    const auto reduction = std::ranges::find_if(
        all_op_kinds(), [&](OpKind kind) { return is_reduction(kind) && called(kind); });
    if (reduction != all_op_kinds().end()) {
      one(Form::Reduce, *reduction);
      n.attr = along ? mask(*along) : kAllAxes;
      along.reset();
    } else if (name == "transpose") {
      one(Form::Transpose);
      if (!order) order = {{-1, -2}};
      const size_t r = order->size();
      if (r < 2 || mask(*order) != (uint64_t(1) << r) - 1)
        fail("'axes' is an order of the last axes, as in (-1, -3, -2)", from);
      n.attr = r;
      for (size_t i = 0; i < r; ++i) n.attr |= uint64_t((*order)[i] + int(r)) << (4 * i + 4);
      order.reset();
    } else if (name == "expand_dims" || name == "squeeze") {
      one(name == "squeeze" ? Form::Squeeze : Form::Unsqueeze);
      if (!along) fail(in_quotes(name) + " needs 'axis'", from);
      n.attr = mask(*along);
      along.reset();
    } else if (name == "broadcast_to") {
      one(Form::Broadcast);
      if (!to) fail("'broadcast_to' needs 'shape'", from);
      if (to->leading && to->leading->empty())
        fail("'...' of a result needs a name that a variable has, as in [...s m]", from);
      n.attr = add_unique(rule_.shapes, *to);
      to.reset();
    } else if (name == "diagonal") {
      one(Form::Diagonal);
    } else if (name == "triu" || name == "tril") {
      one(Form::Triangle, name == "triu" ? OpKind::Triu : OpKind::Tril);
      n.attr = uint64_t(int64_t(k.value_or(0)));
      k.reset();
    } else if (name == "stack") {
      n.form = Form::Stack;
      if (!along || along->size() != 1) fail("'stack' needs one 'axis'", from);
      n.attr = add_unique(rule_.stacks, {args, uint32_t(-1 - along->front())});
      along.reset();
    } else {
      auto kind = name == "square" ? OpKind::Sqr : op_from_name(name);
      for (OpKind k : {OpKind::Max, OpKind::Min})
        if (called(k)) kind = k;
      if (!kind || !has(*kind, algebra::Pointwise) || *kind == OpKind::Pow || *kind == OpKind::Cast)
        fail(in_quotes(name) + " is not a function of rules", from);
      if (int(args.size()) != info(*kind).min_arity)
        fail(in_quotes(name) + " takes " + std::to_string(info(*kind).min_arity) + " operands",
             from);
      n.form = Form::Pointwise;
      n.kind = *kind;
      for (ValueId a : args) n.arg[n.arity++] = a;
    }
    return add(n);
  }

  Rule rule_;
  std::map<std::string, Node> names_;  // what a name stands for
  int depth_ = 0;
  bool unknown_ = false;
};

}  // namespace

std::vector<Rule> parse_rules(std::string_view text, const std::string& file) {
  return Parser(text, file).run();
}

}  // namespace tessera::rules
