#include "search/synth/trials.h"

#include <cmath>
#include <unordered_map>

#include "search/synth/inputs.h"

namespace tessera::synth {

struct Trials::Trial {
  Trial(const Spec& spec, const World& main, uint64_t seed, Inputs inputs)
      : world(spec.table, main.dtype(), spec.with_q, seed), kind(inputs) {}
  mutable World world;  // evaluation leaves nothing behind that matters
  Inputs kind;
  SampleStore store;
  std::unordered_map<ValueId, Sample> known;  // by class

  bool agrees(const Sample& original, const Sample& found) const {
    if (kind == Inputs::Random) return original.hash == found.hash;
    if (!(original.dims == found.dims)) return false;
    for (int i = 0; i < original.n; ++i)
      if (std::isfinite(original.x[i]) && !std::isfinite(found.x[i])) return false;
    return true;
  }
};

Trials::Trials(const Spec& spec, const World& world, const std::vector<ValueId>& classes,
               uint64_t seed) {
  constexpr Inputs kKinds[] = {Inputs::Random, Inputs::Random, Inputs::Zeros, Inputs::Equal,
                               Inputs::Large};
  for (size_t t = 0; t < std::size(kKinds); ++t) {
    auto trial = std::make_unique<Trial>(spec, world, derive_key(seed, 1000 + t), kKinds[t]);
    for (const Rational& c : world.constants()) trial->world.constant(c);
    const auto values = evaluate(trial->world, spec, trial->store, kKinds[t]);
    if (!values) continue;
    for (size_t v = 0; v < classes.size(); ++v) trial->known.emplace(classes[v], (*values)[v]);
    trials_.push_back(std::move(trial));
  }
}

Trials::~Trials() = default;

ValueId Trials::wrong(const EGraph& graph, const Choice& choice,
                      const std::vector<ValueId>& order) const {
  for (const auto& trial : trials_) {
    World& world = trial->world;
    world.set_lenient(trial->kind != Inputs::Random);
    SampleStore store;
    std::unordered_map<ValueId, Sample> values;
    for (ValueId v : order) {
      Node node = graph[v].nodes[choice[v]];
      const auto reference = trial->known.find(v);
      std::optional<Sample> value;
      if (node.form == Form::Leaf || node.form == Form::Kept) {
        value = reference->second;
      } else if (node.form == Form::Stack) {
        const KeptOp& op = graph.world().kept_ops()[node.attr];
        std::vector<const Sample*> args;
        for (ValueId a : op.args) args.push_back(&values.at(a));
        const size_t axis = size_t(std::get<AxisAttrs>(op.attrs).axis);
        value = world.stack(args, int(axis), graph[v].sample.dims.axis[axis]);
      } else {
        if (node.form == Form::Const || node.kind == OpKind::Pow)
          node.attr = world.constant(graph.world().constants()[node.attr]);
        const Sample* args[3] = {};
        for (int i = 0; i < node.arity; ++i) args[i] = &values.at(node.arg[size_t(i)]);
        value = world.eval(node, args, &graph[v].sample.dims);
      }
      if (!value || (reference != trial->known.end() && !trial->agrees(reference->second, *value)))
        return v;
      values.emplace(v, store.keep(*value));
    }
  }
  return kNone;
}

}  // namespace tessera::synth
