#include "verify/characters.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "eval/demand.h"
#include "eval/eval.h"
#include "eval/field.h"
#include "ir/walk.h"
#include "verify/symmetry.h"

namespace tessera {
namespace {

constexpr size_t kMostGood = 64;  // draws at which no radicand is 0: a bit each
constexpr uint64_t kMostTries = 4096, kFewTries = 128;
constexpr size_t kMostCharacters = size_t(1) << 14;

bool asks(const Graph& g) {
  return any_op(
      g,
      [](const Graph& at, const Op& op) {
        return is_root(at, op) || decides(op) || has(op.kind, algebra::Jumps) ||
               op.kind == OpKind::Gelu || op.kind == OpKind::Power || op.kind == OpKind::Atan2;
      });
}

double bools_in(const Graph& g) {
  double n = 0;
  for (TensorId t : g.inputs())
    if (g.type(t).dtype == DType::Bool) n += double(num_elements(g.type(t).shape));
  return n;
}

// A character's operand at several draws of one prime.
struct Seen {
  uint64_t first = 0, values = 0;  // at the first draw, and a hash of all
  uint64_t bits = 0;               // at which good draws it is no residue
  bool varies = false, is_root = false;
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

Characters characters(const Graph& a, const Graph& b, Signs signs, uint64_t seed) {
  Characters found;
  if (bools_in(a) == 0 && !asks(a) && !asks(b)) return found;
  const Symmetry symmetry({&a, &b});
  const auto kept = symmetry.choose(0, 1, Rng(seed));
  const auto tiles = kept ? symmetry.restrict_both(*kept) : std::nullopt;
  const Graph programs[] = {tiles ? tiles->first : a, tiles ? tiles->second : b};
  std::vector<Components> components(a.inputs().size(), 1);
  for (const Graph& g : programs) {
    const std::vector<Components> needed = needed_components(g);
    for (size_t i = 0; i < needed.size(); i++) components[i] |= needed[i];
  }
  std::vector<Seen> seen;
  size_t good = 0, draws = 0, most = 0;
  uint64_t prime = 0, tries = kFewTries;
  bool has_roots = true;
  for (uint64_t n = 0; n < tries && good < (has_roots ? kMostGood : 8); n++) {
    const FieldModel model(FieldSize::Bits31, seed + n, signs);
    if (prime == 0) prime = model.prime(0);
    if (model.prime(0) != prime) continue;
    FieldCharacters met;
    FieldOptions options;
    options.characters = &met;
    const std::vector<FieldArray> inputs = draw_inputs(programs[0], model, components);
    for (const Graph& g : programs)
      if (!eval_field(g, model, inputs, options).ok()) return found;
    // What sets are made of may depend on the numbers.
    most = std::max(most, met.size());
    if (draws++ == 0) seen.resize(met.size());
    if (met.size() != seen.size() || most > kMostCharacters)
      return {double(most), double(most), double(most), false};
    bool zero = false;
    for (const FieldCharacter& c : met) zero = zero || (c.is_root && c.value == 0);
    for (size_t i = 0; i < met.size(); i++) {
      Seen& s = seen[i];
      if (draws == 1) s.first = met[i].word, s.is_root = met[i].is_root;
      s.varies = s.varies || s.first != met[i].word;
      s.values = derive_key(s.values, met[i].word);
      if (!zero) s.bits |= uint64_t(met[i].value < 0) << good;
    }
    good += !zero;
    has_roots = std::ranges::any_of(met, [](const FieldCharacter& c) { return c.is_root; });
    if (has_roots) tries = kMostTries;
  }
  const uint64_t all = good == 64 ? ~uint64_t(0) : (uint64_t(1) << good) - 1;
  const uint64_t two = Modulus<uint32_t>(prime).from_int(2);  // whose root gelu has
  std::set<std::pair<uint64_t, bool>> values;
  std::vector<uint64_t> vectors{all};
  for (const Seen& s : seen) {
    if ((s.is_root && !s.varies && s.first == two) || !values.insert({s.values, s.is_root}).second)
      continue;
    if (s.is_root)
      vectors.push_back(s.varies ? s.bits : 0);
    else
      found.signs++;
  }
  found.signs += bools_in(programs[0]);
  found.roots = double(vectors.size() - 1);
  found.told = vectors.size() + 16 <= good || vectors.size() == 1;
  found.dependent = found.told ? double(vectors.size() - rank_of(vectors)) : found.roots;
  if (vectors.size() == 1) found.dependent = 0;
  return found;
}

}  // namespace tessera
