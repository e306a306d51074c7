#include "search/synth/deeper.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "search/synth/hash_index.h"
#include "search/synth/sketches.h"
#include "search/synth/world_vec.h"

namespace tessera::synth {
namespace {

// Two elements stand for a value (World::picks): 62 random bits, which operations element by
// element take to those of their result. What agrees in them is evaluated whole.
using Pick = std::array<uint32_t, kDraws>;

uint64_t key(const Pick& p) { return uint64_t(p[1]) << 32 | p[0]; }

// Pairs by pick. Nearly all look-ups find nothing, and a few bits say so.
class PickIndex {
 public:
  uint32_t find(const Pick& p) const {
    const uint32_t bit = p[0] & kMask;
    return may_hold_[bit >> 6] >> (bit & 63) & 1 ? index_.find(key(p)) : kNone;
  }
  void put(const Pick& p, uint32_t value) {
    const uint32_t bit = p[0] & kMask;
    may_hold_[bit >> 6] |= uint64_t(1) << (bit & 63);
    index_.put(key(p), value);
  }

 private:
  static constexpr uint32_t kMask = (1 << 20) - 1;
  std::vector<uint64_t> may_hold_ = std::vector<uint64_t>((kMask + 1) / 64);
  HashIndex index_;
};

// From a hole towards the target: the operation that the hole is an operand of.
struct Step {
  OpKind kind = OpKind::Input;
  uint32_t with = kNone;  // the other operand, an entry or a pair; kNone: there is none
  bool pair = false;      // which of these
  bool second = false;    // the hole is the second operand
};

struct Sketch {
  Sample hole;
  std::vector<Step> steps;  // the last gives the target
};

// An operation on two entries (b = kNone: on one), not evaluated whole.
struct Pair {
  enum class Op : uint8_t { Pointwise, Product, Sum, SumOfProduct } op = Op::Pointwise;
  OpKind kind = OpKind::Input;
  uint8_t axes = 0;  // that a sum is over
  uint32_t a = kNone, b = kNone;
  Pick pick{}, inverse{};  // inverse: zero where there is none
};

struct Operand {
  uint32_t entry;
  Pick pick, inverse;
};

struct Found {
  double seconds;  // estimate: values used twice are paid twice
  uint32_t pair;   // the innermost operation
  std::vector<Step> steps;
};

class Deeper {
 public:
  Deeper(Bank& bank, int64_t probes)
      : bank_(bank), world_(bank.world()), field_(world_.field()), left_(probes) {}

  void run() {
    const Sample target = bank_.target_sample();
    if (!is_float(target.dims.dtype) || left_ <= 0) return;
    const int64_t all = left_;
    choose_operands(target, all / 16);
    make_pairs();
    std::vector<Sketch> wholes{{target, {}}}, holes;
    add_functions(wholes);
    for (const Sketch& s : wholes) {
      look_up(pick(s.hole), s.steps);
      beside(s, operands_.size(), [&](size_t i) { return of_operand(i); });
      const int64_t share = all / int64_t(3 * wholes.size());
      beside(s, std::min(pairs_.size(), size_t(share / operations())),
             [&](size_t i) { return of_pair(i); });
      holes_of(s, holes);
    }
    add_functions(holes);
    // Holes that vary along fewer axes come first: more of the work is out of them.
    std::ranges::stable_sort(holes, {}, [](const Sketch& x) { return x.hole.n; });
    for (const Sketch& s : holes) {
      if (left_ <= 0 || bank_.stopped()) break;
      look_up(pick(s.hole), s.steps);
      beside(s, operands_.size(), [&](size_t i) { return of_operand(i); });
    }
    fill();
    bank_.report().evaluations += (all - left_) / 64;
  }

 private:
  static constexpr size_t kMostFound = 2'000, kMostFilled = 48;

  Pick pick(const Sample& s) const {
    const auto at = world_.picks(s.dims);
    return {s.p[at[0]], s.p[at[1]]};
  }
  template <class F> Pick each(F f) const { return {f(0), f(1)}; }

  // Operations of which a hole may be an operand.
  int operations() const { return bank_.grammar().quotients ? 6 : 4; }

  // At most so many that they make about `pairs`: small programs of the target's type, and squares
  // of those of one operation.
  void choose_operands(const Sample& target, int64_t pairs) {
    const size_t most = size_t(std::max(8.0, std::sqrt(2 * double(pairs) / operations())));
    std::vector<uint32_t> chosen;
    auto add = [&](uint32_t id) {
      const Entry& e = bank_[id];
      if (e.sample.dims.dtype == target.dims.dtype && !bank_.is_constant(id) &&
          e.known != bank_.target() && e.total <= bank_.dearest() && chosen.size() < most &&
          std::ranges::find(chosen, id) == chosen.end())
        chosen.push_back(id);
    };
    const int last = bank_.limits().max_size;
    for (uint32_t id : std::vector<uint32_t>(bank_.level(0)))
      if (rare(id) == 0) add(id);
    for (int rarity = 0; rarity <= 2; ++rarity) {
      if (rarity == 2)
        for (uint32_t id : std::vector<uint32_t>(bank_.level(0))) add(id);
      std::vector<uint32_t> ones =
          those(bank_.level(1), [&](uint32_t id) { return rare(id) == rarity; });
      for (uint32_t id : ones) add(id);
      for (uint32_t id : ones) {
        const uint32_t square = bank_.try_node(pointwise(OpKind::Mul, id, id), last);
        if (square != kNone) add(square);
      }
    }
    if (last >= 2)
      for (uint32_t id : std::vector<uint32_t>(bank_.level(2))) add(id);
    for (uint32_t id : chosen) operands_.push_back({id, pick(bank_[id].sample), {}});
    invert(operands_);
  }

  // 0: an operation on leaves; 1: with a constant in it; 2: of transposed leaves and the like.
  int rare(uint32_t id) const {
    auto is_view = [&](uint32_t a) {
      const Form form = bank_[a].node.form;
      return form == Form::Transpose || form == Form::Unsqueeze || form == Form::Diagonal;
    };
    const Entry& e = bank_[id];
    int most = is_view(id) ? 2 : 0;
    if (e.size == 0) return most;
    for (int i = 0; i < e.node.arity; ++i) {
      const uint32_t a = e.node.arg[size_t(i)];
      most = std::max(most, is_view(a) ? 2 : bank_.is_number(a) ? 1 : 0);
    }
    return most;
  }

  template <class T> void invert(std::vector<T>& all) const {
    uint32_t picks[kMaxCount], inverses[kMaxCount];
    for (size_t draw = 0; draw < kDraws; ++draw)
      for (size_t from = 0; from < all.size(); from += kMaxCount) {
        const size_t n = std::min(size_t(kMaxCount), all.size() - from);
        for (size_t i = 0; i < n; ++i) picks[i] = all[from + i].pick[draw];
        synth::invert(field_, picks, int(n), inverses);
        for (size_t i = 0; i < n; ++i) all[from + i].inverse[draw] = inverses[i];
      }
  }

  void put(Pair p) {
    if (p.pick[0] == 0 || p.pick[1] == 0) return;  // zero, or nearly nothing else
    if (index_.find(p.pick) != kNone) return;
    index_.put(p.pick, uint32_t(pairs_.size()));
    pairs_.push_back(p);
  }

  void make_pairs() {
    const Grammar& grammar = bank_.grammar();
    for (size_t i = 0; i < operands_.size(); ++i) {
      if (bank_.stopped()) return;
      const uint32_t a = operands_[i].entry;
      const Sample x = bank_[a].sample;
      const Pick p = operands_[i].pick;
      sums(a, kNone, x);
      for (size_t j = 0; j <= i; ++j) {
        const uint32_t b = operands_[j].entry;
        const Sample y = bank_[b].sample;
        if (bank_[a].total + bank_[b].total > bank_.dearest()) continue;
        const Pick q = operands_[j].pick;
        left_ -= 4;
        if (const auto shape = broadcast(x.dims, y.dims)) {
          auto pointwise_pair = [&](OpKind kind, uint32_t first, uint32_t second, const Pick& r) {
            put({Pair::Op::Pointwise, kind, 0, first, second, r, {}});
          };
          pointwise_pair(OpKind::Add, a, b, each([&](size_t d) { return field_.add(p[d], q[d]); }));
          pointwise_pair(OpKind::Mul, a, b, each([&](size_t d) { return field_.mul(p[d], q[d]); }));
          pointwise_pair(OpKind::Sub, a, b, each([&](size_t d) { return field_.sub(p[d], q[d]); }));
          pointwise_pair(OpKind::Sub, b, a, each([&](size_t d) { return field_.sub(q[d], p[d]); }));
          if (grammar.quotients && i != j) {
            const Pick& over_p = operands_[i].inverse;
            const Pick& over_q = operands_[j].inverse;
            pointwise_pair(OpKind::Div, a, b,
                           each([&](size_t d) { return field_.mul(p[d], over_q[d]); }));
            pointwise_pair(OpKind::Div, b, a,
                           each([&](size_t d) { return field_.mul(q[d], over_p[d]); }));
          }
          if (grammar.order && i != j) greater(x, y, a, b, p, q);
          if (shape->rank > 1 && (a == b || bank_[a].size + bank_[b].size <= 1)) sums(a, b, x);
        }
        if (x.dims.rank == 0 || y.dims.rank == 0) continue;
        if (const auto r = world_.product_picks(x, y))
          put({Pair::Op::Product, OpKind::Matmul, 0, a, b, *r, {}});
        if (a == b || x.dims.rank + y.dims.rank == 2) continue;
        if (const auto r = world_.product_picks(y, x))
          put({Pair::Op::Product, OpKind::Matmul, 0, b, a, *r, {}});
      }
    }
    invert(pairs_);
  }
  void greater(const Sample& x, const Sample& y, uint32_t a, uint32_t b, const Pick& p,
               const Pick& q) {
    const auto at = world_.picks(x.dims), to = world_.picks(y.dims);
    Pick most{}, least{};
    for (size_t d = 0; d < kDraws; ++d) {
      const bool first = x.x[at[d]] > y.x[to[d]];
      most[d] = first ? p[d] : q[d];
      least[d] = first ? q[d] : p[d];
    }
    put({Pair::Op::Pointwise, OpKind::Max, 0, a, b, most, {}});
    put({Pair::Op::Pointwise, OpKind::Min, 0, a, b, least, {}});
  }
  // Over each axis and over all, of an entry or of a product element by element.
  void sums(uint32_t a, uint32_t b, Sample x) {
    if (b != kNone) {
      const Sample* args[] = {&bank_[a].sample, &bank_[b].sample};
      const auto product = world_.eval(pointwise(OpKind::Mul, a, b), args);
      if (!product || product->n > kMaxCount) return;
      scratch_.clear();
      x = scratch_.keep(*product);
    }
    const int rank = x.dims.rank;
    const auto op = b == kNone ? Pair::Op::Sum : Pair::Op::SumOfProduct;
    auto over = [&](uint64_t axes) {
      left_ -= 8;
      const Sample* args[] = {&x};
      const auto sum = world_.eval(view(Form::Reduce, 0, axes, OpKind::Sum), args);
      if (!sum) return;
      put({op, OpKind::Sum, uint8_t(axes), a, b, pick(*sum), {}});
    };
    for (int axis = 0; axis < rank; ++axis)
      if (x.dims.axis[size_t(axis)] != kOne) over(uint64_t(1) << axis);
    if (rank > 1) over((uint64_t(1) << rank) - 1);
  }

  // What functions leave of values: sketch √hole and the like.
  void add_functions(std::vector<Sketch>& sketches) {
    const Grammar& grammar = bank_.grammar();
    auto add = [&](const Sketch& s, OpKind inverse, OpKind function) {
      left_ -= 8;
      const Sample* args[] = {&s.hole};
      const auto hole = world_.eval(pointwise(inverse, 0), args);
      if (!hole) return;
      Sketch next{store_.keep(*hole), {{function, kNone, false, false}}};
      next.steps.insert(next.steps.end(), s.steps.begin(), s.steps.end());
      sketches.push_back(std::move(next));
    };
    const size_t n = sketches.size();
    for (size_t i = 0; i < n && left_ > 0; ++i) {
      const Sketch s = sketches[i];
      if (grammar.roots) add(s, OpKind::Sqr, OpKind::Sqrt);
      if (grammar.exponentials) add(s, OpKind::Log, OpKind::Exp);
      if (grammar.exponentials) add(s, OpKind::Exp, OpKind::Log);
    }
  }

  // What operations with a known operand leave of a value.
  void holes_of(const Sketch& s, std::vector<Sketch>& holes) {
    for (const Operand& o : operands_) {
      if (left_ <= 0) return;
      const Sample& base = bank_[o.entry].sample;
      const auto shape = broadcast(s.hole.dims, base.dims);
      if (!shape || !(*shape == s.hole.dims)) continue;
      for (const Hole& h : holes_beside(bank_, o.entry)) {
        left_ -= 8;
        const Sample* args[] = {h.reversed ? &base : &s.hole, h.reversed ? &s.hole : &base};
        auto hole = world_.eval(pointwise(h.solve, 0, 1), args);
        if (!hole) continue;
        if (varies_less(world_, *hole)) hole = world_.shrunk(*hole);
        if (bank_.find(*hole) != kNone) continue;  // meet() has been there
        Sketch next{store_.keep(*hole), {{h.kind, o.entry, false, h.second}}};
        next.steps.insert(next.steps.end(), s.steps.begin(), s.steps.end());
        holes.push_back(std::move(next));
      }
    }
  }

  struct Beside {
    uint32_t id;
    bool pair;
    const Pick &pick, &inverse;
  };
  Beside of_operand(size_t i) const {
    return {operands_[i].entry, false, operands_[i].pick, operands_[i].inverse};
  }
  Beside of_pair(size_t i) const { return {uint32_t(i), true, pairs_[i].pick, pairs_[i].inverse}; }

  // A hole as an operation on a pair and on each of `n` known values.
  template <class Known> void beside(const Sketch& s, size_t n, Known known) {
    const Pick h = pick(s.hole);
    const Pick over = each([&](size_t d) { return field_.inv(h[d]); });
    const bool quotients = bank_.grammar().quotients;
    for (size_t i = 0; i < n; ++i) {
      left_ -= operations();
      if (left_ <= 0) return;
      const Beside u = known(i);
      auto look = [&](OpKind kind, bool second, const Pick& p) {
        const uint32_t at = index_.find(p);
        if (at == kNone || found_.size() >= kMostFound) return;
        std::vector<Step> steps{{kind, u.id, u.pair, second}};
        steps.insert(steps.end(), s.steps.begin(), s.steps.end());
        note(at, std::move(steps));
      };
      look(OpKind::Add, false, each([&](size_t d) { return field_.sub(h[d], u.pick[d]); }));
      look(OpKind::Sub, true, each([&](size_t d) { return field_.sub(u.pick[d], h[d]); }));
      look(OpKind::Sub, false, each([&](size_t d) { return field_.add(h[d], u.pick[d]); }));
      look(OpKind::Mul, false, each([&](size_t d) { return field_.mul(h[d], u.inverse[d]); }));
      if (!quotients) continue;
      look(OpKind::Div, false, each([&](size_t d) { return field_.mul(h[d], u.pick[d]); }));
      look(OpKind::Div, true, each([&](size_t d) { return field_.mul(u.pick[d], over[d]); }));
    }
  }
  void look_up(const Pick& p, const std::vector<Step>& steps) {
    --left_;
    const uint32_t at = index_.find(p);
    if (at != kNone && found_.size() < kMostFound) note(at, steps);
  }

  Node node_of(const Pair& p) const {
    switch (p.op) {
    case Pair::Op::Pointwise:
    case Pair::Op::SumOfProduct:
      return pointwise(p.op == Pair::Op::Pointwise ? p.kind : OpKind::Mul, p.a, p.b);
    case Pair::Op::Product: return product(p.a, p.b);
    case Pair::Op::Sum: return view(Form::Reduce, p.a, p.axes, OpKind::Sum);
    }
    unreachable("pair");
  }
  double seconds(const Pair& p) const {
    double total = bank_[p.a].total + (p.b == kNone || p.b == p.a ? 0 : bank_[p.b].total);
    if (const auto own = bank_.seconds(node_of(p))) total += *own;
    return total;
  }
  void note(uint32_t pair, std::vector<Step> steps) {
    double total = seconds(pairs_[pair]);
    for (const Step& s : steps) {
      if (s.with == kNone) continue;
      total += s.pair ? seconds(pairs_[s.with]) : bank_[s.with].total;
    }
    found_.push_back({total, pair, std::move(steps)});
  }

  uint32_t made(const Pair& p) {
    const int size = bank_.limits().max_size;
    const uint32_t at = bank_.try_node(node_of(p), size);
    if (p.op != Pair::Op::SumOfProduct || at == kNone) return at;
    return bank_.try_node(view(Form::Reduce, at, p.axes, OpKind::Sum), size);
  }
  // Computes what was found, the cheapest first; the bank tells what is the target.
  void fill() {
    std::ranges::stable_sort(found_, {}, &Found::seconds);
    if (found_.size() > kMostFilled) found_.resize(kMostFilled);
    for (const Found& f : found_) {
      uint32_t at = made(pairs_[f.pair]);
      for (const Step& s : f.steps) {
        if (at == kNone) break;
        if (s.with == kNone) {
          at = bank_.try_node(pointwise(s.kind, at), bank_.limits().max_size);
          continue;
        }
        const uint32_t with = s.pair ? made(pairs_[s.with]) : s.with;
        if (with == kNone) break;
        at = bank_.try_node(s.second ? pointwise(s.kind, with, at) : pointwise(s.kind, at, with),
                            bank_.limits().max_size);
      }
    }
  }

  Bank& bank_;
  World& world_;
  const Modulus<uint32_t>& field_;
  int64_t left_;  // probes; what takes longer than one counts as several
  std::vector<Operand> operands_;
  std::vector<Pair> pairs_;
  PickIndex index_;  // of pairs_
  std::vector<Found> found_;
  SampleStore store_, scratch_;
};

}  // namespace

void meet_deeper(Bank& bank, int64_t probes) { Deeper(bank, probes).run(); }

}  // namespace tessera::synth
