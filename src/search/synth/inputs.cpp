#include "search/synth/inputs.h"

#include <cmath>

#include "base/rng.h"

namespace tessera::synth {
namespace {

class Drawn {
 public:
  Drawn(World& world, const Spec& spec, bool positive, uint64_t attempt)
      : world_(world), spec_(spec), numbers_(spec.nodes.size()), positive_(positive) {
    for (ValueId v = 0; v < spec.nodes.size(); ++v) {
      const Form form = spec.nodes[v].form;
      if (form != Form::Leaf && form != Form::Kept) continue;
      numbers_[v] = world.draw(spec.dims[v], derive_key(spec.keys[v], attempt), positive);
      if (spec.dims[v].dtype != DType::Bool) drawn_.push_back(v);
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
      } else {
        s = world_.eval_any(
            node, spec_.kept, spec_.dims[v], [&](ValueId a) -> const Sample& { return values[a]; });
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
    const size_t at = rng.below(numbers_[v_].p.size());
    const Numbers fresh = world_.draw(spec_.dims[v_], rng(), positive_);
    Numbers& old = numbers_[v_];
    kept_ = old;
    if (!old.v.empty()) {
      old.v[at] = fresh.v[at];
      old.p[at] = fresh.p[at];
      old.q[at] = fresh.q[at];
      old.x[at] = fresh.x[at];
      return;
    }
    // The field's part and the real one have troubles of their own.
    if (rng.chance(0.7)) {
      old.p[at] = fresh.p[at];
      old.q[at] = fresh.q[at];
    } else {
      old.x[at] = fresh.x[at];
    }
  }
  void undo() { numbers_[v_] = kept_; }
  bool empty() const { return drawn_.empty(); }
  // Real numbers at which programs tend to fail.
  void make(Inputs kind, uint64_t key) {
    Rng rng(derive_key(key, uint64_t(kind)));
    for (ValueId v : drawn_) {
      if (!numbers_[v].v.empty()) continue;  // integers have their edges already
      const double scale = std::exp2(6 * rng.unit() - 4),
                   least = positive_ && key % 2 == 0 ? 0 : -2;
      std::vector<double>& x = numbers_[v].x;
      for (size_t i = 0; i < x.size(); ++i) {
        if (kind == Inputs::AllZero || (kind == Inputs::Zeros && (numbers_[v].q[i] & 1) != 0))
          x[i] = numbers_[v].p[i] = numbers_[v].q[i] = 0;
        if (kind == Inputs::Equal) x[i] = 1;
        if (kind == Inputs::Large) x[i] *= i % 2 == 0 ? 150 : 1000;
        if (kind == Inputs::Signs) x[i] = scale * (least + (2 - least) * rng.unit());
        if (kind == Inputs::Shifted) x[i] = double(float(1000 + 4 * rng.unit()));
      }
    }
  }

 private:
  World& world_;
  const Spec& spec_;
  std::vector<Numbers> numbers_;  // of inputs and kept values
  std::vector<ValueId> drawn_;
  bool positive_;
  ValueId v_ = 0;  // changed last
  Numbers kept_;
};

// Choices of the program that come out the same way for all elements: nothing is seen of what it
// does otherwise.
int one_sided(const Spec& spec, const std::vector<Sample>& values) {
  int count = 0;
  for (ValueId v = 0; v < spec.nodes.size(); ++v) {
    const Node& n = spec.nodes[v];
    if (n.form != Form::Pointwise) continue;
    const Sample& r = values[v];
    auto one_way = [&](auto holds) {
      int yes = 0;
      for (int i = 0; i < r.n; ++i) yes += holds(i);
      return yes == 0 || yes == r.n;
    };
    if (r.dims.dtype == DType::Bool) count += one_way([&](int i) { return r.p[i] != 0; });
    const Sample& a = values[n.arg[0]];
    if (a.n != r.n) continue;
    if (decides_by_sign(n.kind)) count += one_way([&](int i) { return a.x[i] > 0; });
    if (is_extremum(n.kind)) count += one_way([&](int i) { return r.x[i] == a.x[i]; });
  }
  return count;
}

// Values for one draw of the inputs, redrawn element by element until everything is defined.
std::optional<std::vector<Sample>> defined_values(World& world, const Spec& spec, bool positive,
                                                  uint64_t attempt, int64_t& patience,
                                                  SampleStore& store,
                                                  const std::function<bool()>& stopped) {
  Drawn inputs(world, spec, positive, attempt);
  Rng rng(derive_key(positive ? 11 : 7, attempt));
  int64_t undefined = 0;
  SampleStore trial;
  inputs.evaluate(trial, undefined);
  if (undefined == INT64_MAX) return std::nullopt;
  while (undefined != 0 && patience > 0 && !inputs.empty()) {
    if (stopped && stopped()) return std::nullopt;
    patience -= int64_t(spec.nodes.size());
    int64_t now = 0;
    trial.clear();
    inputs.change(rng);
    inputs.evaluate(trial, now);
    if (now <= undefined)
      undefined = now;
    else
      inputs.undo();
  }
  if (undefined != 0) return std::nullopt;
  return inputs.evaluate(store, undefined);
}

}  // namespace

std::optional<std::vector<Sample>> evaluate(World& world, const Spec& spec, SampleStore& store,
                                            Inputs kind, uint64_t key, int64_t patience,
                                            const std::function<bool()>& stopped) {
  constexpr uint64_t kAttempts = 24;
  world.set_lenient(true);
  if (kind != Inputs::Random) {
    Drawn wild(world, spec, spec.with_roots, key);
    wild.make(kind, key);
    int64_t undefined = 0;
    std::vector<Sample> values = wild.evaluate(store, undefined);
    if (undefined == INT64_MAX) return std::nullopt;
    return values;
  }
  std::optional<std::vector<Sample>> best;
  int fewest = INT32_MAX;
  // Roots and logarithms want positive inputs.
  for (bool positive : {spec.with_roots, !spec.with_roots}) {
    for (uint64_t attempt = 0; attempt < (spec.with_order ? kAttempts : 1); ++attempt) {
      std::optional<std::vector<Sample>> values =
          defined_values(world, spec, positive, attempt, patience, store, stopped);
      if (!values) break;
      const int count = spec.with_order ? one_sided(spec, *values) : 0;
      if (count < fewest) {
        fewest = count;
        best = std::move(values);
      }
      if (fewest == 0 || (stopped && stopped())) break;
    }
    if (best && (fewest == 0 || !spec.with_roots)) break;
  }
  world.set_lenient(false);
  return best;
}

}  // namespace tessera::synth
