#include "verify/filter.h"

#include <algorithm>
#include <map>
#include <mutex>

#include "base/rng.h"
#include "base/thread_pool.h"
#include "eval/eval.h"
#include "verify/any_functions.h"
#include "verify/inputs.h"
#include "verify/interface.h"
#include "verify/symmetry.h"

namespace tessera {
namespace {

// Above this cost of an evaluation only representative tiles are evaluated.
constexpr double kFilterCost = 2e6;

}  // namespace

struct Filter::State {
  Graph spec;
  FieldModel model;
  ThreadPool pool;
  // What the whole spec, or representatives of it, make of one draw, by structural hash.
  struct Original {
    Graph graph;
    std::vector<Components> components;
    std::vector<FieldArray> inputs;
    FieldResult outputs;
  };
  std::mutex mutex;  // of originals
  std::map<uint64_t, std::shared_ptr<const Original>> originals;

  State(Graph g, uint64_t seed, int threads)
      : spec(std::move(g)), model(FieldSize::Bits31, seed), pool(threads) {}
  std::shared_ptr<const Original> original(const Graph& g);
  bool may_equal(const Graph& whole, const Graph& candidate);
};

std::shared_ptr<const Filter::State::Original> Filter::State::original(const Graph& g) {
  std::lock_guard lock(mutex);
  auto& known = originals[structural_hash(g)];
  if (known && known->graph == g) return known;
  auto o = std::make_shared<Original>();
  o->graph = g;
  o->components = needed_components(g);
  o->inputs = draw_inputs(g, model, o->components, 2, &pool);
  const std::vector<IntRange> ranges = integer_ranges(g, g, {-8, 8});
  Rng rng(model.seed() ^ 0x5bd1e995u);
  for (size_t k = 0; k < o->inputs.size(); k++)
    for (int64_t& x : o->inputs[k].ints) x = rng.between(ranges[k].low, ranges[k].high);
  FieldOptions options;
  options.pool = &pool;
  options.roots_only = true;
  redraw_inputs(g, model, o->inputs, 64, options);
  o->outputs = eval_field(g, model, o->inputs, options);
  known = std::move(o);
  return known;
}

Filter::Filter(const Graph& spec, uint64_t seed, int threads)
    : state_(std::make_unique<State>(spec, seed, threads)) {}
Filter::~Filter() = default;
Filter::Filter(Filter&&) noexcept = default;
Filter& Filter::operator=(Filter&&) noexcept = default;

bool Filter::may_equal(const Graph& candidate) const {
  State& s = *state_;
  if (interface_difference(s.spec, candidate)) return false;
  if (const auto cut = with_any_functions(s.spec, candidate))
    return s.may_equal(cut->spec, cut->candidate);
  return s.may_equal(s.spec, candidate);
}

bool Filter::State::may_equal(const Graph& whole, const Graph& candidate) {
  std::optional<Graph> small_spec, small_candidate;
  if (std::max(evaluation_cost(whole), evaluation_cost(candidate)) > kFilterCost) {
    const Symmetry symmetry({&whole, &candidate});
    if (const auto kept = symmetry.choose(kFilterCost, 2, Rng(model.seed()))) {
      small_spec = symmetry.restrict(0, *kept);
      small_candidate = symmetry.restrict(1, *kept);
    }
  }
  const bool small = small_spec && small_candidate;
  const Graph& tested = small ? *small_candidate : candidate;
  const auto original = this->original(small ? *small_spec : whole);
  if (!original->outputs.ok()) return true;
  const std::vector<Components> needed = needed_components(tested);
  for (size_t k = 0; k < needed.size(); ++k)
    if (needed[k] & ~original->components[k])
      return true;  // reads what was not drawn: not for a filter
  // A few blocks of the last kernels tell as much as all of them, where no axis is special.
  FieldOptions options;
  options.sample_blocks = 3;
  const FieldResult c = eval_field(tested, model, original->inputs, options);
  if (!c.ok()) return true;
  for (size_t k = 0; k < c.outputs.size(); k++)
    if (compare(original->outputs.outputs[k], c.outputs[k]).different > 0) return false;
  return true;
}

}  // namespace tessera
