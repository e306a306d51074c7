#include "search/mutate/boxes.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "base/check.h"

namespace tessera::mutants {
namespace {

constexpr size_t kMostSlopes = 16;

Slope scaled(const Slope& s, int64_t factor) {
  if (factor == 0) return {};
  Slope r = s;
  for (auto& [key, by] : r) by *= factor;
  return r;
}
Slopes scaled(const Slopes& s, int64_t factor) {
  Slopes r;
  for (const Slope& x : s) r.insert(scaled(x, factor));
  return r;
}
Slope sum(const Slope& a, const Slope& b) {
  std::map<int, int64_t> m(a.begin(), a.end());
  for (const auto& [key, by] : b) m[key] += by;
  Slope r;
  for (const auto& [key, by] : m)
    if (by != 0) r.emplace_back(key, by);
  return r;
}
// Of products.
Slopes sums(const Slopes& a, const Slopes& b) {
  if (a.empty()) return b;
  if (b.empty()) return a;
  Slopes r;
  for (const Slope& x : a)
    for (const Slope& y : b) r.insert(sum(x, y));
  return r;
}
void join(Slopes& a, const Slopes& b) { a.insert(b.begin(), b.end()); }

// By place: the number of its piece.
std::vector<int> classes(const AxisPieces& a) {
  std::vector<int> of(size_t(a.extent), -1);
  for (size_t p = 0; p < a.pieces.size(); p++)
    for (int64_t i = 0; i < a.pieces[p].count; i++) of[size_t(a.pieces[p].at(i))] = int(p);
  return of;
}

// As few pieces as one of the steps gives, each of one class throughout.
std::vector<Piece> partition(const std::vector<int>& classes, std::set<int64_t> steps) {
  steps.insert(1);
  const int64_t n = int64_t(classes.size());
  std::vector<Piece> best;
  for (const int64_t step : steps) {
    if (step < 1 || (step > 1 && step >= n)) continue;
    std::vector<Piece> found;
    for (int64_t r = 0; r < std::min(step, n); r++) {
      for (int64_t v = r; v < n;) {
        Piece p{v, step, 0};
        const int c = classes[size_t(v)];
        while (v < n && classes[size_t(v)] == c) {
          p.count++;
          v += step;
        }
        if (p.count == 1) p.step = 1;
        found.push_back(p);
      }
      if (!best.empty() && found.size() >= best.size()) break;
    }
    if (best.empty() || found.size() < best.size()) best = std::move(found);
  }
  std::ranges::sort(best, {}, &Piece::start);
  return best;
}

AxisPieces whole(int64_t extent, Slopes slopes) {
  return {extent, {Piece{0, 1, extent}}, {std::move(slopes)}};
}

// The part `piece` of an axis whose places are `place` in `of`: slopes by a step of the piece.
template <class F>
Slopes slopes_along(const AxisPieces& of, const std::vector<int>& class_of, const Piece& piece,
                    F place) {
  if (piece.count == 1) return {Slope{}};
  const int64_t a = place(piece.start), b = place(piece.at(1));
  const int c = class_of[size_t(a)];
  CHECK(c == class_of[size_t(b)]) << "a piece within one class";
  const Piece& p = of.pieces[size_t(c)];
  CHECK((b - a) % p.step == 0) << "steps of a piece";
  return scaled(of.slopes[size_t(c)], (b - a) / p.step);
}

// Of its pieces, for one who takes every `by`-th place.
std::set<int64_t> steps_of(const AxisPieces& a, int64_t by = 1) {
  std::set<int64_t> s;
  for (const Piece& p : a.pieces) s.insert(p.step / std::gcd(p.step, by));
  return s;
}

// An axis whose place v reads `x` at place(v, 0), …, place(v, taps − 1), −1 being nowhere: a place
// is like another if all that it reads are.
template <class F>
AxisPieces reading(const AxisPieces& x, int64_t extent, int64_t taps,
                   const std::set<int64_t>& steps, F place) {
  const std::vector<int> of = classes(x);
  std::map<std::vector<int>, int> ids;
  std::vector<int> id;
  for (int64_t v = 0; v < extent; v++) {
    std::vector<int> key;
    for (int64_t t = 0; t < taps; t++) {
      const int64_t at = place(v, t);
      key.push_back(at < 0 ? -1 : of[size_t(at)]);
    }
    id.push_back(ids.emplace(std::move(key), int(ids.size())).first->second);
  }
  AxisPieces r;
  r.extent = extent;
  r.pieces = partition(id, steps);
  for (const Piece& p : r.pieces) {
    Slopes all;
    for (int64_t t = 0; t < taps; t++)
      if (place(p.start, t) >= 0)
        join(all, slopes_along(x, of, p, [&](int64_t v) { return place(v, t); }));
    r.slopes.push_back(std::move(all));
  }
  return r;
}

// [m, n] → [m·n].
AxisPieces merged(const AxisPieces& a, const AxisPieces& b) {
  if (a.extent == 1) return b;
  AxisPieces r;
  r.extent = a.extent * b.extent;
  if (b.extent == 1) return a;
  const bool simple = a.pieces.size() == 1 && b.pieces.size() == 1 && a.slopes[0].size() == 1 &&
                      b.slopes[0].size() == 1;
  if (simple && *a.slopes[0].begin() == scaled(*b.slopes[0].begin(), b.extent))
    return whole(r.extent, b.slopes[0]);
  // Rows of b's pieces, or columns of a's.
  if (size_t(a.extent) * b.pieces.size() <= size_t(b.extent) * a.pieces.size()) {
    for (int64_t i = 0; i < a.extent; i++)
      for (size_t p = 0; p < b.pieces.size(); p++) {
        r.pieces.push_back({i * b.extent + b.pieces[p].start, b.pieces[p].step, b.pieces[p].count});
        r.slopes.push_back(b.slopes[p]);
      }
  } else {
    for (int64_t i = 0; i < b.extent; i++)
      for (size_t p = 0; p < a.pieces.size(); p++) {
        r.pieces.push_back(
            {a.pieces[p].start * b.extent + i, a.pieces[p].step * b.extent, a.pieces[p].count});
        r.slopes.push_back(a.slopes[p]);
      }
  }
  return r;
}

// [m·n] → [m, n].
std::pair<AxisPieces, AxisPieces> split(const AxisPieces& x, int64_t n) {
  const int64_t m = x.extent / n;
  // In one piece all taps say the same.
  auto taps = [&](int64_t along) { return x.pieces.size() == 1 ? 1 : along; };
  auto row = [n](int64_t i, int64_t j) { return i * n + j; };
  auto column = [n](int64_t i, int64_t j) { return j * n + i; };
  return {reading(x, m, taps(n), steps_of(x, n), row), reading(x, n, taps(m), steps_of(x), column)};
}

Boxes reshaped(const Boxes& x, const std::vector<int64_t>& to) {
  Boxes r;
  size_t i = 0;
  for (size_t j = 0; j < to.size();) {
    // The shortest run of axes on both sides with as many elements.
    AxisPieces from = i < x.size() ? x[i++] : whole(1, {Slope{}});
    size_t end = j + 1;
    int64_t have = from.extent, want = to[j];
    while (have != want) {
      if (have < want) {
        from = merged(from, x[i]);
        have *= x[i++].extent;
      } else {
        want *= to[end++];
      }
    }
    for (; j + 1 < end; j++) {
      have /= to[j];
      auto [first, rest] = split(from, have);
      r.push_back(std::move(first));
      from = std::move(rest);
    }
    r.push_back(std::move(from));
    j = end;
  }
  return r;
}

// An axis that a window slides over.
AxisPieces slid(const AxisPieces& x, const WindowAxis& a, bool transposed) {
  std::set<int64_t> steps;
  for (const int64_t s : steps_of(x, transposed ? 1 : a.stride))
    steps.insert(transposed ? s * a.stride : s);
  // Pieces of one class may still read at fractions of a stride: those are single places.
  AxisPieces r = reading(x, a.out, a.taps, steps, [&](int64_t v, int64_t tap) {
    return place_of_tap(a, v, tap, transposed).value_or(-1);
  });
  for (Slopes& s : r.slopes)
    if (s.empty()) s.insert(Slope{});
  return r;
}

// The axis of a broadcast operand as the result has it.
AxisPieces broadcast_axis(const Boxes& x, size_t rank, size_t axis, int64_t extent) {
  const size_t lead = rank - x.size();
  if (axis < lead || (x[axis - lead].extent == 1 && extent != 1)) return whole(extent, {Slope{}});
  return x[axis - lead];
}

// Both partitions at once, of values that are multiplied or not.
AxisPieces refine(const AxisPieces& a, const AxisPieces& b, bool product = false) {
  CHECK(a.extent == b.extent) << a.extent << " and " << b.extent;
  const std::vector<int> ca = classes(a), cb = classes(b);
  AxisPieces r;
  r.extent = a.extent;
  std::vector<int> id;
  for (size_t v = 0; v < ca.size(); v++) id.push_back(ca[v] * int(b.pieces.size()) + cb[v]);
  std::set<int64_t> steps = steps_of(a);
  for (const int64_t s : steps_of(b)) steps.insert(s);
  for (const int64_t s : steps_of(a))
    for (const int64_t t : steps_of(b)) steps.insert(std::lcm(s, t));
  r.pieces = partition(id, steps);
  for (const Piece& p : r.pieces) {
    auto same = [](int64_t v) { return v; };
    Slopes s = slopes_along(a, ca, p, same);
    const Slopes more = slopes_along(b, cb, p, same);
    if (product)
      s = sums(s, more);
    else
      join(s, more);
    r.slopes.push_back(std::move(s));
  }
  return r;
}

// Channels of a result, in groups: x is read at group v / each and the weights at `w` of v.
AxisPieces channels(const AxisPieces& x, const AxisPieces& w, int64_t groups, int64_t each,
                    bool transposed) {
  const int64_t depth = x.extent / groups;
  const int64_t extent = groups * each;
  const std::vector<int> of_x = classes(x), of_w = classes(w);
  AxisPieces r;
  r.extent = extent;
  auto weight = [&](int64_t v) { return transposed ? v % each : v; };
  auto add = [&](Piece p) {
    if (p.count == 1) p.step = 1;
    Slopes sx, sw = slopes_along(w, of_w, p, weight);
    const int64_t g0 = p.start / each, g1 = p.at(std::min<int64_t>(1, p.count - 1)) / each;
    for (int64_t c = 0; c < depth; c++)
      if (g0 != g1)
        join(sx, slopes_along(x, of_x, Piece{g0 * depth + c, (g1 - g0) * depth, p.count},
                              [](int64_t v) { return v; }));
    r.pieces.push_back(p);
    r.slopes.push_back(sums(sx, sw));
  };
  // Within a group, places that read alike weights.
  std::vector<int> id;
  for (int64_t v = 0; v < extent; v++)
    id.push_back(int(v / each) * int(w.pieces.size() + 1) + of_w[size_t(weight(v))]);
  std::set<int64_t> steps = steps_of(w);
  const std::vector<Piece> rows = partition(id, steps);
  // Or places of the same number in every group, where the groups read alike channels.
  const bool plain = !transposed && w.pieces.size() == 1 && x.pieces.size() == 1;
  if (plain && int64_t(rows.size()) > each)
    for (int64_t v = 0; v < each; v++) add({v, each, groups});
  else
    for (const Piece& p : rows) add(p);
  return r;
}

bool too_many(const Boxes& b, size_t most) {
  for (const AxisPieces& a : b) {
    if (a.pieces.size() > most) return true;
    for (const Slopes& s : a.slopes)
      if (s.size() > kMostSlopes) return true;
  }
  return false;
}

// Another axis behind this one.
void append(AxisPieces& to, const AxisPieces& more) {
  for (size_t p = 0; p < more.pieces.size(); p++) {
    to.pieces.push_back(
        {to.extent + more.pieces[p].start, more.pieces[p].step, more.pieces[p].count});
    to.slopes.push_back(more.slopes[p]);
  }
  to.extent += more.extent;
}

Boxes convolved(const Boxes& x, const Boxes& w, const Graph& g, const Op& op) {
  const bool transposed = op.kind == OpKind::ConvTranspose;
  const int64_t groups = g.attrs<ConvAttrs>(op).groups;
  const std::vector<WindowAxis> axes = window_axes(g, op);
  const int64_t results = g.type(op.result()).shape[1].extent;
  Boxes r = {x[0], channels(x[1], w[transposed ? 1 : 0], groups, results / groups, transposed)};
  for (size_t i = 0; i < axes.size(); i++) r.push_back(slid(x[2 + i], axes[i], transposed));
  return r;
}

Boxes concatenated(const std::vector<const Boxes*>& parts, size_t axis) {
  Boxes r = *parts[0];
  for (size_t i = 1; i < parts.size(); i++)
    for (size_t d = 0; d < r.size(); d++)
      if (d == axis)
        append(r[d], (*parts[i])[d]);
      else
        r[d] = refine(r[d], (*parts[i])[d]);
  return r;
}

Boxes stacked(const std::vector<const Boxes*>& parts, size_t axis) {
  AxisPieces which{0, {}, {}};
  for (size_t i = 0; i < parts.size(); i++) append(which, whole(1, {Slope{}}));
  Boxes r = concatenated(parts, kMaxRank);  // along none
  r.insert(r.begin() + int64_t(axis), std::move(which));
  return r;
}

// Of slices and pads: place v reads place start + v·step, or a zero where there is none.
AxisPieces cut(const AxisPieces& x, int64_t extent, int64_t start, int64_t step) {
  return reading(
      x, extent, 1, steps_of(x, step),
      [&](int64_t v, int64_t) {
        const int64_t at = start + v * step;
        return at < 0 || at >= x.extent ? -1 : at;
      });
}

Boxes boxes_of(const Graph& g, const Op& op, const std::vector<Boxes>& known) {
  const Form form = *form_of(g, op);
  const std::vector<int64_t> shape = extents(g.type(op.result()).shape);
  const size_t rank = shape.size();
  auto x = [&](size_t i) -> const Boxes& { return known[op.inputs[i].index]; };
  Boxes r;
  switch (form) {
  case Form::Input: {
    const auto& inputs = g.inputs();
    const int k = int(std::ranges::find(inputs, op.result()) - inputs.begin());
    for (size_t d = 0; d < rank; d++)
      r.push_back(whole(shape[d], {Slope{{k * kMaxRank + int(d), 1}}}));
    return r;
  }
  case Form::Const:
    for (const int64_t n : shape) r.push_back(whole(n, {Slope{}}));
    return r;
  case Form::Neg: return x(0);
  case Form::Add:
  case Form::Sub:
  case Form::Mul:
  case Form::Div:
    for (size_t d = 0; d < rank; d++)
      r.push_back(refine(broadcast_axis(x(0), rank, d, shape[d]),
                         broadcast_axis(x(1), rank, d, shape[d]), form == Form::Mul));
    return r;
  case Form::Sum:
  case Form::Mean: {
    const auto& a = g.attrs<ReduceAttrs>(op);
    for (size_t d = 0; d < x(0).size(); d++)
      if (!std::ranges::binary_search(a.axes, int(d)))
        r.push_back(x(0)[d]);
      else if (a.keepdims)
        r.push_back(whole(1, {Slope{}}));
    return r;
  }
  case Form::Matmul:
    for (size_t d = 0; d + 2 < rank; d++)
      r.push_back(refine(broadcast_axis(x(0), rank, d, shape[d]),
                         broadcast_axis(x(1), rank, d, shape[d]), true));
    r.push_back(x(0)[x(0).size() - 2]);
    r.push_back(x(1).back());
    return r;
  case Form::Conv:
  case Form::ConvTranspose: return convolved(x(0), x(1), g, op);
  case Form::PoolSum: {
    const std::vector<WindowAxis> axes = window_axes(g, op);
    r.assign(x(0).begin(), x(0).end() - int64_t(axes.size()));
    for (size_t i = 0; i < axes.size(); i++)
      r.push_back(slid(x(0)[rank - axes.size() + i], axes[i], false));
    return r;
  }
  case Form::Transpose:
    for (const int from : g.attrs<PermAttrs>(op).perm) r.push_back(x(0)[size_t(from)]);
    return r;
  case Form::Reshape: return reshaped(x(0), shape);
  case Form::Broadcast:
    for (size_t d = 0; d < rank; d++) r.push_back(broadcast_axis(x(0), rank, d, shape[d]));
    return r;
  case Form::Repeat:
    r = x(0);
    for (size_t d = 0; d < rank; d++)
      while (r[d].extent < shape[d]) append(r[d], x(0)[d]);
    return r;
  case Form::Concat:
  case Form::Stack: {
    auto parts = mapped(op.inputs, [&](TensorId t) -> const Boxes* { return &known[t.index]; });
    const size_t axis = size_t(g.attrs<AxisAttrs>(op).axis);
    return form == Form::Stack ? stacked(parts, axis) : concatenated(parts, axis);
  }
  case Form::Slice:
    for (size_t d = 0; d < rank; d++) {
      const auto& a = g.attrs<SliceAttrs>(op);
      r.push_back(cut(x(0)[d], shape[d], a.starts[d], a.steps[d]));
    }
    return r;
  case Form::Pad:
    for (size_t d = 0; d < rank; d++)
      r.push_back(cut(x(0)[d], shape[d], -g.attrs<PadAttrs>(op).low[d], 1));
    return r;
  }
  unreachable("Form");
}

}  // namespace

std::optional<std::vector<Boxes>> output_boxes(const Graph& g, size_t most) {
  std::vector<Boxes> known(g.tensors().size());
  for (const Op& op : g.ops()) {
    Boxes& b = known[op.result().index];
    b = boxes_of(g, op, known);
    if (too_many(b, most)) return std::nullopt;
  }
  return mapped(g.outputs(), [&](const TensorId t) { return known[t.index]; });
}

bool Agreement::whole() const {
  for (const Output& o : outputs)
    for (const bool e : o.equal)
      if (!e) return false;
  return true;
}

std::optional<Agreement> agreement(const Graph& original, const Graph& mutant, uint64_t seed,
                                   int64_t most_points) {
  if (!unsupported(original).empty() || !unsupported(mutant).empty()) return std::nullopt;
  const auto mine = output_boxes(original), other = output_boxes(mutant);
  if (!mine || !other) return std::nullopt;
  Cone first(original, seed), second(mutant, seed);
  Agreement r;
  double equal = 0, all = 0;
  for (size_t k = 0; k < mine->size(); k++) {
    const size_t rank = (*mine)[k].size();
    std::vector<AxisPieces> axes;
    std::vector<int64_t> counts;
    for (size_t d = 0; d < rank; d++) {
      axes.push_back(refine((*mine)[k][d], (*other)[k][d]));
      counts.push_back(int64_t(axes[d].pieces.size()));
    }
    const int64_t boxes = product_of(counts);
    Agreement::Output out;
    for (const AxisPieces& a : axes) out.axes.push_back(a.pieces);
    if (boxes > most_points) return std::nullopt;
    for (int64_t b = 0; b < boxes; b++) {
      const Index which = unflat(b, counts);
      std::vector<int64_t> grid;
      int64_t points = 1;
      double elements = 1;
      for (size_t d = 0; d < rank; d++) {
        const AxisPieces& a = axes[d];
        const size_t p = size_t(which[d]);
        const int64_t slopes = std::max<int64_t>(1, int64_t(a.slopes[p].size()));
        grid.push_back(std::min(a.pieces[p].count, slopes));
        points *= grid.back();
        elements *= double(a.pieces[p].count);
      }
      bool same = true;
      for (int64_t i = 0; i < points && same; i++) {
        const Index on_grid = unflat(i, grid);
        Index v{};
        for (size_t d = 0; d < rank; d++) v[d] = axes[d].pieces[size_t(which[d])].at(on_grid[d]);
        same = first.at(original.outputs()[k], v) == second.at(mutant.outputs()[k], v);
        if (++r.points > most_points) return std::nullopt;
      }
      out.equal.push_back(same);
      all += elements;
      if (same) equal += elements;
    }
    r.boxes += boxes;
    r.outputs.push_back(std::move(out));
  }
  r.share = all > 0 ? equal / all : 0;
  return r;
}

}  // namespace tessera::mutants
