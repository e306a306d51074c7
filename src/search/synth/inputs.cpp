#include "search/synth/inputs.h"

#include "base/check.h"
#include "base/rng.h"

namespace tessera::synth {
namespace {

class Inputs {
 public:
  Inputs(World& world, const Spec& spec, bool positive)
      : world_(world), spec_(spec), numbers_(spec.nodes.size()), positive_(positive) {
    for (ValueId v = 0; v < spec.nodes.size(); ++v) {
      const Form form = spec.nodes[v].form;
      if (form != Form::Leaf && form != Form::Kept) continue;
      numbers_[v] = world.draw(spec.dims[v], spec.keys[v], positive);
      if (is_float(spec.dims[v].dtype)) drawn_.push_back(v);
    }
  }

  // All values; `undefined` counts their elements that are not.
  std::vector<Sample> evaluate(SampleStore& store, int64_t& undefined) {
    const int64_t before = world_.undefined();
    std::vector<Sample> values;
    for (ValueId v = 0; v < spec_.nodes.size(); ++v) {
      const Node& node = spec_.nodes[v];
      std::optional<Sample> s;
      if (node.form == Form::Leaf || node.form == Form::Kept) {
        s = world_.sample(spec_.dims[v], numbers_[v]);
      } else if (node.form == Form::Stack) {
        const KeptOp& op = spec_.kept[node.attr];
        std::vector<const Sample*> args;
        for (ValueId a : op.args) args.push_back(&values[a]);
        const int axis = std::get<AxisAttrs>(op.attrs).axis;
        s = world_.stack(args, axis, spec_.dims[v].axis[size_t(axis)]);
      } else {
        const Sample* args[3] = {};
        for (int i = 0; i < node.arity; ++i) args[i] = &values[node.arg[size_t(i)]];
        s = world_.eval(node, args, &spec_.dims[v]);
      }
      if (!s) {
        undefined = INT64_MAX;
        return {};
      }
      values.push_back(store.keep(*s));
    }
    undefined = world_.undefined() - before;
    return values;
  }

  // One element of one input drawn again; undo() takes it back.
  void change(Rng& rng) {
    v_ = drawn_[rng.below(drawn_.size())];
    at_ = rng.below(numbers_[v_].p.size());
    const Numbers fresh = world_.draw(spec_.dims[v_], rng(), positive_);
    Numbers& old = numbers_[v_];
    kept_p_ = old.p[at_];
    kept_q_ = old.q[at_];
    kept_x_ = old.x[at_];
    // The field's part and the real one have troubles of their own.
    if (rng.chance(0.7)) {
      old.p[at_] = fresh.p[at_];
      old.q[at_] = fresh.q[at_];
    } else {
      old.x[at_] = fresh.x[at_];
    }
  }
  void undo() {
    numbers_[v_].p[at_] = kept_p_;
    numbers_[v_].q[at_] = kept_q_;
    numbers_[v_].x[at_] = kept_x_;
  }
  bool empty() const { return drawn_.empty(); }

 private:
  World& world_;
  const Spec& spec_;
  std::vector<Numbers> numbers_;  // of inputs and kept values
  std::vector<ValueId> drawn_;
  bool positive_;
  ValueId v_ = 0;
  size_t at_ = 0;
  uint32_t kept_p_ = 0, kept_q_ = 0;
  double kept_x_ = 0;
};

}  // namespace

std::optional<std::vector<Sample>> evaluate(World& world, const Spec& spec, SampleStore& store) {
  constexpr int kChanges = 4000;
  world.set_lenient(true);
  std::optional<std::vector<Sample>> result;
  // Roots and logarithms want positive inputs; where that is not enough, neither is anything else.
  for (bool positive : {spec.with_roots, !spec.with_roots}) {
    Inputs inputs(world, spec, positive);
    Rng rng(positive ? 11 : 7);
    int64_t undefined = 0;
    std::optional<SampleStore> trial(std::in_place);
    inputs.evaluate(*trial, undefined);
    if (undefined == INT64_MAX) break;
    for (int i = 0; undefined != 0 && i < kChanges && !inputs.empty(); ++i) {
      int64_t now = 0;
      inputs.change(rng);
      trial.emplace();
      inputs.evaluate(*trial, now);
      if (now <= undefined)
        undefined = now;
      else
        inputs.undo();
    }
    if (undefined == 0) {
      result = inputs.evaluate(store, undefined);
      break;
    }
  }
  world.set_lenient(false);
  return result;
}

}  // namespace tessera::synth
