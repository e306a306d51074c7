#include "search/mutate/generate.h"

#include "base/error.h"
#include "base/text.h"
#include "ir/build.h"
#include "search/mutate/steps.h"

namespace tessera::mutants {
namespace {

std::string describe(const Step& s) {
  switch (s.kind) {
  case StepKind::Rearrange: return s.rearrangement.str();
  case StepKind::Reshape: return "reshape to [" + joined(s.shape) + "]";
  case StepKind::Concat: return "concat along axis " + std::to_string(s.axis);
  case StepKind::Split:
    return "split [" + joined(s.sizes) + "] along axis " + std::to_string(s.axis);
  case StepKind::Fit: return "zeros around windows of [" + joined(s.shape) + "]";
  case StepKind::Merge:
    return "one group of every " + std::to_string(s.sizes[1]) + " of " + std::to_string(s.sizes[0]);
  case StepKind::Apply: {
    std::string text = name(s.op);
    if (const auto* a = std::get_if<ConvAttrs>(&s.attrs)) {
      text += " strides=[" + joined(a->strides) + "] dilations=" + "[" + joined(a->dilations) +
              "] low=[" + joined(a->low) + "] high=" + "[" + joined(a->high) + "]";
      if (a->groups > 1) text += " groups=" + std::to_string(a->groups);
    }
    return text;
  }
  }
  return {};
}

// Weights [O, C, ...] of `groups` groups as [O, C·joined, ...] of groups / joined: what was the
// k-th of a group's parts reads the k-th C channels, and zeros stand for the others.
TensorId merged(Graph& g, TensorId weights, int64_t groups, int64_t joined) {
  std::vector<int64_t> whole = extents(g.type(weights).shape);
  const int64_t channels = whole[1];
  std::vector<int64_t> apart = {groups / joined, joined, whole[0] / groups};
  apart.insert(apart.end(), whole.begin() + 1, whole.end());
  const TensorId parts = build::reshape(g, weights, {Shape(apart.begin(), apart.end())});
  std::vector<TensorId> wide;
  for (int64_t k = 0; k < joined; k++) {
    SliceAttrs part;
    part.stops = apart;
    part.starts.assign(apart.size(), 0);
    part.starts[1] = k;
    part.stops[1] = k + 1;
    PadAttrs zeros{
        std::vector<int64_t>(apart.size(), 0), std::vector<int64_t>(apart.size(), 0), {}};
    zeros.low[3] = k * channels;
    zeros.high[3] = (joined - 1 - k) * channels;
    wide.push_back(build::pad(g, build::slice(g, parts, part), std::move(zeros)));
  }
  whole[1] *= joined;
  return build::reshape(g, build::concat(g, wide, {1}), {Shape(whole.begin(), whole.end())});
}

}  // namespace

std::string Recipe::str() const {
  std::string text;
  const size_t first = starts.size() + constants.size();
  auto value = [&](int v) -> std::string {
    if (size_t(v) >= first) return "v" + std::to_string(size_t(v) - first + 1);
    if (size_t(v) >= starts.size()) return "constant " + std::to_string(size_t(v) - starts.size());
    std::string s = "input";
    for (const size_t i : starts[size_t(v)]) s += " " + std::to_string(i);
    return s;
  };
  for (size_t i = 0; i < steps.size(); i++) {
    text += "v" + std::to_string(i + 1) + " = " + describe(steps[i]) + ":";
    for (size_t k = 0; k < steps[i].operands.size(); k++)
      text += (k ? ", " : " ") + value(steps[i].operands[k]);
    text += "\n";
  }
  return text;
}

std::optional<Parts> append(Graph& g, const Step& s, const std::vector<Parts>& values) {
  const Parts& x = values[size_t(s.operands[0])];
  Parts r;
  switch (s.kind) {
  case StepKind::Rearrange:
    for (const TensorId t : x) {
      if (!s.rearrangement.shape(extents(g.type(t).shape))) return std::nullopt;
      r.push_back(s.rearrangement.build(g, t));
    }
    return r;
  case StepKind::Reshape:
    for (const TensorId t : x)
      r.push_back(build::reshape(g, t, {Shape(s.shape.begin(), s.shape.end())}));
    return r;
  case StepKind::Concat: return Parts{build::concat(g, x, {s.axis})};
  case StepKind::Split: {
    SliceAttrs a;
    a.stops = extents(g.type(x[0]).shape);
    a.starts.assign(a.stops.size(), 0);
    int64_t at = 0;
    for (const int64_t size : s.sizes) {
      a.starts[size_t(s.axis)] = at;
      at += size;
      a.stops[size_t(s.axis)] = at;
      r.push_back(build::slice(g, x[0], a));
    }
    return r;
  }
  case StepKind::Fit:
    if (s.lows.size() != x.size()) return std::nullopt;
    for (size_t i = 0; i < x.size(); i++) {
      const std::vector<int64_t> from = extents(g.type(x[i]).shape);
      PadAttrs a{std::vector<int64_t>(from.size(), 0), std::vector<int64_t>(from.size(), 0), {}};
      const size_t lead = from.size() - s.shape.size();
      for (size_t d = 0; d < s.shape.size(); d++) {
        a.low[lead + d] = s.lows[i][d];
        a.high[lead + d] = s.shape[d] - s.lows[i][d] - from[lead + d];
      }
      const bool same = std::equal(s.shape.begin(), s.shape.end(), from.begin() + int64_t(lead));
      r.push_back(same ? x[i] : build::pad(g, x[i], std::move(a)));
    }
    return r;
  case StepKind::Merge:
    for (const TensorId t : x) r.push_back(merged(g, t, s.sizes[0], s.sizes[1]));
    return r;
  case StepKind::Apply: {
    size_t width = 1;
    for (const int v : s.operands) width = std::max(width, values[size_t(v)].size());
    for (size_t i = 0; i < width; i++) {
      std::vector<TensorId> in;
      for (const int v : s.operands) {
        const Parts& p = values[size_t(v)];
        if (p.size() != 1 && p.size() != width) return std::nullopt;
        in.push_back(p.size() == 1 ? p[0] : p[i]);
      }
      r.push_back(g.add(s.op, std::move(in), s.attrs));
    }
    return r;
  }
  }
  return std::nullopt;
}

bool append(Graph& g, const Recipe& recipe, size_t from, size_t to, std::vector<Parts>& values) {
  for (size_t i = from; i < to; i++) {
    auto parts = append(g, recipe.steps[i], values);
    if (!parts) return false;
    values.push_back(std::move(*parts));
  }
  return true;
}

std::vector<Parts> begin(const Graph& original, const Recipe& recipe, Graph& g) {
  std::vector<Parts> values;
  std::vector<TensorId> inputs;
  for (const TensorId t : original.inputs())
    inputs.push_back(g.add_input(original.type(t), original.tensor(t).name, original.is_weight(t)));
  for (const auto& start : recipe.starts) {
    Parts p;
    for (const size_t i : start) p.push_back(inputs[i]);
    values.push_back(std::move(p));
  }
  for (const OpId id : recipe.constants) {
    const auto& a = original.attrs<ConstAttrs>(original.op(id));
    values.push_back({g.add_const(a.value, a.type)});
  }
  return values;
}

std::optional<Graph> realise(const Graph& original, const Recipe& recipe) {
  Graph g(original.name());
  std::vector<Parts> values = begin(original, recipe, g);
  try {
    if (!append(g, recipe, 0, recipe.steps.size(), values)) return std::nullopt;
  } catch (const Error&) {  // a changed recipe's shapes no longer fit
    return std::nullopt;
  }
  const Parts& outputs = values.back();
  if (outputs.size() != original.outputs().size()) return std::nullopt;
  for (size_t k = 0; k < outputs.size(); k++)
    if (!(g.type(outputs[k]) == original.type(original.outputs()[k]))) return std::nullopt;
  g.set_outputs(outputs);
  return without_dead_code(g);
}

}  // namespace tessera::mutants
