#include "search/rules/learn.h"

#include <algorithm>
#include <map>
#include <set>

#include "search/rules/generalise.h"
#include "search/rules/rewrite.h"

namespace tessera::rules {
namespace {

using synth::Choice, synth::EGraph, synth::Form, synth::kNone, synth::Node, synth::ValueId;

// Values of an e-graph as terms of a rule.
class Recorder {
 public:
  Recorder(const EGraph& graph, const std::vector<ValueId>& leaves)
      : graph_(graph), leaves_(leaves.begin(), leaves.end()) {}

  std::optional<Rule> run(const Choice& before, const Choice& after, ValueId target) {
    target_ = target;
    after_ = &after;
    const auto left = made(before, target);
    const auto right = value(after, target);
    if (!left || !right || *left == *right) return std::nullopt;
    rule_.name = "raw";
    rule_.left = *left;
    rule_.right = *right;
    return std::move(rule_);
  }

 private:
  std::optional<ValueId> value(const Choice& choice, ValueId v) {
    if (rule_.nodes.size() > kMaxRuleNodes || ++steps_ > 2000) return std::nullopt;
    if (leaves_.count(v)) return leaf(v);
    // One way to compute the target may start from the target.
    return made(v == target_ ? *after_ : choice, v);
  }
  std::optional<ValueId> made(const Choice& choice, ValueId v) {
    if (v >= choice.size() || choice[v] == kNone) return std::nullopt;
    Node n = graph_[v].nodes[choice[v]];
    if (n.form == Form::Leaf || n.form == Form::Kept || n.form == Form::Extent ||
        n.form == Form::Identity || n.form == Form::Spread)
      return leaf(v);
    const synth::World& world = graph_.world();
    std::vector<ValueId> args;
    auto operand = [&](ValueId a) {
      const auto made = value(choice, a);
      if (made) args.push_back(*made);
      return made.has_value();
    };
    if (n.form == Form::Stack) {
      const synth::KeptOp& op = world.kept_ops()[n.attr];
      for (ValueId a : op.args)
        if (!operand(a)) return std::nullopt;
      const int axis = std::get<AxisAttrs>(op.attrs).axis;
      n.attr = add_unique(rule_.stacks, {args, uint32_t(graph_[v].sample.dims.rank - 1 - axis)});
      return add_node(rule_, n);
    }
    for (int i = 0; i < n.arity; ++i)
      if (!operand(n.arg[size_t(i)])) return std::nullopt;
    std::ranges::copy(args, n.arg.begin());
    const int rank = graph_[v].sample.dims.rank;
    if (has_constant(n))
      n.attr = add_unique(rule_.constants, {Constant::Kind::Literal, world.constants()[n.attr]});
    else if (n.form == Form::Reduce || n.form == Form::Squeeze)
      n.attr = flipped(n.attr, graph_[graph_[v].nodes[choice[v]].arg[0]].sample.dims.rank);
    else if (n.form == Form::Unsqueeze)
      n.attr = flipped(n.attr, rank);
    else if (n.form == Form::Transpose)
      n.attr = transposed(n.attr, rank);
    else if (n.form == Form::Broadcast)
      n.attr = add_unique(rule_.shapes, pattern(graph_[v].sample.dims));
    return add_node(rule_, n);
  }
  ValueId leaf(ValueId v) {
    const auto [at, fresh] = variables_.emplace(v, kNone);
    if (fresh) {
      const Node n = synth::leaf(Form::Leaf, rule_.variables.size());
      const synth::Dims& dims = graph_[v].sample.dims;
      rule_.variables.push_back(
          {"v" + std::to_string(v), pattern(dims), dims.dtype == DType::Bool});
      at->second = add_node(rule_, n);
    }
    return at->second;
  }
  static ShapePattern pattern(const synth::Dims& dims) {
    ShapePattern s;
    for (int i = 0; i < dims.rank; ++i) {
      const synth::DimId d = dims.axis[size_t(i)];
      s.dims.push_back(d == synth::kOne ? "1" : "d" + std::to_string(d));
    }
    return s;
  }
  // Without the axes in front that stay where they are.
  static uint64_t transposed(uint64_t code, int rank) {
    int lead = 0;
    while (lead < rank && int(code >> (4 * lead) & 15) == lead) ++lead;
    uint64_t r = uint64_t(rank - lead);
    for (int i = lead; i < rank; ++i)
      r |= ((code >> (4 * i) & 15) - uint64_t(lead)) << (4 * (i - lead) + 4);
    return r;
  }

  const EGraph& graph_;
  const std::set<ValueId> leaves_;
  std::map<ValueId, ValueId> variables_;
  ValueId target_ = kNone;
  const Choice* after_ = nullptr;
  Rule rule_;
  int steps_ = 0;
};

// The rule where all its variables are positive, if it has any such.
std::optional<Rule> of_positive(const Rule& rule) {
  Rule r = rule;
  r.conditions.clear();
  r.integer = false;
  restrict_all(r, Condition::Kind::Positive);
  std::optional<Rule> stated = restated(r, r.left, r.right);
  if (!stated || stated->conditions.empty()) return std::nullopt;
  const auto needed = assumptions(*stated);
  if (!needed) return std::nullopt;
  stated->conditions.insert(stated->conditions.end(), needed->begin(), needed->end());
  return stated;
}

// "sum-mul": the operations of a side, outermost first.
std::string words(const Rule& rule, ValueId side, size_t most) {
  std::string text;
  std::vector<ValueId> open{side};
  size_t count = 0;
  while (!open.empty() && count < most) {
    const ValueId v = open.back();
    open.pop_back();
    const Node& n = rule.nodes[v];
    static const std::map<Form, std::string> kNames{
        {Form::Dot, "matmul"},      {Form::Transpose, "transpose"}, {Form::Unsqueeze, "expand"},
        {Form::Squeeze, "squeeze"}, {Form::Broadcast, "broadcast"}, {Form::Diagonal, "diagonal"},
        {Form::Stack, "stack"}};
    std::string word;
    if (const auto at = kNames.find(n.form); at != kNames.end())
      word = at->second;
    else if (n.form == Form::Pointwise || n.form == Form::Reduce || n.form == Form::Triangle)
      word = name(n.kind);
    std::ranges::replace(word, '_', '-');
    if (!word.empty()) {
      text += (text.empty() ? "" : "-") + word;
      ++count;
    }
    const std::vector<ValueId> args = operands(rule, v);
    open.insert(open.end(), args.rbegin(), args.rend());
  }
  return text;
}

}  // namespace

std::optional<Rule> discovery(const EGraph& graph, const Choice& before, const Choice& after,
                              ValueId target, const std::vector<ValueId>& leaves) {
  return Recorder(graph, leaves).run(before, after, target);
}

Learner::Learner(LearnOptions options, std::vector<Rule> known)
    : options_(std::move(options)), known_(std::move(known)) {}

std::vector<Rule> Learner::learn(const Graph& program, const std::string& source) {
  std::vector<Rule> raw;
  SynthOptions synth;
  synth.discovered = [&](const EGraph& graph, const Choice& before, const Choice& after,
                         ValueId target, const std::vector<ValueId>& leaves) {
    if (auto rule = discovery(graph, before, after, target, leaves))
      raw.push_back(std::move(*rule));
  };
  Context context;
  context.seed = options_.seed;
  context.cancel = options_.cancel;
  Budget budget;
  budget.steps = options_.steps;
  budget.seconds = options_.seconds;
  budget.candidates = 1;
  CollectingSink sink;
  Synth(std::move(synth)).run(Subprogram{program}, context, budget, sink);
  ++counts_.programs;
  std::vector<Rule> learnt;
  for (const Rule& r : raw) {
    if (context.cancelled()) break;
    for (Rule& rule : learn(r, source)) learnt.push_back(std::move(rule));
  }
  return learnt;
}

std::vector<Rule> Learner::learn(const Rule& raw, const std::string& source) {
  constexpr int kMostOperations = 7;
  std::vector<Rule> learnt;
  ++counts_.discoveries;
  for (Rule& rule : generalised(raw)) {
    if (options_.cancel && options_.cancel->load(std::memory_order_relaxed)) break;
    if (size(rule, rule.left) > kMostOperations || size(rule, rule.right) > kMostOperations ||
        about_numbers(rule))
      continue;
    ++counts_.candidates;
    if (follows(rule, known_) || reducible(rule, known_)) {
      ++counts_.derived;
      continue;
    }
    CheckOptions check_options = options_;
    check_options.seed = mix64(options_.seed + known_.size() + 1);
    CheckResult result = check(rule, check_options);
    if (!result.holds && std::ranges::all_of(rule.conditions, &Condition::implied)) {
      // What cannot be shown of all numbers may hold of positive ones.
      if (const auto narrower = of_positive(rule)) {
        const CheckResult again = check(*narrower, check_options);
        if (again.holds) {
          rule = *narrower;
          result = again;
          drop_restrictions(rule, [&](const Rule& r) { return check(r, check_options).holds; });
        }
      }
    }
    if (!result.holds) {
      ++counts_.refused;
      rule.name = "refused";
      refusals_.push_back(print(rule) + "  " + result.why + "\n");
      continue;
    }
    const std::string right = words(rule, rule.right, 3);
    const bool stated = source.empty();
    const std::string base =
        stated ? raw.name : words(rule, rule.left, 4) + (right.empty() ? "" : "--" + right);
    rule.name = base;
    auto taken = [&] {
      return std::ranges::any_of(known_, [&](const Rule& k) { return k.name == rule.name; });
    };
    for (int n = 2; taken(); ++n) rule.name = base + "-" + std::to_string(n);
    rule.learned = stated ? "as stated in textbooks" : "from " + source;
    rule.checked = "on " + std::to_string(result.instances) + " instances by the verifier";
    if (result.agreed > 0)
      rule.checked += "; the second opinion (Z3) agrees on " + std::to_string(result.agreed);
    ++counts_.kept;
    known_.push_back(rule);
    learnt.push_back(std::move(rule));
  }
  return learnt;
}

}  // namespace tessera::rules
