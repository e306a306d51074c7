#include "search/synth/trials.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>

namespace tessera::synth {
namespace {

// The spec's dimensions with as large sizes as its values allow; its own where none of these do.
DimTable other_sizes(const Spec& spec) {
  constexpr int kSizes[][4][kDraws] = {{{13, 9}, {4, 7}, {3, 5}, {5, 3}},
                                       {{7, 5}, {4, 3}, {3, 5}, {2, 3}},
                                       {{5, 4}, {3, 5}, {4, 3}, {2, 3}},
                                       {{4, 3}, {3, 2}, {2, 3}, {3, 4}}};
  for (const auto& sizes : kSizes) {
    DimTable table = spec.table;
    for (size_t d = 1, next = 0; d < table.sizes.size(); ++d) {
      const std::array<int, kDraws> now = table.sizes[d];
      if (now[0] == now[1] && now[0] == table.extents[d]) continue;  // part of the program
      table.sizes[d] = {sizes[next % 4][0], sizes[next % 4][1]};
      ++next;
    }
    if (std::ranges::all_of(spec.dims, [&](const Dims& d) { return table.count(d) <= kMaxCount; }))
      return table;
  }
  return spec.table;
}

double largest(const Sample& s) {
  double most = 0;
  for (int i = 0; i < s.n; ++i)
    if (std::isfinite(s.x[i])) most = std::max(most, std::fabs(s.x[i]));
  return most;
}

}  // namespace

struct Trials::Trial {
  Trial(const Spec& spec, DimTable table, uint64_t seed, Inputs inputs)
      : world(std::move(table), spec.with_q && inputs == Inputs::Random, seed), kind(inputs) {}
  mutable World world;  // evaluation leaves nothing behind that matters
  Inputs kind;
  SampleStore store;
  std::unordered_map<ValueId, Sample> known;    // by class
  std::unordered_map<ValueId, Sample> rounded;  // Shifted: what the original makes of them in f32

  bool agrees(ValueId v, const Sample& original, const Sample& found) const {
    if (kind == Inputs::Random) return original.hash == found.hash;
    if (!(original.dims == found.dims)) return false;
    if (kind == Inputs::Shifted) return as_accurate(original, rounded.at(v), found);
    const double tolerance = kind == Inputs::Large ? INFINITY : 1e-6 * (1 + largest(original));
    for (int i = 0; i < original.n; ++i) {
      if (!std::isfinite(original.x[i])) continue;
      if (!std::isfinite(found.x[i]) || std::fabs(original.x[i] - found.x[i]) > tolerance)
        return false;
    }
    return true;
  }

  // Is `found` about as close to the exact value as `own`, what the original's rounding leaves?
  static bool as_accurate(const Sample& exact, const Sample& own, const Sample& found) {
    constexpr double kWorse = 4, kUnits = 32 * 0x1p-24;
    const double scale = largest(exact);
    double own_error = 0, error = 0;
    for (int i = 0; i < exact.n; ++i) {
      if (!std::isfinite(exact.x[i]) || !std::isfinite(own.x[i])) continue;
      own_error = std::max(own_error, std::fabs(own.x[i] - exact.x[i]));
      if (!std::isfinite(found.x[i])) return false;
      error = std::max(error, std::fabs(found.x[i] - exact.x[i]));
    }
    return error <= kWorse * own_error + kUnits * scale;
  }
};

Trials::Trials(const Spec& spec, const World& world, const std::vector<ValueId>& classes,
               uint64_t seed, int64_t patience, const std::function<bool()>& stopped) {
  struct Kind {
    Inputs inputs;
    int times;
    bool larger;
  };
  const int branches = spec.with_order ? 6 : 2;
  const Kind kinds[] = {{Inputs::Random, 1, false},      {Inputs::Random, 1, !spec.with_q},
                        {Inputs::Zeros, 1, true},        {Inputs::Equal, 1, true},
                        {Inputs::AllZero, 1, true},      {Inputs::Large, 1, true},
                        {Inputs::Signs, branches, true}, {Inputs::Shifted, 1, true}};
  const DimTable larger = other_sizes(spec);
  uint64_t t = 1000;
  for (const Kind& kind : kinds) {
    for (int i = 0; i < kind.times; ++i, ++t) {
      if (stopped && stopped()) {
        complete_ = false;
        return;
      }
      auto trial = std::make_unique<Trial>(spec, kind.larger ? larger : spec.table,
                                           derive_key(seed, t), kind.inputs);
      for (const Rational& c : world.constants()) trial->world.constant(c);
      auto values = evaluate(trial->world, spec, trial->store, kind.inputs, t, patience, stopped);
      if (!values) continue;
      for (size_t v = 0; v < classes.size(); ++v) {
        const auto [first, fresh] = trial->known.emplace(classes[v], (*values)[v]);
        const bool told = kind.inputs == Inputs::Signs && !fresh;
        if (told && !trial->agrees(classes[v], (*values)[v], first->second)) unlike_.insert(v);
      }
      if (kind.inputs == Inputs::Shifted) {
        trial->world.set_rounding(true);
        values = evaluate(trial->world, spec, trial->store, kind.inputs, t, patience);
        if (!values) continue;
        for (size_t v = 0; v < classes.size(); ++v)
          trial->rounded.emplace(classes[v], (*values)[v]);
      }
      trials_.push_back(std::move(trial));
    }
  }
}

Trials::~Trials() = default;

ValueId Trials::wrong(const EGraph& graph, const Choice& choice,
                      const std::vector<ValueId>& order) const {
  for (const auto& trial : trials_) {
    World& world = trial->world;
    world.set_lenient(trial->kind != Inputs::Random);
    // What this trial's sizes do not hold says nothing.
    if (std::ranges::any_of(
            order, [&](ValueId v) { return world.dims().count(graph[v].sample.dims) > kMaxCount; }))
      continue;
    SampleStore store;
    std::unordered_map<ValueId, Sample> values;
    for (ValueId v : order) {
      Node node = graph[v].nodes[choice[v]];
      const auto reference = trial->known.find(v);
      std::optional<Sample> value;
      if (node.form == Form::Leaf || node.form == Form::Kept) {
        value = reference->second;
      } else {
        if (has_constant(node)) node.attr = world.constant(graph.world().constants()[node.attr]);
        value = world.eval_any(node, graph.world().kept_ops(), graph[v].sample.dims,
                               [&](ValueId a) -> const Sample& { return values.at(a); });
      }
      if (!value ||
          (reference != trial->known.end() && !trial->agrees(v, reference->second, *value)))
        return v;
      values.emplace(v, store.keep(*value));
    }
  }
  return kNone;
}

}  // namespace tessera::synth
