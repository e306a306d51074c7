#include "search/synth/bank.h"

#include <algorithm>

#include "base/check.h"
#include "base/interruption.h"

namespace tessera::synth {

bool Bank::over() {
  // By looks, not by evaluations: what is too dear is not evaluated, and takes time too.
  if (!over_ &&
      (report_.evaluations >= limits_.evaluations || ((looks_++ & 255) == 0 && stopped_())))
    over_ = true;
  return over_;
}

void Bank::add_leaf(ValueId v) {
  const Sample& s = graph_[v].sample;
  if (find(s) != kNone) return;
  Entry e;
  e.sample = s;
  e.known = v;
  e.committed = true;
  e.node = graph_[v].nodes.front();
  push(std::move(e));
}
void Bank::push(Entry e) {
  const uint32_t id = uint32_t(entries_.size());
  index_.put(e.sample.hash, id);
  levels_[e.size].push_back(id);
  entries_.push_back(std::move(e));
}

ValueId Bank::constant_class(const Rational& c, DType dtype) {
  return graph_.add(leaf(Form::Const, world_.constant(c), dtype));
}
uint32_t Bank::constant(const Rational& c, DType dtype) {
  const ValueId v = constant_class(c, dtype);
  if (v == kNone) return kNone;
  add_leaf(v);
  return find(graph_[v].sample);
}
uint32_t Bank::constant_of(const Sample& s) {
  const auto number = world_.number(s);
  return !number || number->is_zero() ? kNone : constant(*number, s.dims.dtype);
}

std::vector<uint32_t> Bank::conditions() {
  std::vector<uint32_t> found;
  for (ValueId v = 0; v < live_.size(); ++v) {
    if (!live_[v] || graph_[v].sample.dims.dtype != DType::Bool) continue;
    uint32_t at = find(graph_[v].sample);
    const std::vector<Node> nodes = graph_[v].nodes;  // classes move as others come
    for (const Node& node : nodes) {
      if (at != kNone) break;
      if (node.form != Form::Pointwise) continue;
      Node n = node;
      bool here = true;
      for (int i = 0; i < n.arity && here; ++i) {
        n.arg[size_t(i)] = find(graph_[node.arg[size_t(i)]].sample);
        here = n.arg[size_t(i)] != kNone;
      }
      if (here) at = try_node(n, 1);
    }
    if (at != kNone) found.push_back(at);
  }
  return found;
}

std::optional<Dims> Bank::shape_of(const Node& node) const {
  const Dims* dims[3] = {};
  for (int i = 0; i < node.arity; ++i) dims[i] = &entries_[node.arg[size_t(i)]].sample.dims;
  return result_dims(node, dims);
}
std::optional<double> Bank::seconds(const Node& node) const {
  const std::optional<Dims> shape = shape_of(node);
  if (!shape) return std::nullopt;
  return graph_.rates().seconds(world_, node, *shape, [&](uint32_t id) {
    return std::pair(&entries_[id].sample.dims, entries_[id].node.form);
  });
}

uint32_t Bank::try_node(const Node& node, int size) {
  interruption_point();
  const std::optional<Dims> shape = shape_of(node);
  if (!shape || shape->rank > grammar_.max_rank ||
      double(world_.dims().elements(*shape)) > limits_.elements ||
      world_.dims().count(*shape) > kMaxCount)
    return kNone;
  Entry e;
  e.node = node;
  e.own = *seconds(node);
  if (!derive(e)) return kNone;
  ++report_.evaluations;
  const Sample* args[3] = {};
  for (int i = 0; i < node.arity; ++i) args[i] = &entries_[node.arg[size_t(i)]].sample;
  const std::optional<Sample> value = world_.eval(node, args);
  if (!value) return kNone;
  if (const uint32_t at = find(*value); at != kNone) {
    Entry& old = entries_[at];
    const auto before = [&](uint32_t a) { return a < at; };
    if (old.known == kNone && e.total < old.total * (1 - 1e-9) &&
        std::all_of(node.arg.begin(), node.arg.begin() + node.arity, before)) {
      // Cheaper, of operands that were there before it: what uses it is cheaper than it says.
      old.node = node;
      old.committed = false;
      old.own = e.own;
      old.total = e.total;
      old.steps = e.steps;
      old.step = e.step;
      old.step[size_t(e.steps - 1)] = at;
    } else if (old.known != kNone) {
      offer(e, old.known);
    }
    return at;
  }
  e.size = uint8_t(size);
  const ValueId known = graph_.find(value->hash);
  e.sample = store_.keep(*value);
  if (known != kNone) {
    offer(e, known);
    e.known = known;
  } else if (world_.number(*value)) {
    return kNone;  // a constant: nothing to build on
  }
  push(std::move(e));
  return uint32_t(entries_.size() - 1);
}

// Derivation and cost of a new entry from its operands'; false where it is too long or too dear.
bool Bank::derive(Entry& e) const {
  e.total = e.own;
  e.steps = 0;
  for (int i = 0; i < e.node.arity; ++i) {
    const Entry& arg = entries_[e.node.arg[size_t(i)]];
    for (int s = 0; s < arg.steps; ++s) {
      const uint32_t step = arg.step[size_t(s)];
      const auto end = e.step.begin() + e.steps;
      if (std::find(e.step.begin(), end, step) != end) continue;
      if (e.steps == kMaxSteps - 1) return false;
      e.step[e.steps++] = step;
      e.total += entries_[step].own;
    }
  }
  if (e.total > dearest_) return false;
  e.step[e.steps++] = uint32_t(entries_.size());
  return true;
}

// The e-graph's class of an entry, with the way it is computed here: a class that is known may be
// known by a dearer one.
ValueId Bank::commit(uint32_t id) {
  if (entries_[id].committed) return entries_[id].known;
  entries_[id].committed = true;
  const Node node = translated(entries_[id].node);
  if (entries_[id].known == kNone)
    entries_[id].known = graph_.add(node);
  else
    graph_.add_way(entries_[id].known, node);
  CHECK(entries_[id].known != kNone);
  return entries_[id].known;
}
Node Bank::translated(Node node) {
  for (int i = 0; i < node.arity; ++i) node.arg[size_t(i)] = commit(node.arg[size_t(i)]);
  return node;
}
void Bank::offer(const Entry& e, ValueId known) {
  if (known >= live_.size() || !live_[known]) return;
  for (int i = 0; i < e.node.arity; ++i)
    if (entries_[e.node.arg[size_t(i)]].known == known) return;
  if (graph_.add_way(known, translated(e.node))) ++report_.found;
  if (known == target_ && e.total > 0) note_cost(e.total);
}

void Bank::note_cost(double seconds) {
  if (limits_.bound) dearest_ = std::min(dearest_, seconds * (1 + 1e-9));
}

void Bank::offer_target(const Node& node) {
  // Operands that vary along no axis of the target do not make up its shape.
  const std::optional<Dims> shape = shape_of(node);
  if (!shape || !(*shape == target_sample().dims)) return;
  Entry e;
  e.node = node;
  e.own = *seconds(node);
  if (derive(e)) offer(e, target_);
}

void Bank::offer_scaled(uint32_t b, const Rational& c) {
  const ValueId scalar = constant_class(c, target_sample().dims.dtype);
  if (scalar == kNone || c == Rational(1) || entries_[b].known == target_) return;
  const ValueId base = commit(b);
  const Node n =
      c == Rational(-1) ? pointwise(OpKind::Neg, base) : pointwise(OpKind::Mul, scalar, base);
  if (graph_.add_way(target_, n)) ++report_.found;
  const double total = entries_[b].total + graph_.node_seconds(n, entries_[b].sample.dims);
  note_cost(total);
}

}  // namespace tessera::synth
