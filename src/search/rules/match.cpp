#include "search/rules/match.h"

#include <algorithm>

#include "base/check.h"
#include "base/interruption.h"

namespace tessera::rules {

using synth::Class, synth::Dims, synth::Form, synth::kNone, synth::kOne, synth::Node, synth::World;

namespace {

constexpr uint32_t kExtentOne = UINT32_MAX;   // "1" among names of extents
constexpr uint32_t kAnyLeading = UINT32_MAX;  // "..." without a name
constexpr DimId kUnbound = 255;               // no world names so many dimensions
constexpr size_t kKinds = 256;                // kinds of operations are bytes

size_t key_of(const Node& n) { return size_t(n.form) * kKinds + size_t(n.kind); }

// A permutation of the last axes as one of all; nothing where there are fewer.
std::optional<uint64_t> permutation(uint64_t attr, int rank) {
  const int r = int(attr & 15), front = rank - r;
  if (front < 0) return std::nullopt;
  uint64_t code = 0;
  for (int i = 0; i < rank; ++i) {
    const int from = i < front ? i : front + int(attr >> (4 * (i - front) + 4) & 15);
    code |= uint64_t(from) << (4 * i);
  }
  return code;
}

}  // namespace

bool commutes(const Node& n) {
  return n.form == Form::Pointwise && has(n.kind, algebra::Commutative);
}

DType number_type(const EGraph& graph, Way way) {
  const DType own = graph[way.id].sample.dims.dtype;
  const Node& node = graph[way.id].nodes[way.way];
  // Comparisons are of numbers, conjunctions are not.
  return own != DType::Bool || node.arity == 0 ? own : graph[node.arg[0]].sample.dims.dtype;
}

RuleSet::RuleSet(std::vector<Rule> rules) : rules_(std::move(rules)) {
  static_assert(sizeof(OpKind) == 1);
  by_root_.resize((size_t(Form::Kept) + 1) * kKinds);
  for (uint32_t r = 0; r < rules_.size(); ++r) {
    const Rule& rule = rules_[r];
    Compiled c;
    auto add_shape = [&](const ShapePattern& s) {
      std::vector<uint32_t> dims;
      for (const std::string& d : s.dims)
        dims.push_back(d == "1" ? kExtentOne : add_unique(c.dims, d));
      c.shape_dims.push_back(std::move(dims));
      std::optional<uint32_t> leading;
      if (s.leading) leading = s.leading->empty() ? kAnyLeading : add_unique(c.leading, *s.leading);
      c.shape_leading.push_back(leading);
    };
    for (const Variable& v : rule.variables) add_shape(v.shape);
    for (const ShapePattern& s : rule.shapes) add_shape(s);
    const std::vector<bool> left = reached(rule, rule.left);
    auto list = [&](auto& self, ValueId v) -> void {
      if (left[v] || std::ranges::find(c.right, v) != c.right.end()) return;
      for (ValueId a : operands(rule, v)) self(self, a);
      c.right.push_back(v);
    };
    list(list, rule.right);
    compiled_.push_back(std::move(c));
    by_root_[key_of(rule.nodes[rule.left])].push_back(r);
  }
}

const std::vector<uint32_t>& RuleSet::starting_with(const Node& node) const {
  static const std::vector<uint32_t> none;
  return by_root_.empty() ? none : by_root_[key_of(node)];
}

// Meets one left side: a list of goals, "this node of the rule is this class".
class Matcher {
 public:
  Matcher(const RuleSet& set, const EGraph& graph, uint32_t rule,
          const std::function<bool(const Match&)>& found)
      : graph_(graph), rule_(set.rules_[rule]), compiled_(set.compiled_[rule]), found_(found) {
    match_.rule = rule;
    match_.classes.assign(rule_.nodes.size(), kNone);
    match_.constants.resize(rule_.constants.size());
    match_.dims.assign(compiled_.dims.size(), kUnbound);
    match_.leading.resize(compiled_.leading.size());
  }

  void run(Way root) {
    match_.root = root.id;
    match_.dtype = number_type(graph_, root);
    match_.classes[rule_.left] = root.id;
    enter(rule_.left, root, nullptr);
  }

 private:
  struct Goal {
    ValueId node, id;
    const Goal* next;
  };

  // Each returns whether to go on looking.
  bool solve(const Goal* goal) {
    interruption_point();
    if (!goal) return found_(match_);
    const Node& pattern = rule_.nodes[goal->node];
    ValueId& bound = match_.classes[goal->node];
    if (bound != kNone) return bound != goal->id || solve(goal->next);
    bound = goal->id;
    bool on = true;
    if (pattern.form == Form::Leaf) {
      on = leaf(pattern, goal->id, goal->next);
    } else {
      const Class& c = graph_[goal->id];
      for (uint32_t w = 0; on && w < c.nodes.size(); ++w)
        on = enter(goal->node, {goal->id, w}, goal->next);
    }
    match_.classes[goal->node] = kNone;
    return on;
  }

  // The node is this way of its class.
  bool enter(ValueId node, Way at, const Goal* next) {
    const Node& pattern = rule_.nodes[node];
    const Node& way = graph_[at.id].nodes[at.way];
    if (way.form != pattern.form || way.kind != pattern.kind || way.arity != pattern.arity ||
        way.kind == OpKind::Cast)  // to what is not the rule's to say
      return true;
    uint32_t number = kNone;
    if (has_constant(pattern)) {
      number = uint32_t(pattern.attr);
      const Rational& is = graph_.world().constants()[way.attr];
      const Constant& wanted = rule_.constants[number];
      if (wanted.kind == Constant::Kind::Literal) {
        if (!(wanted.value == is)) return true;
        number = kNone;
      } else if (wanted.kind != Constant::Kind::Variable) {
        return true;
      } else if (match_.constants[number]) {
        if (!(*match_.constants[number] == is)) return true;
        number = kNone;
      } else {
        match_.constants[number] = is;
      }
    } else if (!same_attributes(pattern, way, at.id)) {
      return true;
    }
    match_.ways.push_back(at);
    bool on = true;
    if (pattern.form == Form::Stack) {
      on = stacked(pattern, way, 0, next);
    } else {
      std::array<Goal, 3> goals{};
      const Goal* first = next;
      for (size_t i = pattern.arity; i-- > 0; first = &goals[i])
        goals[i] = {pattern.arg[i], way.arg[i], first};
      on = solve(first);
      if (on && commutes(pattern) && way.arg[0] != way.arg[1]) {
        std::swap(goals[0].id, goals[1].id);
        on = solve(first);
      }
    }
    match_.ways.pop_back();
    if (number != kNone) match_.constants[number].reset();
    return on;
  }
  bool stacked(const Node& pattern, const Node& way, size_t i, const Goal* next) {
    const Rule::Stack& stack = rule_.stacks[pattern.attr];
    if (i == stack.args.size()) return solve(next);
    // Goals in order of the operands: the last is the innermost of these calls.
    const Goal goal{stack.args[stack.args.size() - 1 - i],
                    graph_.world().kept_ops()[way.attr].args[stack.args.size() - 1 - i], next};
    return stacked(pattern, way, i + 1, &goal);
  }

  bool same_attributes(const Node& pattern, const Node& way, ValueId result) const {
    const Dims& out = graph_[result].sample.dims;
    switch (pattern.form) {
    case Form::Reduce:
    case Form::Squeeze: {
      const int rank = graph_[way.arg[0]].sample.dims.rank;
      if (pattern.attr == kAllAxes) return way.attr == (uint64_t(1) << rank) - 1;
      return pattern.attr >> rank == 0 && flipped(pattern.attr, rank) == way.attr;
    }
    case Form::Transpose: return permutation(pattern.attr, out.rank) == way.attr;
    case Form::Unsqueeze:
      return pattern.attr >> out.rank == 0 && flipped(pattern.attr, out.rank) == way.attr;
    case Form::Triangle: return pattern.attr == way.attr;
    case Form::Stack: {
      const synth::KeptOp& op = graph_.world().kept_ops()[way.attr];
      const Rule::Stack& stack = rule_.stacks[pattern.attr];
      return op.args.size() == stack.args.size() &&
             std::get<AxisAttrs>(op.attrs).axis == out.rank - 1 - int(stack.axis);
    }
    case Form::Pointwise:
    case Form::Dot:
    case Form::Spread:
    case Form::Diagonal: return true;
    case Form::Extent:
    case Form::Identity:
    case Form::Broadcast: return false;  // right sides only: its shape is no operand's
    case Form::Leaf:
    case Form::Const:
    case Form::Kept: break;
    }
    unreachable("a form without attributes to compare");
  }

  // A variable is this class: its shape fits the rule's, with the extents named so far.
  bool leaf(const Node& pattern, ValueId id, const Goal* next) {
    const Dims& d = graph_[id].sample.dims;
    const Variable& variable = rule_.variables[pattern.attr];
    if (variable.boolean != (d.dtype == DType::Bool)) return true;
    const std::vector<uint32_t>& dims = compiled_.shape_dims[pattern.attr];
    const std::optional<uint32_t> leading = compiled_.shape_leading[pattern.attr];
    const int front = d.rank - int(dims.size());
    if (front < 0 || (!leading && front > 0)) return true;
    uint32_t named[synth::kMaxAxes];
    int count = 0;
    bool fits = true;
    for (size_t i = 0; fits && i < dims.size(); ++i) {
      const DimId is = d.axis[size_t(front) + i];
      if (dims[i] == kExtentOne) {
        fits = is == kOne;
      } else if (DimId& bound = match_.dims[dims[i]]; bound == kUnbound) {
        bound = is;
        named[count++] = dims[i];
      } else {
        fits = bound == is;
      }
    }
    bool fresh = false;
    if (fits && leading && *leading != kAnyLeading) {
      std::vector<DimId> axes(d.axis.begin(), d.axis.begin() + front);
      auto& bound = match_.leading[*leading];
      fresh = !bound;
      if (fresh)
        bound = std::move(axes);
      else
        fits = *bound == axes;
    }
    const bool on = !fits || solve(next);
    if (fresh) match_.leading[*leading].reset();
    while (count > 0) match_.dims[named[--count]] = kUnbound;
    return on;
  }

  const EGraph& graph_;
  const Rule& rule_;
  const RuleSet::Compiled& compiled_;
  const std::function<bool(const Match&)>& found_;
  Match match_;
};

void RuleSet::match(const EGraph& graph, uint32_t rule, Way root,
                    const std::function<bool(const Match&)>& found) const {
  Matcher(*this, graph, rule, found).run(root);
}

std::optional<RuleSet::Instance> RuleSet::instantiate(const Match& match, World& world, ValueId v,
                                                      const Dims* const* dims) const {
  const Rule& rule = rules_[match.rule];
  const Compiled& compiled = compiled_[match.rule];
  Instance r;
  r.node = rule.nodes[v];
  const uint64_t attr = r.node.attr;
  const int rank = r.node.arity > 0 ? dims[0]->rank : 0;
  if (has_constant(r.node)) {
    const auto number = value(rule, uint32_t(attr), match.constants);
    if (!number) return std::nullopt;
    r.node.attr = world.constant(*number);
    if (r.node.form == Form::Const) r.node.dtype = match.dtype;
    return r;
  }
  switch (r.node.form) {
  case Form::Reduce:
    if (attr != kAllAxes && attr >> rank != 0) return std::nullopt;
    r.node.attr = attr == kAllAxes ? (uint64_t(1) << rank) - 1 : flipped(attr, rank);
    // Nothing is summed over no axes.
    return r.node.attr == 0 ? std::nullopt : std::optional(r);
  case Form::Transpose: {
    const auto code = permutation(attr, rank);
    if (!code) return std::nullopt;
    r.node.attr = *code;
    return r;
  }
  case Form::Unsqueeze: {
    const int result = rank + __builtin_popcountll(attr);
    if (result > synth::kMaxAxes || attr >> result != 0) return std::nullopt;
    r.node.attr = flipped(attr, result);
    return r;
  }
  case Form::Squeeze:
    if (attr >> rank != 0) return std::nullopt;
    r.node.attr = flipped(attr, rank);
    return r;
  case Form::Broadcast: {
    const size_t shape = rule.variables.size() + attr;
    r.node.attr = 0;
    Dims to;
    to.dtype = dims[0]->dtype;
    auto push = [&](DimId d) {
      if (to.rank == synth::kMaxAxes || d == kUnbound) return false;
      to.push(d);
      return true;
    };
    if (const auto leading = compiled.shape_leading[shape]) {
      if (*leading == kAnyLeading || !match.leading[*leading]) return std::nullopt;
      for (DimId d : *match.leading[*leading])
        if (!push(d)) return std::nullopt;
    }
    for (uint32_t d : compiled.shape_dims[shape])
      if (!push(d == kExtentOne ? kOne : match.dims[d])) return std::nullopt;
    r.shape = to;
    return r;
  }
  case Form::Pointwise:
  case Form::Dot:
  case Form::Diagonal:
  case Form::Spread:
  case Form::Triangle: return r;
  case Form::Extent:
  case Form::Identity: return std::nullopt;  // of dimensions that a rule cannot name
  case Form::Stack: return std::nullopt;     // its new axis would need a dimension
  case Form::Leaf:
  case Form::Const:
  case Form::Kept: break;
  }
  unreachable("a variable on the right only");
}

}  // namespace tessera::rules
