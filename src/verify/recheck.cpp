#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "base/thread_pool.h"
#include "ir/text.h"
#include "ir/validate.h"
#include "verify/all_sizes.h"
#include "verify/any_functions.h"
#include "verify/bitwise.h"
#include "verify/composition.h"
#include "verify/decisions.h"
#include "verify/field_test.h"
#include "verify/funnel.h"
#include "verify/integers.h"
#include "verify/interface.h"
#include "verify/numeric_gate.h"
#include "verify/regions.h"
#include "verify/symmetry.h"

namespace tessera {
namespace {

using Refusal = std::optional<std::string>;  // why a certificate is not believed

// What error bounds of the same draws differ by, in powers of two: the primes are drawn, too.
constexpr double kPrimes = 2;

// Of "name f32[4,4]", or without a name.
std::string type_in(const std::string& described) {
  return described.substr(described.rfind(' ') + 1);
}

class Rechecking {
 public:
  Rechecking(const Certificate& c, const Graph& spec, const Graph& candidate,
             const VerifyOptions& options)
      : c_(c), spec_(spec), candidate_(candidate), options_(options) {
    if (options.threads != 1) threads_.emplace(options.threads);
  }

  Refusal run() {
    Refusal why = is_no_match();
    if (!why) why = read_parts();
    if (!why) why = read_between();
    for (size_t b = 0; !why && b < c_.bindings.size(); b++) why = covers(b);
    if (!why) why = draws_all_parts();
    for (size_t i = 0; !why && i < c_.draws.size(); i++) {
      if (options_.cancel != nullptr && options_.cancel->load()) return "cancelled by the caller";
      why = replay(c_.draws[i], "draw " + std::to_string(i));
    }
    return why;
  }

 private:
  // About other programs, or too weak.
  Refusal is_no_match() const {
    if (structural_hash(spec_) != c_.spec_hash)
      return "the certificate is about another original (its hash differs)";
    if (structural_hash(candidate_) != c_.candidate_hash)
      return "the certificate is about another rewrite (its hash differs)";
    if (auto d = interface_difference(spec_, candidate_)) return d->what;
    if (c_.bindings.empty()) return "the certificate records no draw";
    if (!c_.proved() && !options_.accept_tested)
      return "the certificate says that the programs were tested, not proved";
    if (c_.proved() && !(c_.error_log2 <= options_.error_log2))
      return "the certificate's error bound 2^" + decimals(c_.error_log2, 1) + " is too weak";
    if (!(c_.error_log2 >= kCertain)) return "its error bound is less than any proof has";
    if (c_.all_sizes.empty()) return std::nullopt;
    if (c_.level == Accuracy::Bitwise && !is_integer_program(spec_))
      return "what it says of all sizes is proved of numbers, not of bits";
    const AllSizes all = equal_for_all_sizes(spec_, candidate_, c_.seed);
    if (!all.proved || all.what != c_.all_sizes)
      return "it is not proved for all sizes: " + all.what;
    return std::nullopt;
  }
  Refusal read_parts() {
    for (const CertificatePart& p : c_.parts) {
      const auto part = ProofPart::parse(p.text);
      if (!part || p.binding < 0 || p.binding >= int(c_.bindings.size()))
        return "it does not say what part " + std::to_string(parts_.size()) + " is";
      parts_.push_back(*part);
    }
    return std::nullopt;
  }
  Refusal read_between() {
    if (c_.between.empty()) return std::nullopt;
    try {
      between_ = parse(c_.between);
      validate(*between_);
    } catch (const Error& e) {
      return "the program between is none: " + std::string(e.what());
    }
    if (auto d = interface_difference(spec_, *between_)) return d->what;
    return std::nullopt;
  }

  struct Pair {
    Graph a, b;
  };
  // The two programs of a step; there is a second one where there is a program between.
  Pair step(bool second, const Binding& binding) const {
    const Graph& from = second ? *between_ : spec_;
    const Graph& to = between_ && !second ? *between_ : candidate_;
    return {bind_symbols(from, binding), bind_symbols(to, binding)};
  }
  // Draws of the whole, or of parts that make it up.
  Refusal covers(size_t binding) const {
    const bool whole = std::ranges::any_of(
        c_.draws, [&](const FieldDraw& d) { return d.part < 0 && d.binding == int(binding); });
    if (whole && between_) return "it has draws of wholes, and a program between";
    for (int second = 0; !whole && second <= int(between_.has_value()); second++) {
      std::vector<ProofPart> own;
      for (size_t i = 0; i < parts_.size(); i++)
        if (c_.parts[i].binding == int(binding) && c_.parts[i].second == bool(second))
          own.push_back(parts_[i]);
      const Pair programs = step(second, c_.bindings[binding]);
      const std::string what = missing_in(own, programs.a, programs.b);
      if (own.empty() && !what.empty())
        return "it records no draw of binding " + std::to_string(binding);
      if (!what.empty()) return "its parts prove too little: " + what;
    }
    return std::nullopt;
  }
  Refusal draws_all_parts() const {
    for (size_t i = 0; i < parts_.size(); i++)
      if (std::ranges::none_of(c_.draws, [&](const FieldDraw& d) {
            return d.part == int(i) && d.binding == c_.parts[i].binding;
          }))
        return "it records no draw of part " + std::to_string(i);
    return std::nullopt;
  }

  Refusal replay(const FieldDraw& d, const std::string& which) {
    if (d.binding < 0 || d.binding >= int(c_.bindings.size())) return which + " names no binding";
    const bool second =
        d.part >= 0 && d.part < int(parts_.size()) && c_.parts[size_t(d.part)].second;
    if (second && !between_) return which + " needs a program between";
    Pair p = step(second, c_.bindings[size_t(d.binding)]);
    if (Refusal why = take_tiles(p)) return why;
    if (d.part < -1 || d.part >= int(parts_.size())) return which + " names no part";
    const std::string no_part = which + ": the programs have no such part";
    if (!cut(d, true, p)) return no_part;
    if (d.field == "all") {
      const auto test = exhaust(p.a, p.b);
      return test && !test->counterexample ? Refusal() : which + ": not equal at all values";
    }
    if (d.field == "exact") {
      const IntegerTest test = replay_integers(p.a, p.b, d);
      return test.counterexample ? which + ": the programs differ\n" + test.counterexample->str()
                                 : Refusal();
    }
    if (d.field == "laws") return replay_laws(p, d.seed, which);
    if (d.field == "terms")
      return compare_terms(p.a, p.b, d.seed, pool()).equal ? Refusal()
                                                           : which + ": the programs differ";
    const auto field = field_named(d.field);
    if (!field) return which + " names an unknown field";
    if (field->signs == Signs::Unknown)
      for (Graph* g : {&p.a, &p.b}) {
        auto abstracted = abstract_decisions(*g);
        if (auto* why = std::get_if<NotAbstracted>(&abstracted)) return which + ": " + why->why;
        *g = std::move(std::get<Graph>(abstracted));
      }
    if (!cut(d, false, p)) return no_part;
    return replay_field(p, d, *field, which);
  }
  Refusal take_tiles(Pair& p) const {
    if (c_.tiles.empty()) return std::nullopt;
    const Symmetry symmetry({&p.a, &p.b});
    const auto kept = symmetry.first(c_.tiles);
    auto tiles = kept ? symmetry.restrict_both(*kept) : std::nullopt;
    if (!tiles) return "the programs have other tiles than it says";
    if (!symmetry.are_enough(c_.tiles)) return "too few tiles for the conclusion";
    p = {std::move(tiles->first), std::move(tiles->second)};
    return std::nullopt;
  }
  // Leaves of two programs the part that a draw is of, if it is one of regions, or is not.
  bool cut(const FieldDraw& d, bool regions, Pair& p) const {
    if (d.part < 0 || parts_[size_t(d.part)].tiles.has_value() != regions) return true;
    const ProofPart& part = parts_[size_t(d.part)];
    auto programs = regions ? region_programs(part, p.a, p.b) : programs_of(part, p.a, p.b);
    if (programs) p = {std::move(programs->spec), std::move(programs->candidate)};
    return programs.has_value();
  }
  Refusal replay_laws(const Pair& p, uint64_t seed, const std::string& which) const {
    SecondOpinionOptions how;
    how.proof = true;
    how.seed = seed;
    how.z3 = options_.z3;
    how.cancel = options_.cancel;
    const SecondOpinion opinion = second_opinion(p.a, p.b, how);
    return opinion.opinion == Opinion::Agrees ? Refusal() : which + ": " + opinion.str();
  }
  Refusal replay_field(const Pair& p, const FieldDraw& d, const NamedField& field,
                       const std::string& which) {
    Reference reference(p.a, pool());
    FieldDrawRequest request{field.size, d.seed, d.exponent_bound, d.redraws};
    request.signs = field.signs;
    FieldDrawResult r = field_draw(reference, p.b, request);
    if (!r.unsupported.empty()) return which + ": " + r.unsupported;
    if (!r.equal) return which + ": the programs differ";
    r.record.binding = d.binding;
    r.record.part = d.part;
    if (!(r.record == d)) return which + " gives other figures than the certificate says";
    return std::nullopt;
  }

  ThreadPool* pool() { return threads_ ? &*threads_ : nullptr; }

  const Certificate& c_;
  const Graph &spec_, &candidate_;
  const VerifyOptions& options_;
  std::vector<ProofPart> parts_;
  std::optional<Graph> between_;
  std::optional<ThreadPool> threads_;
};

// Names may be others: a program that is printed has some for all its values.
bool have_same_types(const std::vector<std::string>& a, const std::vector<std::string>& b) {
  return std::ranges::equal(a, b, {}, type_in, type_in);
}

// Claims of a certificate that a fresh one does not make.
Refusal says_more(const Certificate& c, const Certificate& fresh) {
  if (!have_same_types(c.inputs, fresh.inputs) || !have_same_types(c.outputs, fresh.outputs))
    return "the programs' arguments or results are of other types than it says";
  // Regions may be others each time, or there may be none.
  const bool whole = c.coverage == kWhole && fresh.coverage.starts_with(kInRegions);
  if (c.coverage != fresh.coverage && !whole && !c.coverage.starts_with(kInRegions))
    return "what was compared is " + fresh.coverage;
  if (c.error_log2 < fresh.error_log2 - kPrimes)
    return "its error bound is 2^" + decimals(fresh.error_log2, 1);
  // What is taken for granted, and why nothing was proved, depends on what is drawn.
  const auto stem = [](const std::string& basis) { return basis.substr(0, basis.find(" (")); };
  const bool less = fresh.basis == "proved" && c.basis.starts_with("proved, assuming that ");
  if (!less && stem(c.basis) != stem(fresh.basis)) return "its basis is: " + fresh.basis;
  for (const std::string& text : fresh.assumptions)
    if (!text.starts_with(kLargerDomain) && std::ranges::count(c.assumptions, text) == 0)
      return "it does not say: " + text;
  return std::nullopt;
}

// Recorded seeds could have been chosen; fresh ones could not.
Recheck verified_again(const Certificate& c, const Graph& spec, const Graph& candidate,
                       VerifyOptions options) {
  options.seed = options.seed ? *options.seed : seed_from_system();
  options.level = c.level;
  options.accept_tested = !c.proved();
  options.error_log2 = std::min(options.error_log2, c.error_log2 + kPrimes);
  std::optional<Graph> between;
  if (!c.between.empty()) between = parse(c.between);
  const Verdict v = Verifier(spec, options).verify(candidate, between ? &*between : nullptr);
  if (!v.equal()) return {false, "a fresh verification says: " + v.str()};
  if (const Refusal why = says_more(c, v.certificate())) return {false, *why};
  return {true, std::to_string(c.draws.size()) + " recorded draws replayed, and " +
                    std::to_string(v.certificate().draws.size()) + " fresh ones from seed " +
                    std::to_string(*options.seed) + " agree"};
}

}  // namespace

Recheck recheck(const Certificate& c, const Graph& spec, const Graph& candidate,
                const VerifyOptions& options) {
  const auto programs = with_any_functions(spec, candidate);
  const bool noted = std::ranges::find(c.notes, kAnyFunctions) != c.notes.end();
  if ((!programs || !noted) && (calls_any_functions(spec) || calls_any_functions(candidate)))
    return {false, "it says nothing of operators that are not looked into"};
  Certificate replayed = c;
  const bool cut = programs && structural_hash(spec) == c.spec_hash &&
                   structural_hash(candidate) == c.candidate_hash;
  const Graph &a = cut ? programs->spec : spec, &b = cut ? programs->candidate : candidate;
  if (cut) {
    replayed.spec_hash = structural_hash(a);
    replayed.candidate_hash = structural_hash(b);
  }
  if (const Refusal why = Rechecking(replayed, a, b, options).run()) return {false, *why};
  return verified_again(c, spec, candidate, options);
}

}  // namespace tessera
