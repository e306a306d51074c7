#include "verify/roots.h"

#include <algorithm>
#include <set>
#include <vector>

#include "eval/demand.h"
#include "eval/eval.h"
#include "eval/field.h"
#include "ir/walk.h"
#include "verify/symmetry.h"

namespace tessera {
namespace {

constexpr size_t kMostRootDraws = 64;  // a bit each
constexpr size_t kMostRadicands = 1u << 14;

// What roots are taken of, and no more.
Graph only_roots(const Graph& g) {
  std::vector<TensorId> results;
  for (const Op& op : g.ops())
    if (is_root(g, op) || op.kind == OpKind::Gelu ||
        (op.body.valid() && any_op(g.body(op), is_root)))
      for (uint32_t r = 0; r < op.num_results; r++) results.push_back(op.result(r));
  Graph only = g;
  only.set_outputs(results);
  return without_dead_code(only);
}

// A radicand at several draws of one prime.
struct Seen {
  uint64_t first = 0, values = 0;  // at the first draw, and a hash of all
  uint64_t bits = 0;               // at which draws it is no residue
  bool varies = false;
};

// Of vectors over two elements.
size_t rank_of(std::vector<uint64_t> vectors) {
  size_t rank = 0;
  for (size_t i = 0; i < vectors.size(); i++) {
    if (vectors[i] == 0) continue;
    rank++;
    const uint64_t pivot = vectors[i] & -vectors[i];
    for (size_t j = i + 1; j < vectors.size(); j++)
      if (vectors[j] & pivot) vectors[j] ^= vectors[i];
  }
  return rank;
}

}  // namespace

double dependent_roots(const Graph& a, const Graph& b, double together, uint64_t seed) {
  // Those of one element, where all are computed alike.
  const Symmetry symmetry({&a, &b});
  const auto kept = symmetry.choose(0, 1, Rng(seed));
  const auto tiles = kept ? symmetry.restrict_both(*kept) : std::nullopt;
  const Graph programs[] = {only_roots(tiles ? tiles->first : a),
                            only_roots(tiles ? tiles->second : b)};
  std::vector<Components> components(a.inputs().size(), 1);
  for (const Graph& g : programs) {
    const std::vector<Components> needed = needed_components(g);
    for (size_t i = 0; i < needed.size(); i++) components[i] |= needed[i];
  }
  std::vector<Seen> seen;
  size_t draws = 0, wanted = kMostRootDraws;
  uint64_t prime = 0;
  for (; draws < wanted; seed++) {
    const FieldModel model(FieldSize::Bits31, seed);
    if (prime == 0) prime = model.prime(0);
    if (model.prime(0) != prime) continue;
    FieldRadicands met;
    FieldOptions options;
    options.radicands = &met;
    const std::vector<FieldArray> inputs = draw_inputs(programs[0], model, components);
    for (const Graph& g : programs)
      if (!eval_field(g, model, inputs, options).ok()) return together;
    if (met.size() > kMostRadicands) return together;
    seen.resize(met.size());
    for (size_t i = 0; i < met.size(); i++) {
      Seen& s = seen[i];
      if (draws == 0) s.first = met[i].word;
      s.varies = s.varies || s.first != met[i].word;
      s.values = derive_key(s.values, met[i].word);
      s.bits |= uint64_t(!met[i].is_residue) << draws;
    }
    if (draws++ == 0 && met.size() > kMostRadicands / 64) wanted = 48;
  }
  const uint64_t all = draws == 64 ? ~uint64_t(0) : (uint64_t(1) << draws) - 1;
  const uint64_t two = Modulus<uint32_t>(prime).from_int(2);  // whose root gelu has
  std::set<uint64_t> values, patterns;
  std::vector<uint64_t> vectors{all};
  for (const Seen& s : seen) {
    if ((!s.varies && s.first == two) || !values.insert(s.values).second) continue;
    vectors.push_back(s.varies ? s.bits : 0);
    patterns.insert(std::min(s.bits, s.bits ^ all));
  }
  if (vectors.size() + 16 <= draws) return double(vectors.size() - rank_of(vectors));
  const bool pairs = patterns.size() + 1 == vectors.size() && !patterns.contains(0);
  return pairs && together <= 2 ? 0 : together;
}

}  // namespace tessera
