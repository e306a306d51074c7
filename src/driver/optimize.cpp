#include "driver/optimize.h"

#include <algorithm>
#include <chrono>
#include <set>
#include <span>

#include "backend/arrays.h"
#include "backend/check.h"
#include "backend/measure.h"
#include "base/check.h"
#include "base/error.h"
#include "base/rng.h"
#include "base/thread_pool.h"
#include "cost/analytical.h"
#include "driver/partition.h"
#include "driver/results.h"
#include "driver/tiles.h"
#include "eval/ndarray.h"
#include "ir/text.h"
#include "ir/validate.h"
#include "search/fold/fold.h"
#include "search/mugraph/mugraph.h"

namespace tessera {

const char* name(Fate fate) {
  switch (fate) {
  case Fate::Proposed: return "proposed";
  case Fate::Refuted: return "refuted";
  case Fate::Unknown: return "unknown";
  case Fate::NotCompiled: return "not compiled";
  case Fate::CheckFailed: return "check failed";
  case Fate::Measured: return "measured";
  case Fate::Chosen: return "chosen";
  }
  unreachable("Fate");
}

Target resolve_target(const OptimizeOptions& options) {
  const std::string& name = options.target;
  if (name != "cpu") return find_target(name, options.target_directory);
  Target t = default_cpu_target();
  if (best_isa() != CpuIsa::Avx512 && !options.target_directory.empty())
    t = find_target("cpu-avx2", options.target_directory);
  t.cores = options.threads > 0 ? options.threads : default_threads();
  return t;
}

namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Is it faster than the original, beyond noise?
bool worthwhile(const Timing& t) { return t.believable && t.speedup > 1.005 && t.speedup_low > 1; }

// Adds the time a scope takes to a counter.
class Stopwatch {
 public:
  explicit Stopwatch(double& total) : total_(total), start_(Clock::now()) {}
  ~Stopwatch() { total_ += seconds_since(start_); }

 private:
  double& total_;
  Clock::time_point start_;
};

// Ordinary random numbers for a program's inputs, shared by all that are timed against each other:
// the same data in the same place of the memory hierarchy for everyone.
class Inputs {
 public:
  Inputs(const Graph& graph, uint64_t seed) {
    Rng rng(seed);
    for (TensorId id : graph.inputs()) {
      const Type& t = graph.type(id);
      NDArray a = NDArray::zeros(t.dtype, extents(t.shape));
      // Sums of uniforms: close to a normal distribution, and cheap.
      for (double& x : a.reals)
        x = round_to(t.dtype, 1.7 * (rng.unit() + rng.unit() + rng.unit() + rng.unit() - 2));
      for (int64_t& x : a.ints) x = int64_t(rng.below(2));
      auto bytes = to_memory(a);
      buffers_.emplace_back(bytes.size());
      std::copy(bytes.begin(), bytes.end(), static_cast<std::byte*>(buffers_.back().data()));
      pointers_.push_back(buffers_.back().data());
    }
  }
  std::span<const void* const> pointers() const { return pointers_; }

 private:
  std::vector<AlignedBuffer> buffers_;
  std::vector<const void*> pointers_;
};

// A module with results of its own.
class Runner {
 public:
  Runner(std::shared_ptr<Module> module, const Inputs& inputs)
      : module_(std::move(module)), inputs_(inputs) {
    // Once per set of weights, so not part of what is timed.
    if (!module_->weights().empty()) prepared_ = module_->prepare(inputs.pointers());
    for (const Type& t : module_->output_types()) {
      buffers_.emplace_back(size_t(t.bytes()));
      outputs_.push_back(buffers_.back().data());
    }
  }
  void run() const { module_->run(inputs_.pointers(), outputs_, prepared_.get()); }

 private:
  std::shared_ptr<Module> module_;
  const Inputs& inputs_;
  std::shared_ptr<const PreparedWeights> prepared_;
  std::vector<AlignedBuffer> buffers_;
  std::vector<void*> outputs_;
};

// Ways to compute one part of the program that passed everything, with what they measured.
struct PartResult {
  Graph best;
  std::shared_ptr<Module> module;
  std::optional<Certificate> certificate;
  double original_s = 0, seconds = 0, speedup = 1;
  bool improved = false;
};

class Optimizer {
 public:
  Optimizer(const OptimizeOptions& options, const std::function<void(const Progress&)>& progress,
            const std::atomic<bool>* cancel)
      : options_(options), progress_(progress), cancel_(cancel), target_(resolve_target(options)),
        threads_(options.threads > 0 ? options.threads : default_threads()), eval_pool_(threads_) {
    if (threads_ != KernelPool::shared().threads()) pool_.emplace(threads_);
  }

  OptimizeResult run(const Graph& program) {
    OptimizeResult result;
    result.original = program;
    result.graph = program;
    report_.target = target_.name;
    report_.threads = threads_;
    std::string key;
    if (options_.use_cache) {
      key = result_key(program, options_, target_);
      // What was tuned once, with whatever budget, serves everybody.
      if (auto tuned = load_result(cache_, tuned_key(program, options_, target_));
          tuned && tuned->improved && restore(*tuned, result)) {
        report_.from_cache = report_.tuned = true;
        return finish(std::move(result));
      }
      if (auto stored = load_result(cache_, key); stored && restore(*stored, result)) {
        report_.from_cache = true;
        return finish(std::move(result));
      }
    }
    std::vector<Part> parts = partition(program);
    report_.parts = int(parts.size());
    // A part that is the whole program needs no splicing and no second proof.
    bool whole =
        parts.size() == 1 && parts[0].ops.size() + program.inputs().size() == program.ops().size();
    if (whole) {
      take(result, improve(program, 0, ""), result.candidates);
    } else if (!parts.empty()) {
      std::vector<Graph> replacements;
      bool any = false;
      for (size_t i = 0; i < parts.size(); i++) {
        PartResult r = improve(parts[i].graph, int(i),
                               std::to_string(i + 1) + "/" + std::to_string(parts.size()));
        any = any || r.improved;
        replacements.push_back(std::move(r.best));
      }
      result.candidates = std::move(outcomes_);
      if (any) combine(result, splice(program, parts, replacements));
    }
    if (!result.improved) keep_original(result);
    // A search that was cut short, or that found nothing (perhaps because the machine was busy when
    // it measured), is worth another try.
    if (options_.use_cache && !cancelled() && result.improved) {
      if (!options_.tune) store_result(cache_, key, result);
      // A tuning that the budget cut short is worth another try.
      else if (!out_of_time())
        store_result(cache_, tuned_key(program, options_, target_), result);
    }
    report_.tuned = options_.tune && !cancelled() && !out_of_time();
    return finish(std::move(result));
  }

  SearchOutcome search_only(const Graph& program) {
    SearchOutcome out;
    CollectingSink sink;
    out.report = search(program, "", sink);
    out.candidates = std::move(sink.candidates);
    return out;
  }

 private:
  bool cancelled() const { return cancel_ && cancel_->load(std::memory_order_relaxed); }
  bool out_of_time() const { return seconds_since(start_) > options_.budget_seconds; }

  void tell(const std::string& stage, const std::string& part, int done, int total,
            const SearchReport* search = nullptr) {
    if (progress_) progress_({stage, part, done, total, search, best_speedup_});
  }

  OptimizeResult finish(OptimizeResult result) {
    report_.cancelled = cancelled();
    report_.total_s = seconds_since(start_);
    result.report = std::move(report_);
    tell("done", "", 1, 1);
    return result;
  }

  SearchReport search(const Graph& graph, const std::string& part, CandidateSink& sink) {
    AnalyticalModel cost(target_);
    Context context;
    context.target = &target_;
    context.cost = &cost;
    context.seed = options_.seed;
    context.threads = threads_;
    context.cancel = cancel_;
    context.progress = [&](const SearchReport& r) { tell("search", part, 0, 0, &r); };
    Budget budget;
    budget.seconds = std::max(0.05, options_.budget_seconds - seconds_since(start_)) *
                     (options_.exhaustive ? 1.0 : 0.5);
    MugraphOptions engine_options;
    engine_options.max_block_ops = options_.max_block_ops;
    engine_options.exhaustive = options_.exhaustive;
    for (const std::string& name : options_.disable)
      if (name.starts_with("mugraph:")) engine_options.ablate.insert(name.substr(8));
    if (options_.disable.count("mugraph")) {
      SearchReport none;
      none.detail = "engine mugraph is disabled";
      return none;
    }
    return Mugraph(engine_options).run(Subprogram{graph}, context, budget, sink);
  }

  // Programs in which more depends on weights alone, and what the engine makes of the rest of them,
  // among the other candidates.
  void fold(const Graph& spec, const std::string& label, CollectingSink& sink) {
    constexpr size_t kMostOfOne = 4;
    if (options_.disable.count("fold") || options_.disable.count("plan:weights")) return;
    const size_t before = sink.candidates.size();
    for (const Folding& f : fold_weights(spec)) {
      if (cancelled()) break;
      const std::vector<Part> parts = partition(f.graph);
      if (parts.size() != 1) continue;
      Candidate plain;
      plain.graph = f.graph;
      plain.cost = AnalyticalModel(target_).cost(parts[0].graph).seconds;
      plain.origin = "fold";
      plain.derivation = f.derivation;
      sink.candidates.push_back(plain);
      CollectingSink of_part;
      report_.searches.push_back(search(parts[0].graph, label, of_part));
      for (Candidate& c : of_part.candidates) {
        if (&c - of_part.candidates.data() >= std::ptrdiff_t(kMostOfOne)) break;
        c.graph = splice(f.graph, parts, {c.graph});
        c.origin = "fold+" + c.origin;
        c.derivation = f.derivation + c.derivation;
        sink.candidates.push_back(std::move(c));
      }
    }
    if (sink.candidates.size() > before)
      std::stable_sort(sink.candidates.begin(), sink.candidates.end(),
                       [](const Candidate& a, const Candidate& b) { return a.cost < b.cost; });
  }

  std::shared_ptr<Module> compiled(const Graph& graph) {
    Stopwatch watch(report_.compile_s);
    ModuleOptions options;
    options.pool = pool_ ? &*pool_ : nullptr;
    for (const std::string& name : options_.disable)
      if (name.starts_with("plan:")) disable_plan(options.plan, name);
    return Module::compile(graph, cache_, options);
  }

  // Where compiled code leaves the interpreter of its own graph; empty if nowhere.
  std::string check_failure(const Graph& graph, const Module& module) {
    Stopwatch watch(report_.check_s);
    CheckOptions options;
    options.seed = options_.seed;
    options.pool = &eval_pool_;
    CheckReport report;
    auto run_module = [&](auto in, auto out) { module.run(in, out); };
    if (check_compiled(graph, run_module, options, &report)) return "";
    return report.what.empty() ? "the compiled code is wrong" : report.what;
  }

  VerifyOptions verify_options() const {
    VerifyOptions v;
    v.strict = options_.strict;
    v.seed = options_.verify_seed;
    v.threads = threads_;
    v.minimise = false;
    v.cancel = cancel_;
    return v;
  }

  // Code for a candidate; null where the back end refuses or fails.
  std::shared_ptr<Module> code_for(Outcome& outcome) {
    try {
      return compiled(outcome.graph);
    } catch (const Error& e) {
      // A missing compiler or a full disk would fail every candidate: the user has to know.
      if (e.kind() == ErrorKind::ToolMissing || e.kind() == ErrorKind::Io) throw;
      outcome.fate = Fate::NotCompiled;
      outcome.why = e.what();
      return nullptr;
    }
  }

  std::optional<Certificate> prove(Verifier& verifier, Outcome& outcome) {
    Stopwatch watch(report_.verify_s);
    try {
      Acceptance a = verifier.accept(outcome.graph);
      if (a.verified) return a.verified->certificate();
      outcome.fate = a.verdict.refuted() ? Fate::Refuted : Fate::Unknown;
      outcome.why = a.verdict.str();
    } catch (const Error& e) {
      outcome.fate = Fate::Unknown;
      outcome.why = e.what();
    }
    return std::nullopt;
  }

  // Compiled code against the interpreter: nothing that fails here is ever handed out.
  bool passes_check(Outcome& outcome, const Module& module) {
    outcome.why = check_failure(outcome.graph, module);
    if (outcome.why.empty()) return true;
    outcome.fate = Fate::CheckFailed;
    return false;
  }

  // The order in which candidates race: by modelled cost; an engine's note is a doubt (such as a
  // dropped maximum), and those come last. The program as written, only fused, races at once: it
  // stands where rounding forbids the algebra of all others.
  std::vector<size_t> racing_order(size_t first, size_t wanted) const {
    std::vector<size_t> order;
    for (bool doubted : {false, true})
      for (size_t i = first; i < outcomes_.size(); i++)
        if (outcomes_[i].notes.empty() != doubted) order.push_back(i);
    for (size_t at = wanted; at < order.size(); at++) {
      if (!outcomes_[order[at]].as_written) continue;
      std::rotate(order.begin() + std::ptrdiff_t(wanted) - 1, order.begin() + std::ptrdiff_t(at),
                  order.begin() + std::ptrdiff_t(at) + 1);
      break;
    }
    return order;
  }

  // A compiled candidate and how fast it was in its last race.
  struct Racer {
    size_t outcome;
    std::shared_ptr<Module> module;
    Timing timing;
  };

  static void by_speed(std::vector<Racer>& racers) {
    std::stable_sort(racers.begin(), racers.end(), [](const Racer& a, const Racer& b) {
      return a.timing.speedup > b.timing.speedup;
    });
  }

  // Times the racers from `from` on against the original, and returns its seconds.
  double race(const std::shared_ptr<Module>& original, const Inputs& inputs,
              std::vector<Racer>& racers, size_t from) {
    std::vector<std::shared_ptr<Module>> modules{original};
    for (size_t i = from; i < racers.size(); i++) modules.push_back(racers[i].module);
    const std::vector<Timing> timings = race(modules, inputs);
    for (size_t i = from; i < racers.size(); i++) {
      Outcome& o = outcomes_[racers[i].outcome];
      racers[i].timing = timings[i - from + 1];
      o.fate = Fate::Measured;
      o.seconds = racers[i].timing.median_s;
      o.speedup = racers[i].timing.speedup;
    }
    return timings[0].median_s;
  }

  // Other tiles for the fastest racers: the variants that the model likes best are compiled and
  // timed, and those that won are varied again, until nothing gains one percent.
  void tune(const std::shared_ptr<Module>& original, const Inputs& inputs, const Filter& filter,
            const std::string& label, std::vector<Racer>& racers) {
    constexpr size_t kBases = 3, kPerWave = 8;
    constexpr int kWaves = 6;
    const AnalyticalModel model(target_);
    std::set<uint64_t> seen;
    for (const Racer& r : racers) seen.insert(structural_hash(outcomes_[r.outcome].graph));
    by_speed(racers);
    for (int wave = 0; wave < kWaves && !cancelled() && !out_of_time(); wave++) {
      struct Variant {
        double model_seconds;
        size_t base;
        Graph graph;
      };
      std::vector<Variant> variants;
      for (size_t b = 0; b < std::min(kBases, racers.size()); b++)
        for (Graph& g : retilings(outcomes_[racers[b].outcome].graph))
          if (seen.insert(structural_hash(g)).second) {
            double seconds = model.cost(g).seconds;
            variants.push_back({seconds, racers[b].outcome, std::move(g)});
          }
      std::stable_sort(variants.begin(), variants.end(), [](const Variant& a, const Variant& b) {
        return a.model_seconds < b.model_seconds;
      });
      const double best = racers[0].timing.speedup;
      const size_t from = racers.size();
      for (Variant& v : variants) {
        if (racers.size() - from >= kPerWave || cancelled() || out_of_time()) break;
        tell("tune", label, int(racers.size() - from), int(std::min(kPerWave, variants.size())));
        Outcome o = outcomes_[v.base];
        o.graph = std::move(v.graph);
        o.origin += o.origin.ends_with("tiles") ? "" : "+tiles";
        o.model_seconds = v.model_seconds;
        o.as_written = false;
        o.rank = int(outcomes_.size()) + 1;
        o.fate = Fate::Proposed;
        o.seconds = o.speedup = 0;
        outcomes_.push_back(std::move(o));
        Outcome& made = outcomes_.back();
        if (!passes_filter(filter, made)) continue;
        if (auto module = code_for(made))
          racers.push_back({outcomes_.size() - 1, std::move(module), {}});
      }
      if (racers.size() == from) break;
      race(original, inputs, racers, from);
      by_speed(racers);
      if (racers[0].timing.speedup < 1.01 * best) break;
    }
  }

  // Candidates race first, since most lose; only the fastest are proved and checked, until one
  // passes. Another wave runs where all that were faster than the original fell out.
  PartResult improve(const Graph& spec, int part, const std::string& label) {
    PartResult result;
    result.best = spec;
    CollectingSink sink;
    {
      Stopwatch watch(report_.search_s);
      report_.searches.push_back(search(spec, label, sink));
      fold(spec, label, sink);
    }
    const size_t first = outcomes_.size();
    for (Candidate& c : sink.candidates) {
      Outcome o;
      o.graph = std::move(c.graph);
      o.origin = std::move(c.origin);
      o.derivation = std::move(c.derivation);
      o.notes = std::move(c.notes);
      o.as_written = c.as_written;
      o.part = part;
      o.rank = int(outcomes_.size() - first) + 1;
      o.model_seconds = c.cost;
      outcomes_.push_back(std::move(o));
    }
    std::shared_ptr<Module> original = compiled(spec);
    result.module = original;
    if (sink.candidates.empty()) return result;
    const size_t wanted = options_.tune ? 16 : 5;
    const std::vector<size_t> order = racing_order(first, wanted);
    const Inputs inputs(spec, options_.seed);
    const Filter filter(spec, options_.seed + 1, threads_);
    Verifier verifier(spec, verify_options());
    bool again = true;
    for (size_t next = 0; again && next < order.size() && !cancelled();) {
      again = false;
      std::vector<Racer> racers;
      for (; racers.size() < wanted && next < order.size() && !cancelled(); next++) {
        if (out_of_time() && (!racers.empty() || next >= wanted)) break;
        tell("compile", label, int(next), int(order.size()));
        Outcome& o = outcomes_[order[next]];
        if (!passes_filter(filter, o)) continue;
        if (auto module = code_for(o)) racers.push_back({order[next], std::move(module), {}});
      }
      if (racers.empty()) break;

      tell("measure", label, 0, int(racers.size()));
      result.original_s = result.seconds = race(original, inputs, racers, 0);
      if (options_.tune) {
        tune(original, inputs, filter, label, racers);
        // Who was a little lucky among many is not so again.
        by_speed(racers);
        std::vector<Racer> finalists(
            racers.begin(), racers.begin() + std::ptrdiff_t(std::min<size_t>(4, racers.size())));
        result.original_s = result.seconds = race(original, inputs, finalists, 0);
        racers = std::move(finalists);
      }
      by_speed(racers);
      int tried = 0;
      for (Racer& racer : racers) {
        if (!worthwhile(racer.timing) || cancelled()) continue;
        Outcome& o = outcomes_[racer.outcome];
        tell("verify", label, tried++, int(racers.size()));
        std::optional<Certificate> certificate = prove(verifier, o);
        if (!certificate || !passes_check(o, *racer.module)) {
          again = !out_of_time();
          continue;
        }
        o.fate = Fate::Chosen;
        result.best = o.graph;
        result.module = racer.module;
        result.certificate = std::move(*certificate);
        result.seconds = racer.timing.median_s;
        result.speedup = racer.timing.speedup;
        result.improved = true;
        if (label.empty()) best_speedup_ = result.speedup;
        return result;
      }
    }
    return result;
  }

  bool passes_filter(const Filter& filter, Outcome& outcome) {
    Stopwatch watch(report_.verify_s);
    try {
      if (filter.may_equal(outcome.graph)) return true;
      outcome.why = "differs from the original in a finite field";
    } catch (const Error& e) {
      outcome.why = e.what();
    }
    outcome.fate = Fate::Unknown;
    return false;
  }

  // Times programs of the same inputs against each other; the first is the baseline.
  std::vector<Timing> race(const std::vector<std::shared_ptr<Module>>& modules,
                           const Inputs& inputs) {
    Stopwatch watch(report_.measure_s);
    std::vector<Runner> runners;
    runners.reserve(modules.size());
    for (const auto& m : modules) runners.emplace_back(m, inputs);
    std::vector<Contestant> contestants;
    for (size_t i = 0; i < runners.size(); i++)
      contestants.push_back({i == 0 ? "original" : "candidate " + std::to_string(i),
                             [&runners, i](int) { runners[i].run(); }, 0});
    MeasureOptions m;
    m.budget_s = std::min(options_.tune ? 4.0 : 1.0, 0.15 * double(contestants.size()));
    return measure(contestants, m);
  }

  void take(OptimizeResult& result, PartResult part, std::vector<Outcome>& outcomes) {
    outcomes = std::move(outcomes_);
    result.graph = std::move(part.best);
    result.module = std::move(part.module);
    result.certificate = std::move(part.certificate);
    result.improved = part.improved;
    result.original_s = part.original_s;
    result.seconds = part.seconds;
    result.speedup = part.speedup;
  }

  // Parts were improved one by one; the program made of them is proved and measured as a whole.
  void combine(OptimizeResult& result, Graph spliced) {
    Outcome whole;
    whole.graph = std::move(spliced);
    whole.origin = "parts";
    whole.rank = 1;
    whole.part = -1;
    Verifier verifier(result.original, verify_options());
    std::optional<Certificate> certificate = prove(verifier, whole);
    std::shared_ptr<Module> module = certificate ? code_for(whole) : nullptr;
    if (module && passes_check(whole, *module)) {
      std::shared_ptr<Module> original = compiled(result.original);
      const auto timings = race({original, module}, Inputs(result.original, options_.seed));
      whole.fate = Fate::Measured;
      whole.seconds = timings[1].median_s;
      whole.speedup = timings[1].speedup;
      result.original_s = timings[0].median_s;
      result.module = original;
      result.seconds = timings[0].median_s;
      if (worthwhile(timings[1])) {
        whole.fate = Fate::Chosen;
        result.graph = whole.graph;
        result.module = module;
        result.certificate = std::move(*certificate);
        result.improved = true;
        result.seconds = timings[1].median_s;
        result.speedup = best_speedup_ = timings[1].speedup;
      }
    }
    result.candidates.push_back(std::move(whole));
  }

  // The original is compiled code too, and believed as little as any other.
  void keep_original(OptimizeResult& result) {
    std::shared_ptr<Module> module = compiled(result.original);
    report_.original_failed = check_failure(result.original, *module);
    result.module = report_.original_failed.empty() ? module : nullptr;
  }

  // A remembered result is proved, compiled and checked again before it is believed.
  bool restore(const StoredResult& stored, OptimizeResult& result) {
    if (stored.improved) {
      Outcome o;
      o.graph = stored.graph;
      o.origin = stored.origin;
      o.derivation = stored.derivation;
      o.rank = stored.rank;
      o.model_seconds = stored.model_seconds;
      tell("verify", "", 0, 1);
      Verifier verifier(result.original, verify_options());
      std::optional<Certificate> certificate = prove(verifier, o);
      std::shared_ptr<Module> module = certificate ? code_for(o) : nullptr;
      if (!module || !passes_check(o, *module)) return false;
      o.fate = Fate::Chosen;
      o.seconds = stored.seconds;
      o.speedup = stored.speedup;
      result.graph = stored.graph;
      result.module = module;
      result.certificate = std::move(*certificate);
      result.improved = true;
      result.candidates.push_back(std::move(o));
    } else {
      keep_original(result);
    }
    result.original_s = stored.original_s;
    result.seconds = stored.seconds;
    result.speedup = best_speedup_ = stored.speedup;
    return true;
  }

  const OptimizeOptions& options_;
  const std::function<void(const Progress&)>& progress_;
  const std::atomic<bool>* cancel_;
  Target target_;
  int threads_;
  ThreadPool eval_pool_;
  Clock::time_point start_ = Clock::now();
  Cache cache_;
  std::optional<KernelPool> pool_;
  OptimizeReport report_;
  std::vector<Outcome> outcomes_;
  double best_speedup_ = 1;
};

void require_known_engines(const OptimizeOptions& options) {
  PlanOptions plan;
  for (const std::string& name : options.disable) {
    if (name.starts_with("plan:"))
      disable_plan(plan, name);
    else if (name != "fold" && name != "mugraph" && !name.starts_with("mugraph:"))
      throw Error(ErrorKind::Usage,
                  "unknown engine '" + name +
                      "' to disable; there are mugraph, mugraph:RULE, fold and plan:"
                      "{layout,schedule,memory,weights}");
  }
}

void require_static(const Graph& program) {
  validate(program);
  if (program.level() != Level::Kernel)
    throw Error(ErrorKind::BadInput, "only kernel graphs can be optimized");
  for (const Tensor& t : program.tensors())
    if (!is_static(t.type.shape))
      throw Error(ErrorKind::Unsupported, "tensor " + t.name + " has the symbolic shape " +
                                              str(t.type.shape) +
                                              "; give every symbol a size first");
}

}  // namespace

OptimizeResult optimize(const Graph& program, const OptimizeOptions& options,
                        const std::function<void(const Progress&)>& progress,
                        const std::atomic<bool>* cancel) {
  require_static(program);
  require_known_engines(options);
  return Optimizer(options, progress, cancel).run(program);
}

SearchOutcome search(const Graph& program, const OptimizeOptions& options,
                     const std::function<void(const Progress&)>& progress,
                     const std::atomic<bool>* cancel) {
  require_static(program);
  require_known_engines(options);
  return Optimizer(options, progress, cancel).search_only(program);
}

}  // namespace tessera
