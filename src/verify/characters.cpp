#include "verify/characters.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "eval/eval.h"
#include "eval/field.h"
#include "verify/symmetry.h"

namespace tessera {
namespace {

constexpr size_t kMostGood = 48;  // draws at which no radicand is 0: a bit each
constexpr uint64_t kMostTries = 256;
constexpr size_t kMostCharacters = size_t(1) << 14;
constexpr double kTooMany = 1e9;

double bools_in(const Graph& g) {
  double n = 0;
  for (TensorId t : g.inputs())
    if (g.type(t).dtype == DType::Bool) n += double(num_elements(g.type(t).shape));
  return n;
}

// A character's operand at several draws.
struct Seen {
  uint64_t values = 0;  // a hash of all
  uint64_t bits = 0;    // at which good draws it is no residue
  bool is_root = false, is_zero = false;
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
  size_t good = 0, draws = 0;
  bool has_roots = true;
  for (; good < (has_roots ? kMostGood : 8) && draws < kMostTries; draws++) {
    const FieldModel model(FieldSize::Bits61, seed + draws, signs);
    FieldCharacters met;
    FieldOptions options;
    options.characters = &met;
    const std::vector<FieldArray> inputs = draw_inputs(programs[0], model, components);
    bool fits = true;
    for (const Graph& g : programs) fits = fits && eval_field(g, model, inputs, options).ok();
    if (draws == 0) seen.resize(met.size());
    if (fits && met.empty() && seen.empty()) break;
    // What sets are made of may depend on the numbers.
    if (!fits || met.size() != seen.size() || met.size() > kMostCharacters)
      return {kTooMany, kTooMany, kTooMany, false};
    has_roots = std::ranges::any_of(met, &FieldCharacter::is_root);
    const bool zero =
        std::ranges::any_of(met, [](const FieldCharacter& c) { return c.is_root && c.value == 0; });
    for (size_t i = 0; i < met.size(); i++) {
      Seen& s = seen[i];
      s.is_root = met[i].is_root;
      s.is_zero = s.is_zero || met[i].value == 0;
      s.values = derive_key(s.values, met[i].word);
      if (!zero) s.bits |= uint64_t(met[i].value < 0) << good;
    }
    good += !zero;
  }
  std::set<std::pair<uint64_t, bool>> values;
  std::vector<uint64_t> vectors{(uint64_t(1) << good) - 1};
  for (const Seen& s : seen) {
    // Zeros do not tell one from another.
    if (!s.is_zero && !values.insert({s.values, s.is_root}).second) continue;
    if (s.is_root)
      vectors.push_back(s.bits);
    else
      found.signs++;
  }
  found.signs += bools_in(programs[0]);
  found.roots = double(vectors.size() - 1);
  const size_t few = good > 16 ? good - 16 : 1;
  found.told = found.roots == 0 || vectors.size() <= few;
  // Of many so many in a row are told; where they depend on one another, all are taken to.
  for (size_t from = 1; !found.told && from < vectors.size(); from += few) {
    const auto begin = vectors.begin() + int64_t(from);
    const std::vector<uint64_t> some(begin, begin + int64_t(std::min(few, vectors.size() - from)));
    if (rank_of(some) < some.size()) return {found.signs, found.roots, found.roots, true};
  }
  found.dependent = found.told ? double(vectors.size() - rank_of(vectors)) : found.roots;
  if (found.roots == 0) found.dependent = 0;
  return found;
}

}  // namespace tessera
