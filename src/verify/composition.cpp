#include "verify/composition.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "base/error.h"
#include "base/interruption.h"
#include "base/text.h"
#include "eval/eval.h"
#include "ir/build.h"
#include "ir/walk.h"
#include "verify/congruence.h"
#include "verify/inputs.h"
#include "verify/logarithms.h"
#include "verify/signs.h"

namespace tessera {
namespace {

constexpr double kLooksEqual = 1e-9;  // of the largest element; both are computed in f64
constexpr int kMaxRankPermuted = 4;

// --- which values look equal

std::vector<TensorId> candidates_for_cuts(const Graph& g) {
  std::vector<TensorId> list;
  for (const Op& op : g.ops()) {
    if (is_leaf(op.kind)) continue;
    for (uint32_t r = 0; r < op.num_results; r++)
      if (is_float(g.type(op.result(r)).dtype)) list.push_back(op.result(r));
  }
  return list;
}

struct CutValue {
  TensorId tensor;
  NDArray array;
  double sum = 0, squares = 0, largest = 0;
};

std::vector<CutValue> evaluate(const Graph& g, const std::vector<NDArray>& inputs,
                               ThreadPool* pool) {
  const std::vector<TensorId> tensors = candidates_for_cuts(g);
  Graph all = g;
  all.set_outputs(tensors);
  EvalOptions options;
  options.pool = pool;
  std::vector<NDArray> arrays = eval(all, inputs, options);
  std::vector<CutValue> values;
  for (size_t i = 0; i < tensors.size(); i++) {
    CutValue v{tensors[i], std::move(arrays[i])};
    bool finite = !v.array.reals.empty();
    for (double x : v.array.reals) {
      finite = finite && std::isfinite(x);
      v.sum += std::fabs(x);
      v.squares += x * x;
      v.largest = std::max(v.largest, std::fabs(x));
    }
    // A free input stands for finite numbers only.
    if (finite && v.largest > 0) values.push_back(std::move(v));
  }
  return values;
}

bool close(double a, double b, double scale) { return std::fabs(a - b) <= kLooksEqual * scale; }

// Whether the elements of y in their order are those of x with its axes permuted.
bool same_elements(const CutValue& x, const CutValue& y, const std::vector<int>& axes) {
  interruption_point();
  const size_t rank = axes.size();
  std::vector<int64_t> shape(rank), stride(rank), at(rank, 0);
  int64_t step = 1;
  std::vector<int64_t> strides(rank);
  for (size_t d = rank; d-- > 0;) {
    strides[d] = step;
    step *= x.array.shape[d];
  }
  for (size_t d = 0; d < rank; d++) {
    shape[d] = x.array.shape[size_t(axes[d])];
    stride[d] = strides[size_t(axes[d])];
  }
  const double scale = std::max(x.largest, y.largest);
  int64_t from = 0;
  for (double element : y.array.reals) {
    if (!close(x.array.reals[size_t(from)], element, scale)) return false;
    for (size_t d = rank; d-- > 0;) {
      from += stride[d];
      if (++at[d] < shape[d]) break;
      from -= stride[d] * shape[d];
      at[d] = 0;
    }
  }
  return true;
}

std::optional<std::vector<int>> permutation_between(const CutValue& x, const CutValue& y) {
  if (x.array.dtype != y.array.dtype || x.array.reals.size() != y.array.reals.size() ||
      !close(x.largest, y.largest, x.largest) || !close(x.sum, y.sum, x.sum) ||
      !close(x.squares, y.squares, x.squares))
    return std::nullopt;
  std::vector<int> axes(x.array.shape.size());
  std::iota(axes.begin(), axes.end(), 0);
  if (same_elements(x, y, axes)) return std::vector<int>();
  if (axes.size() > kMaxRankPermuted) return std::nullopt;
  while (std::next_permutation(axes.begin(), axes.end()))
    if (same_elements(x, y, axes)) return axes;
  return std::nullopt;
}

// --- parts of programs

TensorId moved(Graph& g, TensorId t, const std::vector<int>& axes, const Shape& to) {
  if (!axes.empty()) t = build::transpose(g, t, {axes});
  if (!(g.type(t).shape == to)) t = build::reshape(g, t, {to});
  return t;
}

}  // namespace

std::vector<ValuePair> frontier(const Graph& spec, const Graph& candidate, const ValuePair& target,
                                std::vector<ValuePair> allowed) {
  while (true) {
    std::set<TensorId> a, b;
    for (const ValuePair& p : allowed) a.insert(p.spec), b.insert(p.candidate);
    const std::set<TensorId> x = made_of(spec, {target.spec}, a),
                             y = made_of(candidate, {target.candidate}, b);
    std::set<TensorId> both;  // original values met on both sides
    for (const ValuePair& p : allowed)
      if (x.count(p.spec) != 0 && y.count(p.candidate) != 0) both.insert(p.spec);
    std::vector<ValuePair> kept, hit;
    for (const ValuePair& p : allowed) {
      const bool one_sided =
          (x.count(p.spec) != 0 || y.count(p.candidate) != 0) && both.count(p.spec) == 0;
      if (!one_sided) kept.push_back(p);
      if (x.count(p.spec) != 0 && y.count(p.candidate) != 0) hit.push_back(p);
    }
    if (kept.size() == allowed.size()) return hit;
    allowed = std::move(kept);
  }
}

namespace {

// Copies what `target` needs, with cuts in place of what they stand for; `inputs` are the cuts'.
std::vector<TensorId> copy_definition(Graph& out, const Graph& g, TensorId target,
                                      const std::map<TensorId, TensorId>& cuts) {
  std::set<TensorId> stops;
  for (const auto& [t, unused] : cuts) stops.insert(t);
  const std::set<TensorId> needed = made_of(g, {target}, stops);
  std::vector<TensorId> to(g.tensors().size());
  for (size_t k = 0; k < g.inputs().size(); k++) to[g.inputs()[k].index] = out.inputs()[k];
  for (const auto& [t, input] : cuts) to[t.index] = input;
  for (const Op& op : g.ops()) {
    bool any = false;
    for (uint32_t r = 0; r < op.num_results; r++)
      any = any || (needed.count(op.result(r)) != 0 && cuts.count(op.result(r)) == 0);
    if (is_input(op.kind) || !any) continue;
    copy_op(g, op, out, to);
    for (uint32_t r = 0; r < op.num_results; r++)
      if (const auto at = cuts.find(op.result(r)); at != cuts.end())
        to[at->first.index] = at->second;
  }
  return to;
}

std::string text_of(const ValuePair& p) {
  std::string s = std::to_string(p.spec.index) + ":" + std::to_string(p.candidate.index);
  for (size_t i = 0; i < p.axes.size(); i++) s += (i ? "." : "@") + std::to_string(p.axes[i]);
  return s;
}

// Numbers separated by `separator`, to the end.
std::optional<std::vector<uint32_t>> numbers(std::string_view s, char separator) {
  if (s.empty()) return std::nullopt;
  std::vector<uint32_t> result;
  for (std::string_view part : split(s, separator)) {
    const auto n = number_from<uint32_t>(part);
    if (!n) return std::nullopt;
    result.push_back(*n);
  }
  return result;
}

std::optional<ValuePair> parse_pair(std::string_view s) {
  const size_t at = s.find('@');
  const auto ids = numbers(s.substr(0, at), ':');
  if (!ids || ids->size() != 2) return std::nullopt;
  ValuePair p{TensorId((*ids)[0]), TensorId((*ids)[1]), {}};
  if (at != std::string_view::npos) {
    const auto axes = numbers(s.substr(at + 1), '.');
    if (!axes) return std::nullopt;
    p.axes.assign(axes->begin(), axes->end());
  }
  return p;
}

}  // namespace

std::string ProofPart::str() const {
  std::string s = "target=" + text_of(target) + " cuts=";
  for (size_t i = 0; i < cuts.size(); i++) s += (i ? "," : "") + text_of(cuts[i]);
  return tiles ? s + " tiles=" + joined(*tiles) : s;
}

std::optional<ProofPart> ProofPart::parse(std::string_view text) {
  constexpr std::string_view kTarget = "target=", kCuts = " cuts=", kTiles = " tiles=";
  const size_t at = text.find(kCuts);
  if (text.substr(0, kTarget.size()) != kTarget || at == std::string_view::npos)
    return std::nullopt;
  const auto target = parse_pair(text.substr(kTarget.size(), at - kTarget.size()));
  if (!target) return std::nullopt;
  ProofPart part{*target, {}};
  std::string_view rest = text.substr(at + kCuts.size());
  if (const size_t end = rest.find(kTiles); end != std::string_view::npos) {
    const std::string_view list = rest.substr(end + kTiles.size());
    part.tiles.emplace();
    if (!list.empty()) {
      const auto tiles = numbers(list, ',');
      if (!tiles) return std::nullopt;
      part.tiles->assign(tiles->begin(), tiles->end());
    }
    rest = rest.substr(0, end);
  }
  for (std::string_view text_of_cut : split(rest, ',')) {
    const auto cut = parse_pair(text_of_cut);
    if (!cut) return std::nullopt;
    part.cuts.push_back(*cut);
  }
  return part;
}

std::vector<ValuePair> values_that_look_equal(const Graph& spec, const Graph& candidate,
                                              uint64_t seed, ThreadPool* pool) {
  const std::vector<NDArray> inputs =
      make_inputs(spec, "normal", seed, integer_ranges(spec, candidate, {-8, 8}));
  std::vector<CutValue> a, b;
  try {
    a = evaluate(spec, inputs, pool);
    b = evaluate(candidate, inputs, pool);
  } catch (const Error&) {
    return {};  // opaque operators have no meaning in numbers
  }
  std::vector<ValuePair> pairs;
  for (const CutValue& y : b) {
    std::optional<ValuePair> best;
    for (const CutValue& x : a) {
      const auto axes = permutation_between(x, y);
      if (!axes) continue;
      const bool plain = axes->empty() && x.array.shape == y.array.shape;
      if (!best || plain) best = ValuePair{x.tensor, y.tensor, *axes};
      if (plain) break;
    }
    if (best) pairs.push_back(*best);
  }
  std::ranges::stable_sort(
      pairs, [](const ValuePair& x, const ValuePair& y) { return x.spec.index < y.spec.index; });
  return pairs;
}

namespace {

// The inputs of both are the original's, and one more per cut value.
std::optional<PartPrograms> definitions_over_all_inputs(const ProofPart& part, const Graph& spec,
                                                        const Graph& candidate,
                                                        OpKind nonnegative = OpKind::Sqr) {
  auto fits = [&](const ValuePair& p) {
    if (p.spec.index >= spec.tensors().size() || p.candidate.index >= candidate.tensors().size())
      return false;
    std::vector<int> axes = p.axes;
    std::ranges::sort(axes);
    for (size_t i = 0; i < axes.size(); i++)
      if (axes[i] != int(i)) return false;
    const Type &x = spec.type(p.spec), &y = candidate.type(p.candidate);
    return (axes.empty() || int(axes.size()) == x.rank()) && x.dtype == y.dtype &&
           num_elements(x.shape) == num_elements(y.shape);
  };
  for (const ValuePair& p : part.cuts)
    if (!fits(p) || !is_float(spec.type(p.spec).dtype)) return std::nullopt;
  if (!fits(part.target)) return std::nullopt;
  PartPrograms result{Graph(spec.name()), Graph(candidate.name())};
  std::map<TensorId, TensorId> in_spec, in_candidate;
  auto declare = [&](Graph& out) {
    for (TensorId t : spec.inputs()) out.add_input(spec.type(t), spec.tensor(t).name);
    std::map<TensorId, TensorId> inputs;  // of the original's values
    for (const ValuePair& p : part.cuts)
      if (inputs.count(p.spec) == 0) inputs[p.spec] = out.add_input(spec.type(p.spec));
    for (auto& [t, input] : inputs)
      if (is_nonnegative(spec, t)) input = out.add(nonnegative, {input});
    return inputs;
  };
  in_spec = declare(result.spec);
  const std::map<TensorId, TensorId> values = declare(result.candidate);
  for (const ValuePair& p : part.cuts)
    in_candidate[p.candidate] =
        moved(result.candidate, values.at(p.spec), p.axes, candidate.type(p.candidate).shape);
  // A value is not its own proof; but one side of the target may be a cut of another pair.
  for (const ValuePair& p : part.cuts)
    if (p.spec == part.target.spec && p.candidate == part.target.candidate) return std::nullopt;
  const TensorId x =
      copy_definition(result.spec, spec, part.target.spec, in_spec)[part.target.spec.index];
  const TensorId y = copy_definition(result.candidate, candidate, part.target.candidate,
                                     in_candidate)[part.target.candidate.index];
  result.spec.add_output(
      moved(result.spec, x, part.target.axes, candidate.type(part.target.candidate).shape));
  result.candidate.add_output(y);
  return result;
}

// Which inputs an output depends on, by number.
std::vector<bool> needed_inputs(const Graph& g) {
  const std::set<TensorId> needed = made_of(g, g.outputs());
  return mapped(g.inputs(), [&](TensorId t) { return needed.count(t) != 0; });
}

Graph with_inputs(const Graph& g, const std::vector<bool>& kept) {
  const Graph live = without_dead_code(g);
  Graph out(live.name());
  std::vector<TensorId> map(live.tensors().size());
  size_t input = 0;
  for (const Op& op : live.ops())
    if (!is_input(op.kind) || kept[input++]) copy_op(live, op, out, map);
  for (TensorId t : live.outputs()) out.add_output(map[t.index]);
  return out;
}

}  // namespace

std::optional<PartPrograms> programs_of(const ProofPart& part, const Graph& spec,
                                        const Graph& candidate) {
  auto result = definitions_over_all_inputs(part, spec, candidate);
  if (!result) return std::nullopt;
  if (auto logged = with_logarithms_as_inputs(result->spec, result->candidate))
    return PartPrograms{std::move(logged->spec), std::move(logged->candidate)};
  return result;
}

std::optional<PartPrograms> definitions_of(const ProofPart& part, const Graph& spec,
                                           const Graph& candidate,
                                           std::vector<std::pair<size_t, ValuePair>>* cuts,
                                           OpKind nonnegative) {
  auto all = definitions_over_all_inputs(part, spec, candidate, nonnegative);
  if (!all) return std::nullopt;
  std::vector<bool> kept = needed_inputs(all->spec);
  const std::vector<bool> more = needed_inputs(all->candidate);
  for (size_t k = 0; k < kept.size(); k++) kept[k] = kept[k] || more[k];
  if (cuts != nullptr) {
    cuts->clear();
    std::set<TensorId> seen;  // one input for each of the original's values
    size_t input = spec.inputs().size();
    for (const ValuePair& p : part.cuts) {
      if (!seen.insert(p.spec).second) continue;
      if (kept[input])
        cuts->emplace_back(size_t(std::count(kept.begin(), kept.begin() + long(input), true)), p);
      input++;
    }
  }
  return PartPrograms{with_inputs(all->spec, kept), with_inputs(all->candidate, kept)};
}

std::optional<std::vector<ProofPart>> compose(const Graph& spec, const Graph& candidate,
                                              const std::vector<ValuePair>& pairs, int max_tests,
                                              const std::function<bool(const ProofPart&)>& equal) {
  std::vector<ValuePair> targets = pairs;
  for (size_t k = 0; k < spec.outputs().size(); k++)
    targets.push_back({spec.outputs()[k], candidate.outputs()[k], {}});
  std::vector<ValuePair> proved;
  std::vector<ProofPart> parts;
  constexpr int kLevels = 4;  // how far back cuts are looked for
  for (size_t i = 0; i < targets.size(); i++) {
    const ValuePair& target = targets[i];
    if (std::ranges::find(proved, target) != proved.end()) continue;
    std::vector<std::vector<ValuePair>> tried;
    auto holds = [&](const std::vector<ValuePair>& cuts) {
      if (std::ranges::find(tried, cuts) != tried.end()) return false;
      tried.push_back(cuts);
      if (max_tests-- <= 0 || !equal({target, cuts})) return false;
      parts.push_back({target, cuts});
      proved.push_back(target);
      return true;
    };
    std::vector<ValuePair> allowed = proved;
    std::erase_if(allowed, [&](const ValuePair& p) {
      return p.spec == target.spec && p.candidate == target.candidate;
    });
    bool done = false;
    for (int level = 0; level < kLevels && !done && max_tests > 0; level++) {
      const std::vector<ValuePair> cuts = frontier(spec, candidate, target, allowed);
      done = holds(cuts);
      if (done || cuts.empty()) break;
      // Something about a cut matters that a free input does not tell: without the last, …
      std::vector<ValuePair> fewer = allowed;
      std::erase(fewer, cuts.back());
      done = holds(frontier(spec, candidate, target, fewer));
      // … and without all of them.
      std::erase_if(allowed,
                    [&](const ValuePair& p) { return std::ranges::find(cuts, p) != cuts.end(); });
    }
    if (!done && i >= pairs.size()) return std::nullopt;
  }
  // Only what the outputs rest on.
  std::vector<ValuePair> needed(targets.begin() + long(pairs.size()), targets.end());
  std::vector<ProofPart> kept;
  for (size_t i = parts.size(); i-- > 0;) {
    if (std::ranges::find(needed, parts[i].target) == needed.end()) continue;
    needed.insert(needed.end(), parts[i].cuts.begin(), parts[i].cuts.end());
    kept.push_back(parts[i]);
  }
  std::ranges::reverse(kept);
  return kept;
}

void add_proofs(Certificate& c, int binding,
                const std::vector<std::pair<ProofPart, Certificate>>& proofs,
                const std::string& parts) {
  double error = std::exp2(kCertain);
  std::set<std::string> bases;
  for (const auto& [part, proof] : proofs) {
    const int number = int(c.parts.size());
    c.parts.push_back({binding, part.str()});
    for (const FieldDraw& d : proof.draws) c.draws.push_back(d), c.draws.back().part = number;
    for (const GateFamily& g : proof.gate) c.gate.push_back(g), c.gate.back().part = number;
    for (const std::string& s : proof.assumptions) add_once(c.assumptions, s);
    for (const std::string& s : proof.notes) add_once(c.notes, s);
    error += std::exp2(proof.error_log2);
    bases.insert(proof.basis);
    c.min_draws = c.min_draws == 0 ? proof.min_draws : std::min(c.min_draws, proof.min_draws);
  }
  if (!c.bound.empty() && std::log2(error) <= c.error_log2) return;
  c.error_log2 = std::log2(error);
  c.bound = "the sum of the bounds of " + std::to_string(proofs.size()) + " " + parts;
  if (bases.size() != 1) bases.erase("proved");
  c.basis = bases.empty() ? "proved" : "";
  for (const std::string& b : bases) c.basis += (c.basis.empty() ? "" : "; ") + b;
}

std::string missing_in(const std::vector<ProofPart>& parts, const Graph& spec,
                       const Graph& candidate) {
  std::vector<ValuePair> proved;
  Congruence known(spec, candidate);
  auto follows = [&](const ValuePair& p) {
    return std::ranges::find(proved, p) != proved.end() || known.equal(p);
  };
  for (const ProofPart& p : parts) {
    for (const ValuePair& c : p.cuts)
      if (c.spec.index >= spec.tensors().size() ||
          c.candidate.index >= candidate.tensors().size() || !follows(c))
        return "it cuts at " + text_of(c) + ", which no earlier part proves";
    if (p.target.spec.index >= spec.tensors().size() ||
        p.target.candidate.index >= candidate.tensors().size())
      return "the programs have no " + text_of(p.target);
    proved.push_back(p.target);
    known = Congruence(spec, candidate, proved);
  }
  for (size_t k = 0; k < spec.outputs().size(); k++)
    if (!follows({spec.outputs()[k], candidate.outputs()[k], {}}))
      return "no part proves output " + std::to_string(k);
  return "";
}

}  // namespace tessera
