#include "search/mutate/correct.h"

#include <algorithm>
#include <functional>
#include <map>

#include "base/error.h"
#include "ir/build.h"
#include "search/mutate/restrict.h"
#include "search/mutate/steps.h"

namespace tessera::mutants {
namespace {

constexpr size_t kMostPieces = 24;    // of an output that is put together
constexpr double kMostlyWrong = 0.5;  // share from which a region is computed again as a whole

// The convolution that reads a value as its first operand.
int convolution_of(const Recipe& r, int value) {
  for (size_t i = 0; i < r.steps.size(); i++)
    if (r.steps[i].kind == StepKind::Apply && r.steps[i].op == OpKind::Conv &&
        r.steps[i].operands[0] == value)
      return int(i);
  return -1;
}

// Rearrangements behind an operator cut their result to the shape they had.
void keep_shapes(const Graph& original, Recipe& r) {
  if (r.steps.back().kind == StepKind::Rearrange && original.outputs().size() == 1)
    r.steps.back().rearrangement.keep = extents(original.type(original.outputs()[0]).shape);
}

int64_t span(const Graph& g, const Recipe& recipe, const Step& conv, size_t axis) {
  const size_t w = size_t(conv.operands[1]);
  if (w >= recipe.starts.size()) return 0;
  const auto shape = extents(g.type(g.inputs()[recipe.starts[w][0]]).shape);
  return (shape[axis] - 1) * std::get<ConvAttrs>(conv.attrs).dilations[axis - 2] + 1;
}

// Zeros between images that lie side by side, so many as windows reach over.
std::optional<Recipe> with_spacers(const Graph& original, Recipe r, bool wide) {
  bool any = false;
  const int first = int(r.starts.size() + r.constants.size());
  for (size_t i = 0; i < r.steps.size(); i++) {
    Step& s = r.steps[i];
    const int conv = convolution_of(r, first + int(i));
    if (s.kind != StepKind::Rearrange || conv < 0 || !s.rearrangement.tiles.empty()) continue;
    const auto& a = std::get<ConvAttrs>(r.steps[size_t(conv)].attrs);
    Rearrangement& copy = s.rearrangement;
    for (const Move& m : copy.moves) {
      if (m.to < 2 || m.inner_to) continue;
      const size_t d = size_t(m.to) - 2;
      if (copy.high.empty()) {
        copy.low.assign(a.low.size() + 2, 0);
        copy.high = copy.low;
      }
      const int64_t zeros = wide ? a.low[d] + a.high[d] : std::max(a.low[d], a.high[d]);
      if (zeros > 0) any = true;
      copy.high[size_t(m.to)] += zeros;
    }
  }
  if (!any) return std::nullopt;
  keep_shapes(original, r);
  return r;
}

// Tiles of an image that overlap by what windows reach over, and no padding of each.
std::optional<Recipe> with_halos(const Graph& original, Recipe r) {
  bool any = false;
  const int first = int(r.starts.size() + r.constants.size());
  if (original.outputs().size() != 1) return std::nullopt;
  const auto out = extents(original.type(original.outputs()[0]).shape);
  for (size_t i = 0; i < r.steps.size(); i++) {
    Step& s = r.steps[i];
    const int conv = convolution_of(r, first + int(i));
    if (s.kind != StepKind::Rearrange || conv < 0 || size_t(s.operands[0]) >= r.starts.size())
      continue;
    Step& window = r.steps[size_t(conv)];
    auto& a = std::get<ConvAttrs>(window.attrs);
    const auto x =
        extents(original.type(original.inputs()[r.starts[size_t(s.operands[0])][0]]).shape);
    if (x.size() != out.size()) return std::nullopt;
    Rearrangement copy = s.rearrangement;
    if (copy.low.empty()) copy.low.assign(x.size(), 0);
    copy.high.resize(x.size(), 0);
    for (const Move& m : copy.moves) {
      if (m.from < 2 || m.inner_from || m.to != 0 || m.inner_to) return std::nullopt;
      const size_t axis = size_t(m.from), d = axis - 2;
      const int64_t reach = span(original, r, window, axis);
      if (reach == 0) return std::nullopt;
      const int64_t rows = (out[axis] + m.factor - 1) / m.factor;
      Tiles t{m.from, m.to, m.factor, (rows - 1) * a.strides[d] + reach, rows * a.strides[d]};
      copy.low[axis] = a.low[d];
      copy.high[axis] =
          std::max<int64_t>(0, (t.count - 1) * t.step + t.length - a.low[d] - x[axis]);
      a.low[d] = a.high[d] = 0;
      copy.tiles.push_back(t);
      any = true;
    }
    copy.moves.clear();
    s.rearrangement = copy;
  }
  if (!any) return std::nullopt;
  keep_shapes(original, r);
  return r;
}

// An output put together of the mutant's boxes and others.
class Assembly {
 public:
  // `again` computes a region of the output as the original does; nothing where it cannot.
  using Again = std::function<std::optional<TensorId>(const Region&)>;

  explicit Assembly(const Agreement::Output& found) : found_(found) {
    for (const auto& axis : found.axes) {
      int64_t n = sum_of<int64_t>(axis, &Piece::count);
      std::vector<int> of(size_t(n), 0);
      for (size_t p = 0; p < axis.size(); p++)
        for (int64_t i = 0; i < axis[p].count; i++) of[size_t(axis[p].at(i))] = int(p);
      piece_of_.push_back(std::move(of));
      counts_.push_back(int64_t(axis.size()));
      whole_.push_back({0, n});
    }
  }

  // Regions that have to be computed again; nothing where there are too many.
  std::optional<std::vector<Region>> wrong() {
    std::vector<Region> r;
    size_t right = 0;
    if (!walk(
            whole_,
            [&](const Region& x, bool ok) {
              if (ok)
                right++;
              else
                r.push_back(x);
              return r.size() + right <= kMostPieces ? std::optional(TensorId(0u)) : std::nullopt;
            },
            nullptr))
      return std::nullopt;
    return r;
  }

  std::optional<TensorId> build(Graph& g, TensorId mutant, const Again& again) {
    return walk(
        whole_,
        [&](const Region& x, bool ok) -> std::optional<TensorId> {
          return ok ? slice_of(g, mutant, x) : again(x);
        },
        &g);
  }

 private:
  using Leaf = std::function<std::optional<TensorId>(const Region&, bool right)>;

  // Share of a region that is wrong, by its boxes.
  double wrong_share(const Region& r) const {
    std::vector<std::vector<double>> weight;
    for (size_t d = 0; d < r.size(); d++) {
      std::vector<double> w(found_.axes[d].size(), 0);
      for (int64_t v = r[d].begin; v < r[d].end; v++) w[size_t(piece_of_[d][size_t(v)])] += 1;
      weight.push_back(std::move(w));
    }
    double wrong = 0, all = 0;
    for (size_t b = 0; b < found_.equal.size(); b++) {
      const Index which = unflat(int64_t(b), counts_);
      double n = 1;
      for (size_t d = 0; d < r.size(); d++) n *= weight[d][size_t(which[d])];
      all += n;
      if (!found_.equal[b]) wrong += n;
    }
    return wrong / all;
  }
  // Runs of neighbours along an axis that are right and wrong at the same places of the others.
  std::vector<Range> runs(const Region& r, size_t axis) const {
    std::vector<Range> found;
    std::map<int, double> share;  // by piece
    for (int64_t v = r[axis].begin; v < r[axis].end; v++) {
      const int piece = piece_of_[axis][size_t(v)];
      if (!share.count(piece)) {
        Region line = r;
        line[axis] = {v, v + 1};
        share[piece] = wrong_share(line);
      }
      if (v > r[axis].begin && alike(r, axis, piece_of_[axis][size_t(v - 1)], piece, share))
        found.back().end = v + 1;
      else
        found.push_back({v, v + 1});
    }
    return found;
  }
  bool alike(const Region& r, size_t axis, int a, int b, const std::map<int, double>& share) const {
    if (a == b) return true;
    if (share.at(a) != share.at(b)) return false;
    for (size_t box = 0; box < found_.equal.size(); box++) {
      Index which = unflat(int64_t(box), counts_);
      if (which[axis] != a || !meets(r, which, axis)) continue;
      which[axis] = b;
      if (found_.equal[box] != found_.equal[size_t(flat(which, counts_))]) return false;
    }
    return true;
  }
  bool meets(const Region& r, const Index& which, size_t but) const {
    for (size_t d = 0; d < r.size(); d++) {
      if (d == but) continue;
      bool some = false;
      for (int64_t v = r[d].begin; v < r[d].end && !some; v++)
        some = piece_of_[d][size_t(v)] == int(which[d]);
      if (!some) return false;
    }
    return true;
  }

  std::optional<TensorId> walk(const Region& r, const Leaf& leaf, Graph* g) {
    const double wrong = wrong_share(r);
    if (wrong == 0) return leaf(r, true);
    if (wrong >= kMostlyWrong && r == whole_) return std::nullopt;  // that is the original
    if (wrong >= kMostlyWrong) return leaf(r, false);
    size_t best = 0;
    std::vector<Range> cuts;
    for (size_t d = 0; d < r.size(); d++) {
      std::vector<Range> c = runs(r, d);
      if (c.size() > 1 && (cuts.empty() || c.size() < cuts.size())) {
        best = d;
        cuts = std::move(c);
      }
    }
    if (cuts.empty() || cuts.size() > kMostPieces) return std::nullopt;
    std::vector<TensorId> parts;
    for (const Range& c : cuts) {
      Region inside = r;
      inside[best] = c;
      const auto t = walk(inside, leaf, g);
      if (!t) return std::nullopt;
      parts.push_back(*t);
    }
    return g ? build::concat(*g, parts, {int(best)}) : TensorId(0u);
  }

  const Agreement::Output& found_;
  std::vector<std::vector<int>> piece_of_;  // by axis and place
  std::vector<int64_t> counts_;             // of pieces, by axis
  Region whole_;
};

std::optional<Graph> recomputed(const Graph& original, const Graph& mutant,
                                const Agreement& found) {
  Graph g = mutant;
  std::vector<TensorId> outputs;
  for (size_t k = 0; k < found.outputs.size(); k++) {
    Assembly assembly(found.outputs[k]);
    if (!assembly.wrong()) return std::nullopt;
    const auto t = assembly.build(g, mutant.outputs()[k], [&](const Region& r) {
      return compute_region(g, g.inputs(), original, k, r);
    });
    if (!t) return std::nullopt;
    outputs.push_back(*t);
  }
  g.set_outputs(outputs);
  return without_dead_code(g);
}

// The convolution of a program that computes nothing else.
const Op* only_convolution(const Graph& g) {
  const Op* window = nullptr;
  for (const Op& op : g.ops()) {
    if (is_given(op.kind)) continue;
    if (window || op.kind != OpKind::Conv) return nullptr;
    window = &op;
  }
  return window;
}

// What a wrong region reads of the operand, and zeros in front of and behind it along an axis.
struct Strip {
  Region read;
  int64_t low = 0, high = 0;
};

// Strips for wrong regions of a convolution, if on all axes but `along` they have the extents
// `shape` and the padding `a`.
std::optional<std::vector<Strip>> strips_along(size_t along, const Graph& original,
                                               const Op& window, const std::vector<int64_t>& shape,
                                               const ConvAttrs& a,
                                               const std::vector<Region>& wrong) {
  const std::vector<WindowAxis> axes = window_axes(original, window);
  if (original.type(window.inputs[0]).shape[1].extent != shape[1]) return std::nullopt;
  std::vector<Strip> strips;
  for (const Region& r : wrong) {
    Strip s{{r[0], {0, shape[1]}}};
    bool fits =
        r[0].size() == shape[0] && r[1].size() == original.type(window.result()).shape[1].extent;
    for (size_t d = 0; d < axes.size(); d++) {
      const Reads reading = reads(axes[d], r[2 + d]);
      s.read.push_back(reading.range);
      fits = fits && reading.range.size() > 0;
      if (2 + d == along)
        s.low = reading.low, s.high = reading.high;
      else
        fits = fits && reading.range.size() == shape[2 + d] && reading.low == a.low[d] &&
               reading.high == a.high[d];
    }
    if (!fits) return std::nullopt;
    strips.push_back(std::move(s));
  }
  return strips;
}

TensorId padded(Graph& g, TensorId t, size_t axis, int64_t low, int64_t high) {
  if (low == 0 && high == 0) return t;
  PadAttrs p;
  p.low.assign(size_t(g.type(t).rank()), 0);
  p.high = p.low;
  p.low[axis] = low;
  p.high[axis] = high;
  return build::pad(g, t, p);
}

// The wrong regions in the mutant's own convolution: what they read lies behind its operand, zeros
// in between (PET Figure 6).
std::optional<Graph> fused(const Graph& original, const Recipe& recipe, const Agreement& found) {
  const int first = int(recipe.starts.size() + recipe.constants.size());
  int at = -1;
  for (size_t i = 0; i < recipe.steps.size(); i++)
    if (recipe.steps[i].kind == StepKind::Apply && recipe.steps[i].op == OpKind::Conv) at = int(i);
  const Op* window = only_convolution(original);
  if (at < 0 || !window || found.outputs.size() != 1) return std::nullopt;
  const Step& conv = recipe.steps[size_t(at)];
  const auto& a = std::get<ConvAttrs>(conv.attrs);
  const auto& b = original.attrs<ConvAttrs>(*window);
  const size_t x = size_t(conv.operands[0]), w = size_t(conv.operands[1]);
  if (w >= recipe.starts.size() || recipe.starts[w].size() != 1) return std::nullopt;
  if (original.inputs()[recipe.starts[w][0]] != window->inputs[1]) return std::nullopt;
  if (a.strides != b.strides || a.dilations != b.dilations || a.groups != b.groups)
    return std::nullopt;
  if (int(x) < first) return std::nullopt;  // the operand is the input itself
  const auto input = std::ranges::find(original.inputs(), window->inputs[0]);
  Assembly assembly(found.outputs[0]);
  const auto wrong = assembly.wrong();
  if (!wrong || wrong->empty() || input == original.inputs().end()) return std::nullopt;

  Graph g(original.name());
  std::vector<Parts> values = begin(original, recipe, g);
  if (!append(g, recipe, 0, size_t(at), values)) return std::nullopt;
  const TensorId body = values[x][0];
  const auto shape = extents(g.type(body).shape);
  size_t along = 2;
  std::optional<std::vector<Strip>> strips;
  while (!(strips = strips_along(along, original, *window, shape, a, *wrong)))
    if (++along == shape.size()) return std::nullopt;

  // Every strip begins where a window does.
  const WindowAxis axis = window_axes(original, *window)[along - 2];
  const int64_t low = a.low[along - 2], high = a.high[along - 2];
  std::vector<TensorId> parts = {body};
  std::vector<int64_t> starts;
  int64_t end = shape[along];
  for (const Strip& s : *strips) {
    int64_t gap = parts.size() == 1 ? high : 0;
    while ((end + gap + low) % axis.stride != 0) gap++;
    const TensorId read =
        slice_of(g, g.inputs()[size_t(input - original.inputs().begin())], s.read);
    parts.push_back(padded(g, read, along, gap + s.low, s.high));
    starts.push_back((end + gap + low) / axis.stride);
    end += g.type(parts.back()).shape[along].extent;
  }
  const TensorId y =
      g.add(OpKind::Conv, {build::concat(g, parts, {int(along)}), values[w][0]}, conv.attrs);
  Region main = all_of(g, y);
  const int64_t reach = (axis.taps - 1) * axis.dilation + 1;
  main[along].end = (shape[along] + low + high - reach) / axis.stride + 1;
  values.push_back({slice_of(g, y, main)});
  if (!append(g, recipe, size_t(at) + 1, recipe.steps.size(), values)) return std::nullopt;
  const auto output = assembly.build(g, values.back()[0], [&](const Region& r) {
    const size_t k = size_t(std::ranges::find(*wrong, r) - wrong->begin());
    Region part = all_of(g, y);
    part[along] = {starts[k], starts[k] + r[along].size()};
    return std::optional(slice_of(g, y, part));
  });
  if (!output) return std::nullopt;
  g.set_outputs({*output});
  return without_dead_code(g);
}

}  // namespace

std::vector<Corrected> corrections(const Graph& original, const Recipe& recipe, const Graph& mutant,
                                   const Agreement& found, const MutateOptions& options) {
  std::vector<Corrected> all;
  auto on = [&](const char* pass) { return options.disabled.count(pass) == 0; };
  auto try_recipe = [&](const std::optional<Recipe>& changed, const char* how) {
    if (!changed) return false;
    auto g = realise(original, *changed);
    if (!g) return false;
    const auto now = agreement(original, *g, options.seed + 1);
    if (!now || !now->whole()) return false;
    all.push_back({std::move(*g), how});
    return true;
  };
  if (on("spacer") && !try_recipe(with_spacers(original, recipe, false), "spacer"))
    try_recipe(with_spacers(original, recipe, true), "spacer");
  if (on("halo")) try_recipe(with_halos(original, recipe), "halo");
  try {
    if (on("fuse"))
      if (auto g = fused(original, recipe, found)) all.push_back({std::move(*g), "fuse"});
    if (on("recompute"))
      if (auto g = recomputed(original, mutant, found)) all.push_back({std::move(*g), "recompute"});
  } catch (const Error&) {  // shapes that do not fit: no such correction
  }
  return all;
}

}  // namespace tessera::mutants
