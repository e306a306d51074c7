// Proofs in parts: values that both programs compute are proved equal one after another and then
// replaced, in both, by one fresh input (a cut), so that what follows is tested as a function of
// it. Equality for every value of the cut implies equality at the value it stands for; a difference
// over a cut says nothing. What keeps this sound is listed in docs/verifier.md.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/thread_pool.h"
#include "ir/graph.h"
#include "verify/certificate.h"

namespace tessera {

// A value of the original and one of the rewrite that hold the same elements.
struct ValuePair {
  TensorId spec, candidate;
  // The rewrite's elements in row-major order are those of the original with its axes permuted
  // like this; empty: as they are.
  std::vector<int> axes;
  friend bool operator==(const ValuePair&, const ValuePair&) = default;
};

// The claim that the target's two values are equal as functions of the inputs and the cuts.
struct ProofPart {
  ValuePair target;
  std::vector<ValuePair> cuts;
  // Of a region (verify/regions.h): the numbers of its tiles that were tested, empty for all.
  std::optional<std::vector<int64_t>> tiles = {};
  // "target=12:9 cuts=5:4,8:3@1.0", " tiles=2,4"; parse(p.str()) == p, nothing for other text.
  std::string str() const;
  static std::optional<ProofPart> parse(std::string_view text);
  friend bool operator==(const ProofPart&, const ProofPart&) = default;
};

// Pairs of kernel-level values that look equal in f64 at random inputs, in the original's order:
// what is worth proving. Both graphs have static shapes and the same interface.
std::vector<ValuePair> values_that_look_equal(const Graph& spec, const Graph& candidate,
                                              uint64_t seed, ThreadPool* pool);

// The target's definition in each program over its inputs and one further input per cut value. A
// cut that can only be non-negative is the square of its input (or `nonnegative` of it). Nothing if
// the part does not fit.
struct PartPrograms {
  Graph spec, candidate;
};
std::optional<PartPrograms> programs_of(const ProofPart& part, const Graph& spec,
                                        const Graph& candidate);
// The same with logarithms as they are, and without the inputs that neither definition needs;
// `cuts` learns which input of both stands for which cut.
std::optional<PartPrograms> definitions_of(const ProofPart& part, const Graph& spec,
                                           const Graph& candidate,
                                           std::vector<std::pair<size_t, ValuePair>>* cuts,
                                           OpKind nonnegative = OpKind::Sqr);

// Of the allowed pairs those nearest to the target, at which both definitions stop.
std::vector<ValuePair> frontier(const Graph& spec, const Graph& candidate, const ValuePair& target,
                                std::vector<ValuePair> allowed);

// Proves the outputs in parts, `equal` deciding single ones; the parts needed, each after those
// whose targets it cuts at. Nothing if that fails or takes more than `max_tests` questions.
std::optional<std::vector<ProofPart>> compose(const Graph& spec, const Graph& candidate,
                                              const std::vector<ValuePair>& pairs, int max_tests,
                                              const std::function<bool(const ProofPart&)>& equal);

// Adds proofs of parts to the certificate of the whole, whose error is the sum of theirs; `parts`
// is what they are called.
void add_proofs(Certificate& whole, int binding,
                const std::vector<std::pair<ProofPart, Certificate>>& proofs,
                const std::string& parts);

// Whether the parts, each true, prove the outputs equal: cuts are targets of earlier parts or made
// alike of them (verify/congruence.h), and so is every output. Empty if so, else what is missing.
std::string missing_in(const std::vector<ProofPart>& parts, const Graph& spec,
                       const Graph& candidate);

}  // namespace tessera
