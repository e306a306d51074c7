#include "search/synth/window.h"

#include <algorithm>

#include "base/check.h"
#include "search/synth/hash_index.h"

namespace tessera::synth {
namespace {

constexpr int kMaxSteps = 8;  // operations in one derivation

// A program over the leaves. Arguments of its node are indices of entries.
struct Entry {
  Node node;
  Sample sample;
  ValueId known = kNone;      // the e-graph's class, of leaves and of what was committed
  double own = 0, total = 0;  // seconds: the last operation, the derivation
  uint8_t size = 0, steps = 0;
  std::array<uint32_t, kMaxSteps> step{};  // entries of the derivation, ascending, itself last
};

class Window {
 public:
  Window(EGraph& graph, const Grammar& grammar, ValueId target, const std::vector<bool>& live,
         const WindowLimits& limits, const std::function<bool()>& stopped)
      : graph_(graph), world_(graph.world()), grammar_(grammar), target_(target), live_(live),
        limits_(limits), dearest_(limits.seconds * (1 + 1e-9)), stopped_(stopped) {}

  WindowReport run(const std::vector<ValueId>& leaves) {
    levels_.resize(size_t(limits_.max_size) + 1);
    for (ValueId v : leaves) add_leaf(v);
    for (const DType dtype : dtypes(leaves)) {
      for (const Rational& c : grammar_.constants) {
        const ValueId v = graph_.add(constant(c, dtype));
        if (v != kNone) add_leaf(v);
      }
    }
    for (uint64_t extent : grammar_.extents) {
      if (!spanned(extent, leaves)) continue;
      for (const DType dtype : dtypes(leaves)) {
        if (!is_float(dtype)) continue;
        Node n;
        n.form = Form::Extent;
        n.attr = extent;
        n.dtype = dtype;
        if (const ValueId v = graph_.add(n); v != kNone) add_leaf(v);
      }
    }
    views_of_leaves();
    for (int size = 1; size <= limits_.max_size && !over(); ++size) {
      level(size);
      if (limits_.holes && !over()) meet(size);
    }
    report_.complete = !over();
    report_.values = int64_t(entries_.size());
    return report_;
  }

 private:
  bool over() {
    // By looks, not by evaluations: what is too dear is not evaluated, and takes time too.
    if (!over_ &&
        (report_.evaluations >= limits_.evaluations || ((looks_++ & 255) == 0 && stopped_())))
      over_ = true;
    return over_;
  }

  // Those of the numbers among the leaves and the target, each once.
  std::vector<DType> dtypes(const std::vector<ValueId>& leaves) const {
    std::vector<DType> all;
    auto add = [&](ValueId v) {
      const DType dtype = graph_[v].sample.dims.dtype;
      if (dtype != DType::Bool && std::find(all.begin(), all.end(), dtype) == all.end())
        all.push_back(dtype);
    };
    add(target_);
    for (ValueId v : leaves) add(v);
    return all;
  }
  Node constant(const Rational& c, DType dtype) {
    Node n;
    n.form = Form::Const;
    n.attr = world_.constant(c);
    n.dtype = dtype;
    return n;
  }
  // Are an extent's dimensions among those of the leaves, and told apart by their sizes?
  bool spanned(uint64_t extent, const std::vector<ValueId>& leaves) const {
    std::set<DimId> present;
    for (ValueId v : leaves) {
      const Dims& d = graph_[v].sample.dims;
      present.insert(d.axis.begin(), d.axis.begin() + d.rank);
    }
    const auto& sizes = world_.dims().sizes;
    for (; extent != 0; extent >>= 8) {
      const DimId dim = DimId(extent & 255);
      if (!present.count(dim)) return false;
      for (DimId other : present)
        if (other != dim && sizes[other] == sizes[dim]) return false;
    }
    return true;
  }

  void add_leaf(ValueId v) {
    const Sample& s = graph_[v].sample;
    if (index_.find(s.hash) != kNone) return;
    Entry e;
    e.sample = s;
    e.known = v;
    e.node = graph_[v].nodes.front();
    push(std::move(e));
  }
  void push(Entry e) {
    const uint32_t id = uint32_t(entries_.size());
    index_.put(e.sample.hash, id);
    levels_[e.size].push_back(id);
    entries_.push_back(std::move(e));
  }

  void views_of_leaves() {
    const std::vector<uint32_t> leaves = levels_[0];
    for (uint32_t id : leaves) {
      const Dims d = entries_[id].sample.dims;  // entries move as others come
      if (d.rank >= 2) try_node(view(Form::Transpose, id, swapped(d.rank)), 0);
      if (d.rank == 1 && grammar_.max_rank > 1) try_node(view(Form::Unsqueeze, id, 2), 0);
      if (d.rank >= 2 && grammar_.diagonals) try_node(view(Form::Diagonal, id, 0), 0);
    }
  }
  // Transpose's attr that swaps the last two axes.
  static uint64_t swapped(int rank) {
    uint64_t attr = 0;
    for (int a = 0; a < rank; ++a) {
      const int from = a < rank - 2 ? a : 2 * rank - 3 - a;
      attr |= uint64_t(from) << (4 * a);
    }
    return attr;
  }
  static Node view(Form form, uint32_t a, uint64_t attr, OpKind kind = OpKind::Input) {
    Node n;
    n.form = form;
    n.kind = kind;
    n.arity = 1;
    n.arg[0] = a;
    n.attr = attr;
    return n;
  }
  static Node pointwise(OpKind kind, uint32_t a, uint32_t b = kNone) {
    Node n;
    n.form = Form::Pointwise;
    n.kind = kind;
    n.arity = b == kNone ? 1 : 2;
    n.arg = {a, b, kNone};
    return n;
  }
  static Node dot(uint32_t a, uint32_t b) {
    Node n;
    n.form = Form::Dot;
    n.arity = 2;
    n.arg = {a, b, kNone};
    return n;
  }

  // Everything with `size` operations.
  void level(int size) {
    for (uint32_t id : copy(levels_[size_t(size) - 1])) {
      if (over()) return;
      if (entries_[id].total <= dearest_) unary(id, size);
    }
    for (int left = 0; left < size; ++left) {
      const int right = size - 1 - left;
      if (right > left) continue;  // each pair once, the larger first
      const std::vector<uint32_t> as = levels_[size_t(left)], bs = levels_[size_t(right)];
      for (uint32_t a : as) {
        if (entries_[a].total > dearest_) continue;
        for (uint32_t b : bs) {
          if (left == right && b > a) break;
          if (entries_[b].total > dearest_) continue;
          binary(a, b, size);
          if (over()) return;
        }
      }
    }
  }
  static std::vector<uint32_t> copy(const std::vector<uint32_t>& v) { return v; }

  void unary(uint32_t a, int size) {
    const Dims d = entries_[a].sample.dims;
    if (d.dtype == DType::Bool || number(a)) return;
    for (int axis = 0; axis < d.rank; ++axis) {
      if (d.axis[size_t(axis)] == kOne) continue;
      reductions(a, uint64_t(1) << axis, size);
    }
    if (d.rank > 1) reductions(a, (uint64_t(1) << d.rank) - 1, size);
    if (d.rank > 2) reductions(a, uint64_t(3) << (d.rank - 2), size);
    if (size <= 2) {
      if (d.rank >= 2) try_node(view(Form::Transpose, a, swapped(d.rank)), size);
      if (d.rank == 1 && grammar_.max_rank > 1) try_node(view(Form::Unsqueeze, a, 2), size);
    }
    if (grammar_.diagonals && d.rank >= 2) try_node(view(Form::Diagonal, a, 0), size);
    if (grammar_.triangles && d.rank == 2 && size <= 2) {
      try_node(view(Form::Triangle, a, 0, OpKind::Triu), size);
      try_node(view(Form::Triangle, a, 0, OpKind::Tril), size);
    }
    const bool real = is_float(d.dtype);
    if (grammar_.roots && real) try_node(pointwise(OpKind::Sqrt, a), size);
    if (grammar_.exponentials && real) {
      try_node(pointwise(OpKind::Exp, a), size);
      if (size == 1) try_node(pointwise(OpKind::Log, a), size);
    }
    if (grammar_.order) {
      try_node(pointwise(OpKind::Abs, a), size);
      if (size <= 2) try_node(pointwise(OpKind::Sign, a), size);
    }
    try_node(pointwise(OpKind::Neg, a), size);
  }
  void reductions(uint32_t a, uint64_t mask, int size) {
    try_node(view(Form::Reduce, a, mask, OpKind::Sum), size);
    if (grammar_.maxima) try_node(view(Form::Reduce, a, mask, OpKind::ReduceMax), size);
    if (grammar_.minima) try_node(view(Form::Reduce, a, mask, OpKind::ReduceMin), size);
  }

  void binary(uint32_t a, uint32_t b, int size) {
    const Dims x = entries_[a].sample.dims, y = entries_[b].sample.dims;
    if (x.dtype != y.dtype || x.dtype == DType::Bool || (number(a) && number(b))) return;
    if (broadcast(x, y)) {
      try_node(pointwise(OpKind::Mul, a, b), size);
      try_node(pointwise(OpKind::Add, a, b), size);
      if (a != b) {
        try_node(pointwise(OpKind::Sub, a, b), size);
        try_node(pointwise(OpKind::Sub, b, a), size);
        // Programs that never divide are not given quotients, which are not defined everywhere.
        const bool quotients = grammar_.quotients && is_float(x.dtype);
        if (is_extent(b) || (quotients && !is_constant(b)))
          try_node(pointwise(OpKind::Div, a, b), size);
        if (quotients && !is_constant(a)) try_node(pointwise(OpKind::Div, b, a), size);
        if (grammar_.order) {
          try_node(pointwise(OpKind::Max, a, b), size);
          try_node(pointwise(OpKind::Min, a, b), size);
        }
      }
    }
    if (x.rank > 0 && y.rank > 0) {
      try_node(dot(a, b), size);
      if (a != b && x.rank + y.rank > 2) try_node(dot(b, a), size);
    }
  }

  bool is_constant(uint32_t a) const {
    return entries_[a].known != kNone && entries_[a].node.form == Form::Const;
  }
  bool number(uint32_t a) const { return is_constant(a) || is_extent(a); }
  bool is_extent(uint32_t a) const { return entries_[a].node.form == Form::Extent; }

  // Evaluates an operation and files its value: as a way to compute a class of the e-graph, and for
  // larger programs where it is new or cheaper than before.
  void try_node(const Node& node, int size) {
    const Sample* args[3] = {};
    const Dims* dims[3] = {};
    Form forms[3] = {};
    for (int i = 0; i < node.arity; ++i) {
      const Entry& arg = entries_[node.arg[size_t(i)]];
      args[i] = &arg.sample;
      dims[i] = &arg.sample.dims;
      forms[i] = arg.node.form;
    }
    const std::optional<Dims> shape = result_dims(node, dims);
    if (!shape || shape->rank > grammar_.max_rank ||
        double(world_.dims().elements(*shape)) > limits_.elements ||
        world_.dims().count(*shape) > kMaxCount)
      return;
    Entry e;
    e.node = node;
    e.own = graph_.rates().seconds(world_, node, *shape, dims, forms);
    if (!derive(e)) return;
    ++report_.evaluations;
    const std::optional<Sample> value = world_.eval(node, args);
    if (!value) return;
    if (const uint32_t at = index_.find(value->hash); at != kNone) {
      Entry& old = entries_[at];
      if (old.known == kNone && e.total < old.total * (1 - 1e-9) && at > last(e)) {
        // Cheaper, of operands that were there before it: what uses it is cheaper than it says.
        old.node = node;
        old.own = e.own;
        old.total = e.total;
        old.steps = e.steps;
        old.step = e.step;
        old.step[size_t(e.steps - 1)] = at;
      } else if (old.known != kNone) {
        offer(e, old.known);
      }
      return;
    }
    e.size = uint8_t(size);
    const ValueId known = graph_.find(value->hash);
    e.sample = store_.keep(*value);
    if (known != kNone) {
      offer(e, known);
      e.known = known;
    } else if (world_.number(*value)) {
      return;  // a constant: nothing to build on
    }
    push(std::move(e));
  }

  // Derivation and cost of a new entry from its operands'; false where it is too long or too dear.
  bool derive(Entry& e) {
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
  static uint32_t last(const Entry& e) {
    uint32_t r = 0;
    for (int i = 0; i < e.node.arity; ++i) r = std::max(r, e.node.arg[size_t(i)]);
    return r;
  }

  // The e-graph's class of an entry, with the way it is computed here.
  ValueId commit(uint32_t id) {
    if (entries_[id].known != kNone) return entries_[id].known;
    const ValueId v = graph_.add(translated(entries_[id].node));
    CHECK(v != kNone);
    entries_[id].known = v;
    return v;
  }
  Node translated(Node node) {
    for (int i = 0; i < node.arity; ++i) node.arg[size_t(i)] = commit(node.arg[size_t(i)]);
    return node;
  }
  void offer(const Entry& e, ValueId known) {
    if (known >= live_.size() || !live_[known]) return;
    for (int i = 0; i < e.node.arity; ++i)
      if (entries_[e.node.arg[size_t(i)]].known == known) return;
    if (graph_.add_way(known, translated(e.node))) ++report_.found;
    if (known == target_ && e.total > 0) dearest_ = std::min(dearest_, e.total * (1 + 1e-9));
  }

  // --- top-down -------------------------------------------------------------------------------

  // The target as an operation on two entries, or on an entry and a constant.
  void meet(int size) {
    const Sample target = graph_[target_].sample;
    if (target.dims.dtype == DType::Bool) return;
    std::vector<uint32_t> known;
    for (int s = 0; s <= size; ++s)
      known.insert(known.end(), levels_[size_t(s)].begin(), levels_[size_t(s)].end());
    for (uint32_t b : known) {
      if (over()) return;
      const Sample base = entries_[b].sample;
      if (entries_[b].known == target_ || base.dims.dtype != target.dims.dtype) continue;
      if (const auto c = world_.ratio(target, base)) scaled(b, *c);
      if (is_constant(b)) continue;
      const auto shape = broadcast(target.dims, base.dims);
      if (!shape || !(*shape == target.dims)) continue;
      // target = hole ∘ base: the hole is target ∘⁻¹ base.
      hole(target, OpKind::Sub, base, false,
           [&](uint32_t a) { return pointwise(OpKind::Add, a, b); });
      hole(target, OpKind::Sub, base, true,
           [&](uint32_t a) { return pointwise(OpKind::Sub, b, a); });
      hole(target, OpKind::Add, base, false,
           [&](uint32_t a) { return pointwise(OpKind::Sub, a, b); });
      if (!is_float(target.dims.dtype)) continue;  // integers do not divide
      hole(target, OpKind::Div, base, false,
           [&](uint32_t a) { return pointwise(OpKind::Mul, a, b); });
      if (is_extent(b))
        hole(target, OpKind::Mul, base, false,
             [&](uint32_t a) { return pointwise(OpKind::Div, a, b); });
      if (!grammar_.quotients || is_extent(b)) continue;
      hole(target, OpKind::Div, base, true,
           [&](uint32_t a) { return pointwise(OpKind::Div, b, a); });
      hole(target, OpKind::Mul, base, false,
           [&](uint32_t a) { return pointwise(OpKind::Div, a, b); });
    }
    if (!is_float(target.dims.dtype)) return;
    // target = f(hole)
    if (grammar_.roots) inverse(target, OpKind::Sqr, OpKind::Sqrt);
    if (grammar_.exponentials) inverse(target, OpKind::Log, OpKind::Exp);
    if (grammar_.exponentials) inverse(target, OpKind::Exp, OpKind::Log);
  }

  void scaled(uint32_t b, const Rational& c) {
    const ValueId scalar = graph_.add(constant(c, graph_[target_].sample.dims.dtype));
    if (scalar == kNone || c == Rational(1)) return;
    Node n = pointwise(OpKind::Mul, 0, 0);
    if (c == Rational(-1)) {
      n = pointwise(OpKind::Neg, 0);
      n.arg[0] = commit(b);
    } else {
      n.arg = {scalar, commit(b), kNone};
    }
    if (n.arg[0] == target_ || n.arg[1] == target_) return;
    if (graph_.add_way(target_, n)) ++report_.found;
    dearest_ =
        std::min(dearest_, (entries_[b].total + graph_.node_seconds(n, entries_[b].sample.dims)) *
                               (1 + 1e-9));
  }

  template <class Way>
  void hole(const Sample& target, OpKind kind, const Sample& base, bool swapped, Way way) {
    ++report_.evaluations;
    const Node node = pointwise(kind, 0, 1);
    const Sample* args[] = {swapped ? &base : &target, swapped ? &target : &base};
    const std::optional<Sample> value = world_.eval(node, args);
    if (!value) return;
    uint32_t a = index_.find(value->hash);
    if (a == kNone && varies_less(*value)) {
      const Sample small = world_.shrunk(*value);
      a = index_.find(small.hash);
      if (a == kNone && small.dims.rank == 0) a = constant_entry(small);
    }
    if (a == kNone || entries_[a].known == target_) return;
    meet_at(way(a));
  }
  // A scalar of known value, as an entry; kNone where it is no simple number.
  uint32_t constant_entry(const Sample& s) {
    const auto number = world_.number(s);
    if (!number || number->is_zero()) return kNone;
    const ValueId v = graph_.add(constant(*number, s.dims.dtype));
    if (v == kNone) return kNone;
    add_leaf(v);
    return index_.find(graph_[v].sample.hash);
  }
  // Cheap first look: do neighbours along the last axis, or the first, agree?
  bool varies_less(const Sample& s) const {
    if (s.dims.rank == 0) return true;
    const int n0 = world_.dims().count(s.dims, 0);
    const int row = s.dims.rank > 1 ? n0 / world_.dims().sizes[s.dims.axis[0]][0] : 1;
    return (n0 > 1 && s.p[0] == s.p[1]) || (row < n0 && s.p[0] == s.p[row]) || s.dims.rank > 2;
  }
  void inverse(const Sample& target, OpKind inverse, OpKind function) {
    ++report_.evaluations;
    const Sample* args[] = {&target};
    const std::optional<Sample> value = world_.eval(pointwise(inverse, 0), args);
    if (!value) return;
    const uint32_t at = index_.find(value->hash);
    if (at == kNone || entries_[at].known == target_) return;
    meet_at(pointwise(function, at));
  }
  // Files a node that has the target's value.
  void meet_at(const Node& node) {
    Entry e;
    e.node = node;
    const Dims* dims[3] = {};
    Form forms[3] = {};
    for (int i = 0; i < node.arity; ++i) {
      dims[i] = &entries_[node.arg[size_t(i)]].sample.dims;
      forms[i] = entries_[node.arg[size_t(i)]].node.form;
    }
    // Operands that vary along no axis of the target do not make up its shape.
    const std::optional<Dims> shape = result_dims(node, dims);
    if (!shape || !(*shape == graph_[target_].sample.dims)) return;
    e.own = graph_.rates().seconds(world_, node, graph_[target_].sample.dims, dims, forms);
    if (derive(e)) offer(e, target_);
  }

  EGraph& graph_;
  World& world_;
  const Grammar& grammar_;
  ValueId target_;
  const std::vector<bool>& live_;
  const WindowLimits& limits_;
  double dearest_;  // seconds of programs worth looking at
  const std::function<bool()>& stopped_;
  SampleStore store_;
  std::vector<Entry> entries_;
  std::vector<std::vector<uint32_t>> levels_;  // by size
  HashIndex index_;
  WindowReport report_;
  uint64_t looks_ = 0;  // at whether it is over
  bool over_ = false;
};

}  // namespace

WindowReport search_window(EGraph& graph, const Grammar& grammar,
                           const std::vector<ValueId>& leaves, ValueId target,
                           const std::vector<bool>& live, const WindowLimits& limits,
                           const std::function<bool()>& stopped) {
  return Window(graph, grammar, target, live, limits, stopped).run(leaves);
}

}  // namespace tessera::synth
