#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "base/thread_pool.h"
#include "ir/text.h"
#include "ir/validate.h"
#include "verify/all_sizes.h"
#include "verify/bitwise.h"
#include "verify/composition.h"
#include "verify/decisions.h"
#include "verify/field_test.h"
#include "verify/funnel.h"
#include "verify/integers.h"
#include "verify/interface.h"
#include "verify/regions.h"
#include "verify/static_test.h"
#include "verify/symmetry.h"

namespace tessera {

Recheck recheck(const Certificate& c, const Graph& spec, const Graph& candidate,
                const VerifyOptions& options) {
  if (structural_hash(spec) != c.spec_hash)
    return {false, "the certificate is about another original (its hash differs)"};
  if (structural_hash(candidate) != c.candidate_hash)
    return {false, "the certificate is about another rewrite (its hash differs)"};
  if (auto d = interface_difference(spec, candidate)) return {false, d->what};
  if (c.bindings.empty()) return {false, "the certificate records no draw"};
  if (!c.proved() && !options.accept_tested)
    return {false, "the certificate says that the programs were tested, not proved"};
  if (c.proved() && c.error_log2 > options.error_log2)
    return {false, "the certificate's error bound 2^" + decimals(c.error_log2, 1) + " is too weak"};
  if (!c.all_sizes.empty() && c.level == Accuracy::Bitwise && !is_integer_program(spec))
    return {false, "what it says of all sizes is proved of numbers, not of bits"};
  if (!c.all_sizes.empty()) {
    const AllSizes all = equal_for_all_sizes(spec, candidate, c.seed);
    if (!all.proved || all.what != c.all_sizes)
      return {false, "it is not proved for all sizes: " + all.what};
  }
  std::vector<ProofPart> parts;
  for (const CertificatePart& p : c.parts) {
    const auto part = ProofPart::parse(p.text);
    if (!part || p.binding < 0 || p.binding >= int(c.bindings.size()))
      return {false, "it does not say what part " + std::to_string(parts.size()) + " is"};
    parts.push_back(*part);
  }
  std::optional<Graph> between;
  if (!c.between.empty()) {
    try {
      between = parse(c.between);
      validate(*between);
    } catch (const Error& e) {
      return {false, "the program between is none: " + std::string(e.what())};
    }
    if (auto d = interface_difference(spec, *between)) return {false, d->what};
  }
  // The two programs of a step; there is a second one where there is a program between.
  const auto step = [&](bool second, const Binding& binding) {
    const Graph& from = second ? *between : spec;
    const Graph& to = between && !second ? *between : candidate;
    return std::pair(bind_symbols(from, binding), bind_symbols(to, binding));
  };
  for (size_t b = 0; b < c.bindings.size(); b++) {
    bool whole = false;
    for (const FieldDraw& d : c.draws) whole = whole || (d.part < 0 && d.binding == int(b));
    if (whole && between) return {false, "it has draws of wholes, and a program between"};
    for (int second = 0; !whole && second <= int(between.has_value()); second++) {
      std::vector<ProofPart> own;
      for (size_t i = 0; i < parts.size(); i++)
        if (c.parts[i].binding == int(b) && c.parts[i].second == bool(second))
          own.push_back(parts[i]);
      const auto [from, to] = step(second, c.bindings[b]);
      const std::string what = missing_in(own, from, to);
      if (own.empty() && !what.empty())
        return {false, "it records no draw of binding " + std::to_string(b)};
      if (!what.empty()) return {false, "its parts prove too little: " + what};
    }
  }
  for (size_t i = 0; i < parts.size(); i++)
    if (std::ranges::none_of(c.draws, [&](const FieldDraw& d) {
          return d.part == int(i) && d.binding == c.parts[i].binding;
        }))
      return {false, "it records no draw of part " + std::to_string(i)};
  std::optional<ThreadPool> threads;
  if (options.threads != 1) threads.emplace(options.threads);
  ThreadPool* pool = threads ? &*threads : nullptr;
  for (size_t i = 0; i < c.draws.size(); i++) {
    if (options.cancel != nullptr && options.cancel->load())
      return {false, "cancelled by the caller"};
    const FieldDraw& d = c.draws[i];
    const std::string which = "draw " + std::to_string(i);
    if (d.binding < 0 || d.binding >= int(c.bindings.size()))
      return {false, which + " names no binding"};
    const bool second = d.part >= 0 && d.part < int(parts.size()) && c.parts[size_t(d.part)].second;
    if (second && !between) return {false, which + " needs a program between"};
    auto [a, b] = step(second, c.bindings[size_t(d.binding)]);
    if (!c.tiles.empty()) {
      const Symmetry symmetry({&a, &b});
      const auto kept = symmetry.first(c.tiles);
      auto small_a = kept ? symmetry.restrict(0, *kept) : std::nullopt;
      auto small_b = kept ? symmetry.restrict(1, *kept) : std::nullopt;
      if (!small_a || !small_b) return {false, "the programs have other tiles than it says"};
      for (size_t k = 0; k < c.tiles.size(); k++)
        if (const AxisClass& axes = symmetry.classes()[k];
            c.tiles[k] < std::min({axes.tiles, axes.most_axes}))
          return {false, "too few tiles for the conclusion"};
      a = std::move(*small_a);
      b = std::move(*small_b);
    }
    if (d.part >= int(parts.size())) return {false, which + " names no part"};
    const auto cut = [&](bool regions) {
      if (d.part < 0 || parts[size_t(d.part)].tiles.has_value() != regions) return true;
      const ProofPart& part = parts[size_t(d.part)];
      auto programs = regions ? region_programs(part, a, b) : programs_of(part, a, b);
      if (!programs) return false;
      a = std::move(programs->spec);
      b = std::move(programs->candidate);
      return true;
    };
    if (!cut(true)) return {false, which + ": the programs have no such part"};
    if (d.field == "all") {
      const auto test = exhaust(a, b);
      if (!test || test->counterexample) return {false, which + ": not equal at all values"};
      continue;
    }
    if (d.field == "exact") {
      IntegerTest test = replay_integers(a, b, d);
      if (test.counterexample)
        return {false, which + ": the programs differ\n" + test.counterexample->str()};
      continue;
    }
    if (d.field == "laws") {
      SecondOpinionOptions how;
      how.proof = true;
      how.seed = d.seed;
      how.z3 = options.z3;
      how.cancel = options.cancel;
      const SecondOpinion opinion = second_opinion(a, b, how);
      if (opinion.opinion != Opinion::Agrees) return {false, which + ": " + opinion.str()};
      continue;
    }
    if (d.field == "terms") {
      const TermTest test = compare_terms(a, b, d.seed, pool);
      if (!test.equal) return {false, which + ": the programs differ"};
      continue;
    }
    const auto field = field_named(d.field);
    if (!field) return {false, which + " names an unknown field"};
    if (field->signs == Signs::Unknown)
      for (Graph* g : {&a, &b}) {
        auto abstracted = abstract_decisions(*g);
        if (auto* why = std::get_if<NotAbstracted>(&abstracted))
          return {false, which + ": " + why->why};
        *g = std::move(std::get<Graph>(abstracted));
      }
    if (!cut(false)) return {false, which + ": the programs have no such part"};
    Reference reference(a, pool);
    FieldDrawRequest request{field->size, d.seed, d.exponent_bound, d.redraws};
    request.signs = field->signs;
    FieldDrawResult r = field_draw(reference, b, request);
    if (!r.unsupported.empty()) return {false, which + ": " + r.unsupported};
    if (!r.equal) return {false, which + ": the programs differ"};
    r.record.binding = d.binding;
    r.record.part = d.part;
    if (!(r.record == d)) return {false, which + " gives other figures than the certificate says"};
  }
  // Recorded seeds could have been chosen; fresh ones could not.
  VerifyOptions fresh = options;
  fresh.seed = options.seed ? *options.seed : seed_from_system();
  fresh.level = c.level;
  fresh.accept_tested = !c.proved();
  const Verdict v = Verifier(spec, fresh).verify(candidate, between ? &*between : nullptr);
  if (!v.equal()) return {false, "a fresh verification says: " + v.str()};
  return {true, std::to_string(c.draws.size()) + " recorded draws replayed, and " +
                    std::to_string(v.certificate().draws.size()) + " fresh ones from seed " +
                    std::to_string(*fresh.seed) + " agree"};
}

}  // namespace tessera
