// What an original makes of the inputs it is tested at: field draws, and runs in f64 and in its own
// dtype. Computed once and shared by all rewrites that are compared with it.
#pragma once
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <variant>
#include <vector>

#include "base/thread_pool.h"
#include "eval/eval.h"
#include "verify/decisions.h"
#include "verify/inputs.h"

namespace tessera {

class Reference {
 public:
  // `spec` has static shapes and outlives this; `pool` may be null. Not to be shared by threads.
  Reference(const Graph& spec, ThreadPool* pool) : spec_(spec), pool_(pool) {}
  Reference(const Reference&) = delete;
  Reference& operator=(const Reference&) = delete;

  // Inputs at which the original is defined, if redrawing found any, and its outputs there.
  struct Draw {
    std::vector<FieldArray> inputs;
    FieldResult result;
    uint64_t epoch = 0;  // how often bounded exponents were drawn
  };
  struct DrawKey {
    FieldSize field = FieldSize::Bits61;
    uint64_t seed = 0, exponent_bound = 0;
    int redraws = 0;
    bool ties = false;
    Signs signs = Signs::Character;
    std::vector<Components> components;
    std::vector<IntRange> ranges;  // of integer inputs
    std::pair<size_t, std::array<uint64_t, 3>> shift;
    auto order() const {
      return std::tie(field, seed, exponent_bound, redraws, ties, signs, components, ranges, shift);
    }
    friend bool operator<(const DrawKey& a, const DrawKey& b) { return a.order() < b.order(); }
  };

  // How far results move when inputs move by a few units in the last place.
  using Sensitivity = std::vector<std::vector<double>>;
  // A family of real inputs; members are filled in when first asked for.
  struct Run {
    std::vector<NDArray> inputs;
    std::vector<WithMagnitude> exact;
    std::vector<NDArray> native;
    Sensitivity moved;
  };
  struct RunKey {
    std::string family;
    uint64_t seed = 0;
    std::vector<IntRange> ranges;
    auto order() const { return std::tie(family, seed, ranges); }
    friend bool operator<(const RunKey& a, const RunKey& b) { return a.order() < b.order(); }
  };

  // The entry of a key, empty when new. References stay valid until the next call of either.
  Draw& draw(const DrawKey& key) { return entry(draws_, key); }
  Run& run(const RunKey& key) { return entry(runs_, key); }

  // The original with its decisions as unknowns (verify/decisions.h).
  struct Abstracted {
    std::variant<Graph, NotAbstracted> program;
    std::unique_ptr<Reference> reference;  // of the program, if there is one
  };
  const Abstracted& abstracted() {
    if (!abstracted_) {
      abstracted_.emplace(Abstracted{abstract_decisions(spec_), nullptr});
      if (const Graph* g = std::get_if<Graph>(&abstracted_->program))
        abstracted_->reference = std::make_unique<Reference>(*g, pool_);
    }
    return *abstracted_;
  }

  std::optional<std::string> rounding_errors;  // see made_of_rounding

  const Graph& spec() const { return spec_; }
  ThreadPool* pool() const { return pool_; }

 private:
  static constexpr size_t kMaxEntries = 256;
  template <class Map, class Key>
  static typename Map::mapped_type& entry(Map& map, const Key& key) {
    if (map.size() >= kMaxEntries && map.count(key) == 0) map.clear();
    return map[key];
  }

  const Graph& spec_;
  ThreadPool* pool_;
  std::map<DrawKey, Draw> draws_;
  std::map<RunKey, Run> runs_;
  std::optional<Abstracted> abstracted_;
};

}  // namespace tessera
