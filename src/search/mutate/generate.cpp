#include "search/mutate/generate.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"
#include "base/rng.h"
#include "search/mutate/cone.h"
#include "search/mutate/steps.h"
#include "search/mutate/vocabulary.h"

namespace tessera::mutants {
namespace {

constexpr double kMostGrowth = 1.75;  // of a value, over the largest that the original computes
constexpr int kTogether = 4;          // operators: longer programs come after all of these
constexpr int kPoints = 4;            // elements of each output that are looked at

class Search {
 public:
  Search(const Graph& original, const MutateOptions& options, const std::function<bool()>& stopped)
      : original_(original), options_(options), stopped_(stopped), words_(vocabulary(original)),
        g_(original.name()), cone_(g_, kSeed, thin_axes(original)),
        truth_(original, kSeed, thin_axes(original)) {
    find_starts();
    values_ = begin(original_, recipe_, g_);
    for (size_t i = 0; i < values_.size(); i++) {
      Facts f;
      f.start = true;
      f.optional = i >= recipe_.starts.size();
      if (!f.optional)
        for (const size_t k : recipe_.starts[i]) f.reads |= uint64_t(1) << k;
      facts_.push_back(f);
    }
    find_points();
  }

  Generated run() {
    run(1, std::min(options_.depth, kTogether));
    for (int depth = kTogether + 1; depth <= options_.depth && !over_; depth++) run(depth, depth);
    return std::move(found_);
  }

 private:
  void run(int from, int to) {
    // Few programs turn windows into channels, and what they save is the most.
    if (on("windows") && !words_.windows.empty()) {
      windows_only_ = true;
      rearrangements_.clear();
      deepen(from, to);
      windows_only_ = false;
      rearrangements_.clear();
    }
    // So do few that merge what is parallel.
    if (on("bundles") && original_.outputs().size() > 1) {
      bundles_only_ = true;
      deepen(from, to);
      bundles_only_ = false;
    }
    deepen(from, to);
  }

  static constexpr uint64_t kSeed = 0x7065747465737431;
  struct Facts {
    uint64_t reads = 0;  // inputs that it depends on, by number
    bool start = false, optional = false;
    int arithmetic = 0;
    StepKind kind = StepKind::Apply;
    int uses = 0;
  };
  struct Point {
    size_t output = 0;
    Index at{};
    uint64_t value = 0;
  };

  // Short programs first: what a budget cuts off is the longest.
  void deepen(int from, int to) {
    for (depth_ = from; depth_ <= to && !over_; depth_++) build(0);
  }

  bool on(const char* pass) const { return options_.disabled.count(pass) == 0; }

  // Inputs that operators of one kind read at one place are a bundle, others alone.
  void find_starts() {
    const auto& inputs = original_.inputs();
    std::map<uint32_t, size_t> number;
    for (size_t i = 0; i < inputs.size(); i++) number[inputs[i].index] = i;
    std::map<std::pair<OpKind, size_t>, std::vector<size_t>> at;
    for (const Op& op : original_.ops())
      for (size_t k = 0; k < op.inputs.size(); k++)
        if (const auto it = number.find(op.inputs[k].index); it != number.end())
          at[{op.kind, k}].push_back(it->second);
    std::set<size_t> bundled;
    if (on("bundles") && original_.outputs().size() > 1)
      for (const auto& [where, bundle] : at) {
        if (bundle.size() != original_.outputs().size()) continue;
        if (std::set<size_t>(bundle.begin(), bundle.end()).size() != bundle.size()) continue;
        if (std::ranges::find(recipe_.starts, bundle) != recipe_.starts.end()) continue;
        recipe_.starts.push_back(bundle);
        bundled.insert(bundle.begin(), bundle.end());
      }
    for (size_t i = inputs.size(); i-- > 0;)
      if (!bundled.count(i)) recipe_.starts.insert(recipe_.starts.begin(), std::vector<size_t>{i});
    // Weights of convolutions: their first axis is the result's channels.
    for (const auto& start : recipe_.starts) {
      bool weights = words_.convolves;
      for (const size_t i : start)
        for (const Op& op : original_.ops())
          for (size_t k = 0; k < op.inputs.size(); k++)
            if (op.inputs[k] == inputs[i] && (op.kind != OpKind::Conv || k != 1)) weights = false;
      weights_.push_back(weights);
    }
    for (size_t i = 0; i < original_.ops().size(); i++)
      if (original_.ops()[i].constant()) recipe_.constants.push_back(OpId(i));
  }

  void find_points() {
    Rng rng(options_.seed + 17);
    for (size_t k = 0; k < original_.outputs().size(); k++) {
      const Dims shape = extents(original_.type(original_.outputs()[k]).shape);
      for (int tries = 0, found = 0; tries < 8 * kPoints && found < kPoints; tries++) {
        Point p;
        p.output = k;
        for (size_t d = 0; d < shape.size(); d++) p.at[d] = int64_t(rng.below(uint64_t(shape[d])));
        p.value = truth_.at(original_.outputs()[k], p.at);
        if (p.value == 0) continue;  // says little
        points_.push_back(p);
        found++;
      }
    }
    std::vector<uint64_t> reads(original_.tensors().size(), 0);
    for (size_t i = 0; i < original_.inputs().size(); i++)
      reads[original_.inputs()[i].index] = uint64_t(1) << i;
    for (const Op& op : original_.ops())
      for (const TensorId t : op.inputs) reads[op.result().index] |= reads[t.index];
    for (const TensorId t : original_.outputs()) needed_ |= reads[t.index];
  }

  Dims shape(TensorId t) const { return extents(g_.type(t).shape); }
  // The shape of a value whose parts all have it.
  std::optional<Dims> shape_of(int v) const {
    const Parts& p = values_[size_t(v)];
    for (const TensorId t : p)
      if (!(g_.type(t) == g_.type(p[0]))) return std::nullopt;
    return shape(p[0]);
  }
  double size_of(const Parts& p) const {
    return sum_of<double>(
        p, [&](const TensorId t) { return count(shape(t)); });
  }
  bool is_goal(const Parts& p) const {
    if (p.size() != original_.outputs().size()) return false;
    for (size_t k = 0; k < p.size(); k++)
      if (!(g_.type(p[k]) == original_.type(original_.outputs()[k]))) return false;
    return true;
  }

  // Values and inputs that nothing has used yet; each further operator joins at most two.
  int loose() const {
    int n = 0;
    uint64_t read = 0;
    for (const Facts& f : facts_) {
      if (f.start) continue;
      if (f.uses == 0) n++;
      read |= f.reads;
    }
    uint64_t missing = needed_ & ~read;
    // Bundles first: they are read at once.
    for (size_t i = recipe_.starts.size(); i-- > 0 && missing;) {
      const uint64_t mask = facts_[i].reads;
      if ((mask & missing) == mask && mask != 0) {
        missing &= ~mask;
        n++;
      }
    }
    return n;
  }

  // Rearranged values are read by operators with arithmetic only, so that two of them that nothing
  // has read have to fit together.
  bool can_meet(const Dims& fresh, uint64_t reads) const {
    for (size_t v = 0; v < facts_.size(); v++) {
      if (facts_[v].start || facts_[v].uses > 0) continue;
      if (facts_[v].kind != StepKind::Rearrange && facts_[v].kind != StepKind::Reshape) continue;
      const Dims waiting = shape(values_[v][0]);
      const bool product = (facts_[v].reads & reads) == 0;
      if (!fit(waiting, fresh, product) && !fit(fresh, waiting, product)) return false;
    }
    return true;
  }
  bool fit(const Dims& x, const Dims& y, bool product) const {
    if (product && (convolvable(x, y) || multiplies(x, y))) return true;
    return words_.elementwise && broadcast(Shape(x.begin(), x.end()), Shape(y.begin(), y.end()));
  }
  static bool multiplies(const Dims& x, const Dims& y) {
    if (x.size() < 2 || y.size() < 2 || x.back() != y[y.size() - 2]) return false;
    for (size_t i = 3; i <= std::min(x.size(), y.size()); i++) {
      const int64_t p = x[x.size() - i], q = y[y.size() - i];
      if (p != q && p != 1 && q != 1) return false;
    }
    return true;
  }
  bool convolvable(const Dims& x, const Dims& w) const {
    if (x.size() != w.size() || x.size() < 3 || x.size() > 5 || x[1] % w[1] != 0) return false;
    const int64_t groups = x[1] / w[1];
    return w[0] % groups == 0 && words_.groups.count(groups) != 0;
  }

  // Tries one operator, and all programs that go on from there.
  void attempt(Step step, int n, int param) {
    if (over_) return;
    // Independent operators in one order only.
    const std::array<int, 4> code = {int(step.kind) * 256 + int(step.op), step.operands[0],
                                     step.operands.size() > 1 ? step.operands[1] : -1, param};
    const int last = int(values_.size()) - 1;
    if (n > 0 && std::ranges::find(step.operands, last) == step.operands.end() &&
        !(code > codes_.back()))
      return;
    // What nothing has read needs operators to come.
    int waiting = 1;
    for (size_t v = 0; v < facts_.size(); v++)
      if (!facts_[v].start && facts_[v].uses == 0 &&
          std::ranges::find(step.operands, int(v)) == step.operands.end())
        waiting++;
    if (waiting > depth_ - n) return;
    if (n == 0 && first_++ % options_.slices != options_.slice) return;
    if (++found_.tried >= options_.steps) {
      over_ = true;
      found_.stop = StopReason::StepBudget;
      return;
    }
    if ((++asked_ & 15) == 0 && stopped_()) {
      over_ = true;
      found_.stop = StopReason::TimeBudget;
      return;
    }
    const Graph::Mark mark = g_.mark();
    std::optional<Parts> parts;
    try {
      parts = append(g_, step, values_);
    } catch (const Error&) {
    }
    double room = words_.most;
    for (const int v : step.operands) room = std::max(room, size_of(values_[size_t(v)]));
    for (const Tiles& t : step.rearrangement.tiles) room *= double(t.count);
    if (parts && (step.kind == StepKind::Fit || step.kind == StepKind::Merge ||
                  size_of(*parts) <= kMostGrowth * room)) {
      Facts f;
      f.kind = step.kind;
      for (const int v : step.operands) {
        f.reads |= facts_[size_t(v)].reads;
        f.arithmetic = std::max(f.arithmetic, facts_[size_t(v)].arithmetic);
        facts_[size_t(v)].uses++;
      }
      if (step.kind == StepKind::Apply && is_arithmetic(*form_of(g_, g_.producer((*parts)[0]))))
        f.arithmetic++;
      values_.push_back(*parts);
      facts_.push_back(f);
      codes_.push_back(code);
      recipe_.steps.push_back(step);
      const int loose_ends = loose();
      if (n + 1 == depth_ && loose_ends == 1 && is_goal(*parts)) offer();
      if (n + 1 < depth_ && loose_ends <= depth_ - n) build(n + 1);
      recipe_.steps.pop_back();
      codes_.pop_back();
      facts_.pop_back();
      values_.pop_back();
      for (const int v : step.operands) facts_[size_t(v)].uses--;
    }
    g_.rollback(mark);
    cone_.forget(mark.tensors);
  }

  void offer() {
    found_.mutants++;
    int same = 0, seen = 0;
    for (const Point& p : points_) {
      if (cone_.at(values_.back()[p.output], p.at) == p.value) same++;
      if (++seen == 2 && same == 0) return;
    }
    if (same == 0) return;
    found_.recipes.push_back(recipe_);
    found_.recipes.back().likely = same == int(points_.size());
  }

  // Of an input: all; of a value: those to a shape that the original has, what was added cut off.
  struct Shaped {
    Rearrangement rearrangement;
    Dims shape;  // of the result
    // Of a value that becomes the only output: what it has to be equal to at one place at least.
    std::vector<std::pair<Index, uint64_t>> looks = {};
  };
  const std::vector<Shaped>& all_of(const Dims& shape, bool start) {
    auto [it, fresh] = rearrangements_.try_emplace({shape, start});
    if (!fresh) return it->second;
    if (windows_only_) {
      for (const auto& [of, r] : start ? words_.windows : words_.returns)
        if (of == shape) it->second.push_back({r, *r.shape(shape)});
      return it->second;
    }
    if (start) {
      auto accepts = [&](const Dims& to) { return count(to) <= kMostGrowth * count(shape); };
      for (Rearrangement& r : rearrangements(shape, words_.factors, words_.lows, accepts))
        it->second.push_back({r, *r.shape(shape)});
      return it->second;
    }
    auto near = [](const Dims& to, const Dims& t) {
      bool fits = t.size() == to.size() && count(to) <= kMostGrowth * count(t);
      for (size_t d = 0; fits && d < t.size(); d++) fits = to[d] >= t[d] && to[d] < 2 * t[d] + 2;
      return fits;
    };
    auto accepts = [&](const Dims& to) {
      return std::ranges::any_of(words_.targets, [&](const Dims& t) { return near(to, t); });
    };
    for (Rearrangement& r : rearrangements(shape, words_.factors, {}, accepts))
      for (const Dims& t : words_.targets) {
        const Dims to = *r.shape(shape);
        if (!near(to, t)) continue;
        it->second.push_back({r, t});
        Shaped& last = it->second.back();
        if (to != t) last.rearrangement.keep = t;
        if (original_.outputs().size() > 1 ||
            t != extents(original_.type(original_.outputs()[0]).shape))
          continue;
        for (const Point& p : points_)
          if (const auto from = last.rearrangement.source(shape, p.at))
            last.looks.emplace_back(*from, p.value);
      }
    return it->second;
  }

  // Weights keep the result's channels first, and factors of their window's axes come from and go
  // to the channels that are summed over.
  static bool suits_weights(const Rearrangement& r) {
    return (r.perm.empty() || r.perm[0] == 0) && std::ranges::all_of(
                                                     r.moves,
                                                     [](const Move& m) {
                                                       return m.from != 0 && m.to != 0 &&
                                                              (m.from == 1 || m.to == 1);
                                                     });
  }
  void rearrange(int v, int n, int left) {
    const Facts f = facts_[size_t(v)];  // the search goes on from here and moves them
    const auto from = shape_of(v);
    if (!from || f.optional || from->size() < 2) return;
    if (!f.start && f.kind != StepKind::Apply) return;
    if (f.start && left == 0) return;
    int param = 0;
    for (const Shaped& r : all_of(*from, f.start)) {
      param++;
      if (f.start && !can_meet(r.shape, f.reads)) continue;
      if (f.start && weights_[size_t(v)] && !suits_weights(r.rearrangement)) continue;
      if (left == 0 && !r.looks.empty() && std::ranges::none_of(r.looks, [&](const auto& look) {
            return cone_.at(values_[size_t(v)][0], look.first) == look.second;
          })) {
        found_.tried++;
        found_.mutants++;
        continue;
      }
      attempt({StepKind::Rearrange, {v}, r.rearrangement}, n, param);
    }
  }

  void reshape(int v, int n, int left) {
    const Facts f = facts_[size_t(v)];  // the search goes on from here and moves them
    const auto from = shape_of(v);
    if (!from || from->empty() || f.optional || (!f.start && f.kind != StepKind::Apply)) return;
    if (f.start && left == 0) return;
    std::set<Dims> to;
    if (f.start) {
      for (unsigned joined = 1; joined < (1u << (from->size() - 1)); joined++) {
        Dims d = {(*from)[0]};
        for (size_t i = 1; i < from->size(); i++)
          if (joined & (1u << (i - 1)))
            d.back() *= (*from)[i];
          else
            d.push_back((*from)[i]);
        if (d.size() >= 2) to.insert(d);
      }
      if (from->size() <= 3 && words_.multiplies) {
        Dims behind = *from, before = *from;
        behind.push_back(1);
        before.insert(before.begin(), 1);
        to.insert({behind, before});
      }
    } else {
      for (const Dims& t : words_.targets)
        if (count(t) == count(*from) && t != *from) to.insert(t);
    }
    int param = 0;
    for (const Dims& d : to) {
      param++;
      if (f.start && !can_meet(d, f.reads)) continue;
      Step s{StepKind::Reshape, {v}};
      s.shape = d;
      attempt(std::move(s), n, param);
    }
  }

  // Attributes of an axis of a convolution.
  struct AxisChoice {
    int64_t stride = 1, dilation = 1, low = 0, high = 0;
    auto operator<=>(const AxisChoice&) const = default;
  };
  std::vector<AxisChoice> axis_choices(size_t axis, int64_t in, int64_t taps) const {
    std::set<int64_t> strides = {1}, dilations = {1};
    std::set<std::pair<int64_t, int64_t>> pads = {{0, 0}};
    for (const ConvAttrs& a : words_.convs) {
      for (size_t i = 0; i < a.strides.size(); i++) {
        strides.insert(a.strides[i]);
        for (int64_t d = 1; d <= a.dilations[i]; d++)
          if (a.dilations[i] % d == 0) dilations.insert(d);
        if (i == axis) pads.emplace(a.low[i], a.high[i]);
      }
    }
    std::set<AxisChoice> all;
    for (const int64_t s : strides)
      for (const int64_t d : dilations) {
        if (taps == 1 && d > 1) continue;
        auto with = pads;
        const int64_t total = (taps - 1) * d;
        with.emplace(total / 2, total - total / 2);
        with.emplace(total - total / 2, total / 2);
        for (const auto& [low, high] : with)
          if (in + low + high > total) all.insert({s, d, low, high});
      }
    return {all.begin(), all.end()};
  }

  bool disjoint(int a, int b) const {
    return (facts_[size_t(a)].reads & facts_[size_t(b)].reads) == 0 && a != b;
  }
  bool pairable(int a, int b) const {
    const size_t x = values_[size_t(a)].size(), y = values_[size_t(b)].size();
    return disjoint(a, b) && (x == y || x == 1 || y == 1);
  }
  bool spent(int a, int b) const {
    return std::max(facts_[size_t(a)].arithmetic, facts_[size_t(b)].arithmetic) >=
           words_.arithmetic;
  }

  void convolve(int a, int b, int n, int left) {
    if (!pairable(a, b) || spent(a, b)) return;
    const Dims x = shape(values_[size_t(a)][0]), w = shape(values_[size_t(b)][0]);
    if (!convolvable(x, w)) return;
    const size_t axes = x.size() - 2;
    std::vector<std::vector<AxisChoice>> choices;
    std::vector<int64_t> counts;
    for (size_t i = 0; i < axes; i++) {
      choices.push_back(axis_choices(i, x[2 + i], w[2 + i]));
      if (choices.back().empty()) return;
      counts.push_back(int64_t(choices.back().size()));
    }
    const Dims goal = extents(original_.type(original_.outputs()[0]).shape);
    if (left == 0 && (goal.size() != x.size() || goal[0] != x[0])) return;
    const double width = double(std::max(values_[size_t(a)].size(), values_[size_t(b)].size()));
    for (int64_t c = 0, all = int64_t(count(counts)); c < all; c++) {
      const Index which = unflat(c, counts);
      ConvAttrs attrs;
      attrs.groups = x[1] / w[1];
      double size = double(x[0]) * double(w[0]) * width;
      bool last = true;  // is it the outputs'?
      for (size_t i = 0; i < axes; i++) {
        const AxisChoice& k = choices[i][size_t(which[i])];
        attrs.strides.push_back(k.stride);
        attrs.dilations.push_back(k.dilation);
        attrs.low.push_back(k.low);
        attrs.high.push_back(k.high);
        const int64_t out =
            (x[2 + i] + k.low + k.high - (w[2 + i] - 1) * k.dilation - 1) / k.stride + 1;
        size *= double(out);
        last = last && left == 0 && out == goal[2 + i];
      }
      if (size < words_.least || size > kMostGrowth * std::max(words_.most, goal_size())) continue;
      if (left == 0 && !last) continue;
      Step s{StepKind::Apply, {a, b}};
      s.op = OpKind::Conv;
      s.attrs = attrs;
      attempt(std::move(s), n, int(c));
    }
  }

  double goal_size() const {
    return sum_of<double>(
        original_.outputs(),
        [&](const TensorId t) { return double(num_elements(original_.type(t).shape)); });
  }

  void multiply(int a, int b, int n) {
    if (!pairable(a, b) || spent(a, b)) return;
    if (!multiplies(shape(values_[size_t(a)][0]), shape(values_[size_t(b)][0]))) return;
    Step s{StepKind::Apply, {a, b}};
    s.op = OpKind::Matmul;
    attempt(std::move(s), n, 0);
  }

  void bundles(int v, int n, int left) {
    const Parts parts = values_[size_t(v)];
    const Facts f = facts_[size_t(v)];  // the search goes on from here and moves them
    if (f.optional) return;
    if (parts.size() > 1) {
      const Dims first = shape(parts[0]);
      if (words_.fit && f.start && weights_[size_t(v)] && left > 0) {
        Step s = *words_.fit;
        s.operands = {v};
        attempt(std::move(s), n, 0);
      }
      for (size_t axis = 0; axis < first.size(); axis++) {
        bool fits = f.kind != StepKind::Split;
        for (const TensorId t : parts) {
          Dims other = shape(t);
          if (other.size() != first.size()) return;
          other[axis] = first[axis];
          fits = fits && other == first;
        }
        Step s{StepKind::Concat, {v}};
        s.axis = int(axis);
        if (fits && (left > 0 || original_.outputs().size() == 1)) attempt(std::move(s), n, 0);
      }
      return;
    }
    if (f.kind == StepKind::Concat && !f.start) return;
    const Dims from = shape(parts[0]);
    if (f.start && weights_[size_t(v)] && left > 0)
      for (const auto& [groups, joined] : words_.merges) {
        if (from[0] % groups != 0) continue;
        Step s{StepKind::Merge, {v}};
        s.sizes = {groups, joined};
        attempt(std::move(s), n, int(joined));
      }
    const size_t k = original_.outputs().size();
    for (size_t axis = 0; axis < from.size(); axis++) {
      Step s{StepKind::Split, {v}};
      s.axis = int(axis);
      // Into the outputs.
      bool fits = k > 1 && !f.start;
      int64_t total = 0;
      for (const TensorId t : original_.outputs()) {
        Dims to = extents(original_.type(t).shape);
        if (to.size() != from.size()) return;
        s.sizes.push_back(to[axis]);
        total += to[axis];
        to[axis] = from[axis];
        fits = fits && to == from;
      }
      if (fits && total == from[axis]) attempt(s, n, 0);
      if (!f.start || left == 0 || axis > 1) continue;
      for (const int64_t g : words_.groups) {
        if (g == 1 || from[axis] % g != 0 || g > 32) continue;
        s.sizes.assign(size_t(g), from[axis] / g);
        attempt(s, n, int(g));
      }
    }
  }

  void build(int n) {
    const int left = depth_ - n - 1, count = int(values_.size());
    for (int a = 0; a < count && !over_; a++)
      for (int b = 0; b < count && !over_; b++) {
        if (words_.convolves || (words_.multiplies && on("matmul"))) convolve(a, b, n, left);
        if (windows_only_) continue;
        if (words_.multiplies || (words_.convolves && on("matmul"))) multiply(a, b, n);
      }
    if (windows_only_ || bundles_only_) {
      for (int v = 0; v < count && !over_; v++)
        windows_only_ ? rearrange(v, n, left) : bundles(v, n, left);
      return;
    }
    int param = 0;
    for (const Step& s : words_.own) {
      param++;
      const bool product = s.op == OpKind::Mul || s.op == OpKind::ConvTranspose;
      for (int a = 0; a < count && !over_; a++) {
        Step t = s;
        t.operands[0] = a;
        if (s.operands.size() == 1) {
          attempt(t, n, param);
          continue;
        }
        for (int b = has(s.op, algebra::Commutative) ? a + 1 : 0; b < count && !over_; b++) {
          if (product && !disjoint(a, b)) continue;
          if (facts_[size_t(a)].optional && facts_[size_t(b)].optional) continue;
          if (s.op == OpKind::Div && !facts_[size_t(b)].optional) continue;
          t.operands[1] = b;
          attempt(t, n, param);
        }
      }
    }
    // Bundles are few.
    for (int v = 0; v < count && !over_ && on("bundles"); v++) bundles(v, n, left);
    for (int v = 0; v < count && !over_; v++) {
      if (on("matmul") && (words_.convolves || words_.multiplies)) reshape(v, n, left);
      if (on("rearrange")) rearrange(v, n, left);
    }
  }

  const Graph& original_;
  const MutateOptions& options_;
  const std::function<bool()>& stopped_;
  const Vocabulary words_;
  Recipe recipe_;
  Graph g_;
  Cone cone_, truth_;
  std::vector<Parts> values_;
  std::vector<Facts> facts_;  // of the values
  std::vector<std::array<int, 4>> codes_;
  std::vector<bool> weights_;  // of the starts: weights of convolutions only
  std::vector<Point> points_;
  std::map<std::pair<Dims, bool>, std::vector<Shaped>> rearrangements_;
  uint64_t needed_ = 0;
  Generated found_;
  uint64_t asked_ = 0;
  int64_t first_ = 0;  // operators that were tried as the first
  int depth_ = 0;      // of the programs being built
  bool over_ = false, windows_only_ = false, bundles_only_ = false;
};

}  // namespace

Generated generate(const Graph& original, const MutateOptions& options,
                   const std::function<bool()>& stopped) {
  return Search(original, options, stopped).run();
}

}  // namespace tessera::mutants
