#include "search/patterns/check.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "base/error.h"
#include "base/rng.h"
#include "base/text.h"
#include "base/wall_clock.h"
#include "search/patterns/instantiate.h"
#include "verify/funnel.h"

namespace tessera::patterns {
namespace {

bool holds(const std::vector<Condition>& all, const Values& values, DType dtype) {
  return std::ranges::all_of(
      all, [&](const Condition& c) { return c.holds(values, dtype); });
}

// f32, or the first type that the guards allow.
DType checked_dtype(const Pattern& p) {
  for (DType d : {DType::F32, DType::BF16, DType::F16, DType::F64})
    if (std::ranges::all_of(
            p.when, [&](const Condition& c) { return !c.comparison.empty() || c.holds({}, d); }))
      return d;
  return DType::F32;
}

// The meaning at sizes as a region whose numbers are constants, and what stands for what; with
// `holes`, a sum before each prologue and a SiLU behind.
Graph region_of(const Pattern& p, const Values& sizes, DType dtype, Match& m, bool holes = false) {
  const Graph def = bound_def(p, sizes, dtype);
  m.symbols = sizes;
  Graph g(def.name());
  std::vector<TensorId> map(def.tensors().size());
  size_t input = 0;
  for (const Op& op : def.ops()) {
    if (is_input(op.kind) && p.is_number(input)) {
      m.inputs.push_back({});
      m.numbers.push_back(Rational::parse("0.125").value());
      map[op.result().index] = g.add_const(m.numbers.back(), def.tensor(op.result()).type);
    } else {
      copy_op(def, op, g, map);
      if (is_input(op.kind) && holes && p.has_prologue(input)) {
        const TensorId more =
            g.add_input(def.type(op.result()), def.tensor(op.result()).name + "_more");
        map[op.result().index] = g.add(OpKind::Add, {map[op.result().index], more});
      }
      if (is_input(op.kind)) {
        m.inputs.push_back(map[op.result().index]);
        m.numbers.push_back({});
      }
    }
    if (is_input(op.kind)) input++;
  }
  m.value = map[def.outputs()[0].index];
  g.add_output(holes && p.epilogue ? g.add(OpKind::Silu, {m.value}) : m.value);
  return g;
}

// Sizes for which a body may be used with some setting, small ones first.
class SizeDraws {
 public:
  SizeDraws(const Pattern& p, const Body& b, uint64_t seed, DType dtype)
      : p_(p), b_(b), dtype_(dtype), symbols_(p.symbols()), all_(settings(p)), rng_(seed) {}

  std::optional<Values> next() {
    while (tries_ < kTries) {
      // Small sizes that divide nothing; some that are large only where guards ask for them.
      Values sizes;
      for (const std::string& s : symbols_)
        sizes[s] = tries_ < 200        ? rng_.between(2, 40)
                   : rng_.chance(0.25) ? rng_.between(2, tries_ < 1000 ? 200 : 1200)
                                       : rng_.between(2, 12);
      tries_++;
      if (usable(sizes)) return sizes;
    }
    return std::nullopt;
  }
  // With one symbol beyond twice the threads of a block, or what a loop over vectors takes at
  // once: what is strided is right in the first round only where it is wrong.
  std::optional<Values> with_long(const std::string& symbol) {
    for (int tries = 0; tries < 200; tries++) {
      Values sizes;
      for (const std::string& s : symbols_) sizes[s] = rng_.between(2, 9);
      const std::optional<int64_t> threads = b_.threads.value(sizes);
      sizes[symbol] =
          300 + (b_.threads.factors.empty() ? 0 : 2 * threads.value_or(0)) + rng_.between(0, 30);
      if (usable(sizes)) return sizes;
    }
    return std::nullopt;
  }
  bool allowed(const Values& sizes, const Values& setting) const {
    return holds(b_.when, with(sizes, setting), dtype_);
  }
  const std::vector<Values>& settings_of_pattern() const { return all_; }

  static Values with(Values sizes, const Values& setting) {
    sizes.insert(setting.begin(), setting.end());
    return sizes;
  }

 private:
  bool usable(const Values& sizes) const {
    return holds(p_.when, sizes, dtype_) &&
           std::ranges::any_of(
               all_, [&](const Values& setting) { return allowed(sizes, setting); });
  }

  static constexpr int kTries = 4000;
  const Pattern& p_;
  const Body& b_;
  const DType dtype_;
  const std::vector<std::string> symbols_;
  const std::vector<Values> all_;
  Rng rng_;
  int tries_ = 0;
};

std::string no_sizes(const Body& b) {
  return "no sizes up to 1200 satisfy its guards: the body in line " + std::to_string(b.line) +
         " cannot be checked";
}

std::string in_line(const Body& b) {
  return std::string("the ") + (b.kernel ? "kernel" : "body") + " in line " +
         std::to_string(b.line) + ": ";
}

}  // namespace

std::string told(const Pattern& p, const Counterexample& c) {
  if (c.inputs.empty()) return c.what;
  std::string place = p.def.tensor(p.def.outputs()[0]).name;
  if (!c.position.empty()) place += "[" + joined(c.position) + "]";
  const std::string meant = " where the def gives " + significant(c.spec, 6);
  if (c.kind == Difference::Definedness) {
    double most = 0;
    for (const ConcreteTensor& t : c.inputs)
      for (double x : t.reals)
        if (std::isfinite(x)) most = std::max(most, std::abs(x));
    return place + " is no finite number" + meant + ", for inputs up to " + significant(most, 6) +
           ": something overflows or is divided by 0 that the def keeps from it";
  }
  return place + " is " + significant(c.candidate, 6) + meant +
         (c.kind == Difference::Precision
              ? ", more than rounding explains (" + significant(c.allowed, 6) + ")"
              : "");
}

CheckResult check(const Pattern& p, const CheckOptions& options) {
  CheckResult result;
  const WallClock clock;
  const auto left = [&]() -> std::optional<double> {
    if (!options.seconds) return std::nullopt;
    return std::max(0.0, *options.seconds - clock.seconds());
  };
  for (const Body& b : p.bodies) {
    const DType dtype = checked_dtype(p);
    SizeDraws all(p, b, options.seed, dtype);
    for (int n = 0; n < options.sizes; n++) {
      const std::optional<Values> sizes = all.next();
      if (!sizes && n == 0) result.why = no_sizes(b);
      if (!sizes) break;
      Match m;
      const Graph region = region_of(p, *sizes, dtype, m);
      VerifyOptions verify_options;
      verify_options.scales = false;
      verify_options.seed = options.seed;
      verify_options.cancel = options.cancel;
      verify_options.seconds = left();
      Verifier verifier(region, verify_options);
      // Settings that come to the same kernel at this size are one.
      std::vector<uint64_t> known;
      const std::vector<Values>& tuned = all.settings_of_pattern();
      const size_t step =
          options.settings > 0 ? std::max<size_t>(1, tuned.size() / size_t(options.settings)) : 1;
      for (size_t at = 0; at < tuned.size() && result.ok(); at += step) {
        if (!all.allowed(*sizes, tuned[at])) continue;
        const std::string place = " (" + str(SizeDraws::with(*sizes, tuned[at])) + ")";
        try {
          const Graph g = instantiate(p, b, m, tuned[at], region);
          const uint64_t hash = structural_hash(g);
          if (std::ranges::count(known, hash)) continue;
          known.push_back(hash);
          const Verdict v = verifier.verify(g);
          if (v.equal())
            result.instances++;
          else
            result.why = in_line(b) +
                         (v.refuted() ? told(p, v.counterexample()) : v.why_unknown().what) + place;
        } catch (const Error& e) {
          result.why = in_line(b) + e.message() + place;
        }
      }
      if (!result.ok()) return result;
    }
    if (!result.ok()) return result;
  }
  return result;
}

std::vector<Example> examples(const Pattern& p, const Body& b, DType dtype, uint64_t seed,
                              int sizes, int settings) {
  std::vector<Example> all;
  SizeDraws next(p, b, seed, dtype);
  const std::vector<Values>& tuned = next.settings_of_pattern();
  std::vector<Values> tried;
  for (int n = 0; n < sizes; n++)
    if (const std::optional<Values> chosen = next.next()) tried.push_back(*chosen);
  const size_t usual = tried.size();
  for (const std::string& symbol : tried.empty() ? std::vector<std::string>() : p.symbols())
    if (const std::optional<Values> chosen = next.with_long(symbol)) tried.push_back(*chosen);
  for (const Values& chosen : tried) {
    std::vector<Values> allowed;
    const bool is_long = size_t(&chosen - tried.data()) >= usual;
    for (const Values& setting : tuned)
      if (next.allowed(chosen, setting) && (!is_long || allowed.empty()))
        allowed.push_back(setting);
    const size_t step = std::max<size_t>(1, allowed.size() / size_t(std::max(1, settings)));
    std::set<uint64_t> known;
    for (size_t at = 0; at < allowed.size(); at += step) {
      for (bool holes : {false, true}) {
        if (holes && (at > 0 || b.called() || (!p.epilogue && p.prologues.empty()))) continue;
        Match m;
        const Graph region = region_of(p, chosen, dtype, m, holes);
        Graph g = instantiate(p, b, m, allowed[at], region);
        if (!known.insert(structural_hash(g)).second) continue;
        all.push_back({SizeDraws::with(chosen, allowed[at]), holes, region, std::move(g)});
      }
    }
  }
  if (all.empty()) throw Error(ErrorKind::BadInput, no_sizes(b), SourceLocation{p.file, b.line, 1});
  return all;
}

std::pair<Graph, Graph> example(const Pattern& p, size_t body) {
  if (body >= p.bodies.size()) bad_input("there is no such body");
  const Body& b = p.bodies[body];
  const DType dtype = checked_dtype(p);
  SizeDraws all(p, b, 1, dtype);
  if (const std::optional<Values> sizes = all.next()) {
    Match m;
    const Graph region = region_of(p, *sizes, dtype, m);
    for (const Values& setting : all.settings_of_pattern())
      if (all.allowed(*sizes, setting)) return {region, instantiate(p, b, m, setting, region)};
  }
  throw Error(ErrorKind::BadInput, no_sizes(b), SourceLocation{p.file, b.line, 1});
}

}  // namespace tessera::patterns
