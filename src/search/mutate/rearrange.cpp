#include "search/mutate/rearrange.h"

#include <algorithm>
#include <set>

#include "base/check.h"
#include "base/text.h"
#include "ir/build.h"

namespace tessera::mutants {
namespace {

struct Atom {
  int axis = 0;   // of the source
  int order = 0;  // among the atoms of all axes, in the source
  int64_t extent = 1;
};

// The factors of a source's axes, and which of them each axis of the result consists of.
struct Atoms {
  std::vector<std::vector<Atom>> to;  // by axis of the result, outermost first

  explicit Atoms(const std::vector<int64_t>& shape) {
    for (size_t d = 0; d < shape.size(); d++) to.push_back({{int(d), 0, shape[d]}});
  }
  // Atoms keep, in `order`, their order of nesting within an axis of the source: outer before
  // inner.
  bool apply(const Move& m) {
    std::vector<Atom>& from = to[size_t(m.from)];
    const size_t at = m.inner_from ? from.size() - 1 : 0;
    Atom& a = from[at];
    if (a.extent % m.factor != 0) return false;
    Atom moved = a;
    moved.extent = m.factor;
    if (a.extent == m.factor) {
      if (from.size() == 1)
        a = {-1, 0, 1};  // an axis of one element stays
      else
        from.erase(from.begin() + int64_t(at));
    } else {
      a.extent /= m.factor;
      // Room between the orders of atoms, which are split at most a few times.
      if (m.inner_from)
        moved.order = a.order + (1 << (20 - 4 * splits_));
      else
        moved.order = a.order - (1 << (20 - 4 * splits_));
      splits_++;
    }
    std::vector<Atom>& target = to[size_t(m.to)];
    if (target.size() == 1 && target[0].axis < 0)
      target = {moved};
    else
      target.insert(m.inner_to ? target.end() : target.begin(), moved);
    return true;
  }

 private:
  int splits_ = 0;
};

std::vector<int64_t> padded(const Rearrangement& r, std::vector<int64_t> shape) {
  for (size_t d = 0; d < shape.size() && !r.low.empty(); d++) shape[d] += r.low[d] + r.high[d];
  return shape;
}

bool fits(const Tiles& t, std::vector<int64_t>& shape) {
  if (t.count < 1 || t.length < 1 || (t.count - 1) * t.step + t.length > shape[size_t(t.from)])
    return false;
  shape[size_t(t.from)] = t.length;
  shape[size_t(t.to)] *= t.count;
  return true;
}

bool any(const std::vector<int64_t>& v) {
  return std::ranges::any_of(
      v, [](int64_t x) { return x != 0; });
}

Shape shape_of(const std::vector<int64_t>& v) { return Shape(v.begin(), v.end()); }

}  // namespace

std::optional<std::vector<int64_t>> Rearrangement::shape(std::vector<int64_t> of) const {
  if (insert >= 0) of.insert(of.begin() + insert, 1);
  of = padded(*this, of);
  for (const Tiles& t : tiles)
    if (!fits(t, of)) return std::nullopt;
  Atoms atoms(of);
  size_t count = of.size();
  for (const Move& m : moves) {
    if (!atoms.apply(m)) return std::nullopt;
    count++;
  }
  if (count > size_t(kMaxRank)) return std::nullopt;
  std::vector<int64_t> r;
  for (const auto& axis : atoms.to) {
    r.push_back(1);
    for (const Atom& a : axis) r.back() *= a.extent;
  }
  if (!perm.empty()) {
    std::vector<int64_t> turned = mapped(perm, [&](const int from) { return r[size_t(from)]; });
    r = turned;
  }
  for (size_t d = 0; d < keep.size(); d++) {
    if (keep[d] > r[d]) return std::nullopt;
    r[d] = keep[d];
  }
  if (drop >= 0) {
    if (r[size_t(drop)] != 1) return std::nullopt;
    r.erase(r.begin() + drop);
  }
  return r;
}

TensorId Rearrangement::build(Graph& g, TensorId x) const {
  if (insert >= 0) {
    std::vector<int64_t> shape = extents(g.type(x).shape);
    shape.insert(shape.begin() + insert, 1);
    x = build::reshape(g, x, {shape_of(shape)});
  }
  if (any(low) || any(high)) x = build::pad(g, x, {low, high, Rational(0)});
  for (const Tiles& t : tiles) {
    const std::vector<int64_t> shape = extents(g.type(x).shape);
    std::vector<TensorId> parts;
    for (int64_t i = 0; i < t.count; i++) {
      SliceAttrs a;
      a.starts.assign(shape.size(), 0);
      a.stops = shape;
      a.starts[size_t(t.from)] = i * t.step;
      a.stops[size_t(t.from)] = i * t.step + t.length;
      parts.push_back(build::slice(g, x, a));
    }
    x = build::concat(g, parts, {t.to});
  }
  const std::vector<int64_t> source = extents(g.type(x).shape);
  Atoms atoms(source);
  for (const Move& m : moves) CHECK(atoms.apply(m)) << str();
  std::vector<std::vector<Atom>> to = atoms.to;
  if (!perm.empty()) {
    to.clear();
    for (const int from : perm) to.push_back(atoms.to[size_t(from)]);
  }
  std::vector<Atom> in_order, in_result;
  std::vector<int64_t> result;
  for (const auto& axis : to) {
    result.push_back(1);
    for (const Atom& a : axis) {
      result.back() *= a.extent;
      if (a.axis >= 0) in_result.push_back(a);
    }
  }
  in_order = in_result;
  auto before = [](const Atom& a, const Atom& b) {
    return std::pair(a.axis, a.order) < std::pair(b.axis, b.order);
  };
  std::ranges::sort(in_order, before);
  std::vector<int64_t> factors = mapped(in_order, &Atom::extent);
  std::vector<int> turned;
  for (const Atom& a : in_result)
    turned.push_back(int(std::ranges::lower_bound(in_order, a, before) - in_order.begin()));
  if (!std::ranges::is_sorted(turned)) {
    if (factors != source) x = build::reshape(g, x, {shape_of(factors)});
    x = build::transpose(g, x, {turned});
  }
  if (extents(g.type(x).shape) != result) x = build::reshape(g, x, {shape_of(result)});
  if (!keep.empty() && keep != result) {
    SliceAttrs a;
    a.starts.assign(keep.size(), 0);
    a.stops = keep;
    x = build::slice(g, x, a);
  }
  if (drop >= 0) {
    std::vector<int64_t> shape = extents(g.type(x).shape);
    shape.erase(shape.begin() + drop);
    x = build::reshape(g, x, {shape_of(shape)});
  }
  return x;
}

std::optional<Index> Rearrangement::source(const std::vector<int64_t>& shape, Index at) const {
  Graph g;
  TensorId t = build(g, g.add_input({DType::F32, shape_of(shape)}));
  const auto shape_of_tensor = [&](TensorId x) { return extents(g.type(x).shape); };
  for (Form form; (form = *form_of(g, g.producer(t))) != Form::Input;)
    if (!origin(g.producer(t), form, shape_of_tensor, t, at)) return std::nullopt;
  return at;
}

std::string Rearrangement::str() const {
  std::string s;
  if (insert >= 0) s += " new axis " + std::to_string(insert);
  if (any(low) || any(high)) s += " pad low=" + joined(low) + " high=" + joined(high);
  for (const Tiles& t : tiles)
    s += " " + std::to_string(t.count) + " tiles of " + std::to_string(t.length) + " by " +
         std::to_string(t.step) + " of axis " + std::to_string(t.from) + " to axis " +
         std::to_string(t.to);
  for (const Move& m : moves)
    s += std::string(m.inner_from ? " phases " : " blocks ") + std::to_string(m.factor) +
         " of axis " + std::to_string(m.from) + (m.inner_to ? " into axis " : " before axis ") +
         std::to_string(m.to);
  if (!perm.empty()) s += " transpose " + joined(perm);
  if (!keep.empty()) s += " keep " + joined(keep);
  if (drop >= 0) s += " without axis " + std::to_string(drop);
  return "rearrange" + s;
}

std::vector<Rearrangement>
rearrangements(const std::vector<int64_t>& shape, const std::vector<int64_t>& factors,
               const std::vector<std::vector<int64_t>>& lows,
               const std::function<bool(const std::vector<int64_t>&)>& accepts) {
  const int rank = int(shape.size());
  std::vector<Rearrangement> all;
  std::set<std::string> seen;
  std::vector<std::vector<int64_t>> starts = {std::vector<int64_t>(shape.size(), 0)};
  for (const auto& low : lows)
    if (low.size() == shape.size() && any(low)) starts.push_back(low);
  // Pads axes that the first moves split to multiples of their factors.
  auto offer = [&](const std::vector<int64_t>& low, const std::vector<Move>& moves) {
    Rearrangement r;
    r.low = low;
    r.high.assign(shape.size(), 0);
    std::vector<int64_t> extent = shape;
    for (size_t d = 0; d < extent.size(); d++) extent[d] += low[d];
    std::vector<int64_t> multiple(shape.size(), 1);
    for (const Move& m : moves) multiple[size_t(m.from)] *= m.factor;
    // An axis that receives a factor first has that factor to give.
    for (size_t i = 0; i + 1 < moves.size(); i++)
      if (moves[i].to == moves[i + 1].from) multiple[size_t(moves[i].to)] = 1;
    for (size_t d = 0; d < extent.size(); d++) {
      const int64_t rest = extent[d] % multiple[d];
      if (rest == 0) continue;
      // Zeros are for the axes of windows, and not for most of one.
      if (d < 2 || extent[d] < multiple[d]) return;
      r.high[d] = multiple[d] - rest;
    }
    // The extents of the result, if the factors divide; accepted are few.
    std::vector<int64_t>& quick = extent;
    for (size_t d = 0; d < quick.size(); d++) quick[d] += r.high[d];
    for (const Move& m : moves) {
      if (quick[size_t(m.from)] % m.factor != 0) return;
      quick[size_t(m.from)] /= m.factor;
      quick[size_t(m.to)] *= m.factor;
    }
    if (!accepts(quick)) return;
    r.moves = moves;
    const auto to = r.shape(shape);
    if (!to) return;
    Graph g;
    // Where every element goes says which map it is: the operators it is built of.
    r.build(g, g.add_input({DType::F32, shape_of(shape)}));
    if (g.ops().size() == 1) return;
    std::string key;
    for (const Op& op : g.ops()) {
      if (op.kind == OpKind::Transpose) key += "t" + joined(g.attrs<PermAttrs>(op).perm);
      if (op.kind == OpKind::Pad) key += "p" + joined(r.low) + "/" + joined(r.high);
      key += str(g.type(op.result()).shape);
    }
    if (seen.insert(key).second) all.push_back(std::move(r));
  };
  std::vector<Move> single;
  for (int from = 0; from < rank; from++)
    for (int to = 0; to < rank; to++)
      for (const int64_t f : factors)
        for (int how = 0; how < 4 && from != to; how++)
          if (shape[size_t(from)] >= f)
            single.push_back({from, (how & 1) != 0, f, to, (how & 2) != 0});
  for (const auto& low : starts) {
    for (const Move& m : single) offer(low, {m});
    for (const Move& a : single)
      for (const Move& b : single)
        // Back where it came from, or further on: one move does that.
        if (a.factor == b.factor && a.to != b.from && a.from != b.to) offer(low, {a, b});
  }
  for (int a = 0; a < rank; a++)
    for (int b = a + 1; b < rank; b++) {
      Rearrangement r;
      for (int d = 0; d < rank; d++) r.perm.push_back(d == a ? b : d == b ? a : d);
      if ((shape[size_t(a)] > 1 || shape[size_t(b)] > 1) && accepts(*r.shape(shape)))
        all.push_back(std::move(r));
    }
  return all;
}

}  // namespace tessera::mutants
