#include "driver/session.h"

#include <algorithm>
#include <cstdio>

#include "backend/cpu/channels_last.h"
#include "backend/cpu/compile.h"
#include "backend/cpu/conv_costs.h"
#include "backend/cuda/emulate_program.h"
#include "backend/written.h"
#include "base/error.h"
#include "base/interruption.h"
#include "base/sha256.h"
#include "cost/analytical.h"
#include "ir/text.h"
#include "search/mugraph/mugraph.h"
#include "search/patterns/patterns.h"
#include "search/patterns/warehouse.h"
#include "search/rules/library.h"
#include "search/synth/synth.h"
#include "verify/bitwise.h"
#include "verify/symmetry.h"

namespace tessera {

namespace {

constexpr double kTf32Unit = 0x1p-11;  // half a unit in the last place of 10 bits of fraction

// Of what was measured on a device.
std::string rows_key(const CudaContext& context, const Target& described) {
  return sha256_hex("measured kernels 1 " + context.device().str() + "\n" + described.str());
}

bool has_f32_products(const Graph& graph) {
  return std::ranges::any_of(
      graph.ops(),
      [&](const Op& op) {
        if (is_kernel(op.kind)) return has_f32_products(graph.body(op));
        return (is_product(op.kind) || is_convolution(op.kind)) &&
               graph.type(op.result()).dtype == DType::F32;
      });
}

SearchReport disabled(const std::string& engine) {
  SearchReport none;
  none.detail = "engine " + engine + " is disabled";
  return none;
}

}  // namespace

Session::Session(const OptimizeOptions& o, const std::function<void(const Progress&)>& progress,
                 const std::atomic<bool>* cancel, const std::atomic<bool>* abandon)
    : options(o), deadline(o.budget_seconds, cancel, abandon),
      place(place_of(o.target, o.target_directory)), described(resolve_target(o)),
      target(described), threads(o.threads > 0 ? o.threads : default_threads()),
      workers(o.workers > 0 ? o.workers : threads), eval_pool(workers), learnt(cache, o, described),
      progress_(progress), cancel_(cancel) {
  target.transforms = plan_options().images ? plan_options().transforms : Transforms::None;
  if (place.gpu && !place.context)
    report.not_measured = place.why_not;
  else if (place.gpu)
    report.device = place.context->device().str();
  if (place.context && options.use_cache)
    if (const auto rows = cache.find_text(rows_key(*place.context, described))) {
      measured_ = read_rows(*rows);
      fit_model();
    }
}

void Session::tell(const std::string& stage, const std::string& part, int done, int total,
                   const SearchReport* search) {
  if (progress_) progress_({stage, part, done, total, search, best_speedup, deadline.spent()});
}

SearchReport Session::within(double seconds, const std::function<SearchReport()>& run) {
  constexpr double kLate = 1.1, kLateSeconds = 0.05;
  const double start = deadline.spent();
  try {
    const Interruptible scope(nullptr, kLate * std::max(0.0, seconds) + kLateSeconds);
    return run();
  } catch (const Interrupted&) {
    SearchReport cut;
    cut.stop = deadline.cancelled() ? StopReason::Cancelled : StopReason::TimeBudget;
    cut.seconds = deadline.spent() - start;
    return cut;
  }
}

Budget Session::budget(double seconds, int64_t steps) const {
  Budget b{.steps = options.steps > 0 ? options.steps : steps, .seconds = std::max(0.0, seconds)};
  b.slice = options.slice;
  b.slices = options.slices;
  b.bound = options.bound;
  return b;
}

Context Session::context(const CostModel* cost) const {
  return {&target, cost, options.seed, workers, cancel_, nullptr, {}};
}

SearchReport Session::search(const Graph& graph, const std::string& part, double seconds,
                             SearchMemory* memory, CandidateSink& sink) {
  if (options.disable.count("mugraph")) return disabled("mugraph");
  AnalyticalModel cost(target);
  Context context = this->context(&cost);
  context.memory = memory;
  context.progress = [&](const SearchReport& r) { tell("search", part, 0, 0, &r); };
  const Budget budget = this->budget(seconds);
  MugraphOptions engine_options;
  engine_options.max_block_ops = options.max_block_ops;
  for (const std::string& name : options.disable)
    if (name.starts_with("mugraph:")) engine_options.ablate.insert(name.substr(8));
  SearchReport found = within(seconds, [&] {
    return Mugraph(engine_options).run(Subprogram{graph}, context, budget, sink);
  });
  tell("search", part, 0, 0, &found);
  return found;
}

const rules::RuleSet* Session::rules() {
  if (options.disable.count("rules")) return nullptr;
  if (!rules_) {
    std::vector<rules::Rule> all;
    std::vector<std::string> problems;
    for (const std::string& folder : options.rule_folders)
      if (&folder == &options.rule_folders.front())
        all = rules::load_rules(folder);
      else
        rules::load_more(folder, all, problems);
    for (const std::string& p : problems)
      std::fprintf(stderr, "warning: rules left out: %s\n", p.c_str());
    rules_.emplace(std::move(all));
  }
  return &*rules_;
}

SearchReport Session::synthesize(const Graph& graph, double seconds, CandidateSink& sink,
                                 bool proved) {
  Stopwatch watch(report.search_s);
  Context context = this->context();
  const Budget budget = this->budget(seconds, 1'000'000);
  SynthOptions engine_options;
  synth::Rates& rates = engine_options.rates;
  rates.set(options.costs);
  if (options.cost == "flops")
    rates.kind = synth::CostKind::Flops;
  else if (options.cost == "fused")
    rates.kind = synth::CostKind::Fused;
  else if (options.cost != "times")
    throw Error(ErrorKind::Usage, "cost: '" + options.cost + "' is not one of times, fused, flops");
  engine_options.rules = rules();
  engine_options.holes = !options.disable.count("synth:holes");
  engine_options.bound = !options.disable.count("synth:bound");
  take(options.settings, "synth.size", engine_options.max_size);
  take(options.settings, "synth.leaves", engine_options.max_leaves);
  take(options.settings, "synth.probes", engine_options.probes);
  if (proved) {
    engine_options.accepts = [&](const Graph& original, const Graph& found) {
      try {
        return Verifier(original, verify_options()).accept(found).verified.has_value();
      } catch (const Error&) {
        return false;
      }
    };
  }
  return within(seconds, [&] {
    return Synth(std::move(engine_options)).run(Subprogram{graph}, context, budget, sink);
  });
}

SearchReport Session::mutants(const Graph& graph, double seconds, CandidateSink& sink,
                              const CostModel* cost, int64_t steps) {
  Stopwatch watch(report.search_s);
  AnalyticalModel model(target);
  Context context = this->context(cost ? cost : &model);
  Budget budget = this->budget(seconds);
  MutateOptions o;
  o.prove = steps == 0;
  if (steps > 0) o.steps = steps;
  // Where steps end a search, a larger budget than usual has to give it more of them, and more
  // than its share of the budget, most of whose time they leave.
  constexpr double kSteepness = 10;
  const double larger = options.budget_seconds / OptimizeOptions{}.budget_seconds - 1;
  if (options.steps > 0) {
    if (steps == 0) o.steps = options.steps;
  } else if (larger > 0) {
    o.steps = int64_t((1 + kSteepness * larger) * double(o.steps));
    o.depth += 2;
  }
  if (steps == 0 || larger > 0) o.seconds = seconds;  // all that there is
  take(options.settings, "mutate.depth", o.depth);
  take(options.settings, "mutate.steps", o.steps);
  take(options.settings, "mutate.candidates", o.candidates);
  take(options.settings, "mutate.least_equal", o.least_equal);
  for (const std::string& name : options.disable)
    if (name.starts_with("mutate:")) o.disabled.insert(name.substr(7));
  if (options.steps == 0) budget.steps = std::max(budget.steps, o.steps);
  budget.candidates = std::max(budget.candidates, o.candidates);
  return within(seconds,
                [&] { return Mutate(std::move(o)).run(Subprogram{graph}, context, budget, sink); });
}

SearchReport Session::experts(const Graph& graph, double seconds, CandidateSink& sink,
                              bool proved) {
  if (options.disable.count("patterns")) return disabled("patterns");
  if (!patterns_) {
    std::vector<std::string> problems;
    std::vector<std::string> folders = options.pattern_folders;
    if (options.use_cache && !options.disable.count("learnt"))
      folders.push_back(learnt_folder(cache));
    patterns_ = patterns::load_warehouse(folders, problems);
    if (!problems.empty()) {
      const std::string more =
          problems.size() == 1
              ? ""
              : " (and " + std::to_string(problems.size() - 1) + " more: `tessera patterns list`)";
      std::fprintf(stderr, "warning: pattern left out%s: %s\n", more.c_str(), problems[0].c_str());
    }
    mark_unusable(*patterns_, cache, place.gpu, best_isa(), place.device());
  }
  Context context = this->context();
  Budget budget = this->budget(seconds);
  // Who asks for this engine alone wants to see every place.
  if (options.engine == "patterns") budget.candidates = options.candidates;
  PatternsOptions engine_options{.warehouse = &*patterns_, .verify = proved};
  return within(seconds, [&] {
    return Patterns(engine_options).run(Subprogram{graph}, context, budget, sink);
  });
}

PlanOptions Session::plan_options() const {
  PlanOptions plan;
  for (const std::string& name : options.disable)
    if (name.starts_with("plan:")) disable_plan(plan, name);
  if (keeps_special()) plan.transforms = Transforms::None;
  plan.libraries = options.disable.count("library") == 0;
  return plan;
}

void Session::measure_convolutions(const Graph& graph, std::optional<double> seconds) {
  constexpr double kShare = 0.25;
  const PlanOptions plan = plan_options();
  if (place.gpu || !plan.images || plan.transforms == Transforms::None) return;
  Stopwatch watch(report.measure_s);
  const CpuIsa isa = best_isa();
  KernelPool& pool = KernelPool::shared(threads);
  if (!seconds) tell("measure", "", 0, 1);
  tessera::measure_convolutions(graph, isa, pool, cache, seconds.value_or(kShare * deadline.left()),
                                cancel_);
  if (!seconds)
    report.convolutions = describe_convolutions(graph, isa, pool.threads(), cache, plan);
}

std::optional<double> Session::known_seconds(const Graph& convolution) {
  const PlanOptions plan = plan_options();
  if (place.gpu || !plan.images) return std::nullopt;
  return fastest_seconds(convolution, best_isa(), threads, cache, plan);
}

std::string Session::machine_key() const {
  std::string disabled;
  for (const std::string& name : options.disable)
    if (name.starts_with("plan:")) disabled += " " + name;
  return processor_name() + "\n" + to_string(best_isa()) + "\n" + std::to_string(threads) + "\n" +
         std::to_string(kCodegenVersion) + disabled + (keeps_special() ? " special" : "");
}

std::vector<bool> Session::computed_with_images(const Graph& graph) const {
  if (place.gpu || !plan_options().images) return {};
  return follows_image(graph, best_isa());
}

CompiledCode Session::compiled(const Graph& graph) {
  Stopwatch watch(report.compile_s);
  return compile(graph);
}

CompiledCode Session::compile(const Graph& graph) {
  CompiledCode code;
  const PlanOptions plan = plan_options();
  if (place.gpu) {
    if (deadline.ended()) throw Error(ErrorKind::Cancelled, "compiling was stopped");
    // A kernel that fails takes everything down that this process has on the device, so none is
    // launched that the emulator has not seen.
    if (place.context) {
      const std::string fault = emulated_failure(graph);
      if (!fault.empty())
        throw Error(ErrorKind::Internal, "the kernels are wrong (please report this): " + fault);
    }
    code.cuda = make_cuda_code(graph, cache, {place.arch, described, plan, place.context});
    code.modelled = modelled_kernels(graph, described, [&](const LibraryCall& call) {
      const auto& kernels = code.cuda->program.kernels;
      return std::ranges::any_of(kernels, [&](const CudaKernel& k) {
        return k.call && k.call->kind == call.kind && k.call->parts == call.parts &&
               k.call->batch == call.batch && k.call->rows == call.rows &&
               k.call->columns == call.columns && k.call->depth == call.depth;
      });
    });
    code.model_seconds = AnalyticalModel(target).cost(graph).seconds;
    return code;
  }
  ModuleOptions module_options;
  module_options.pool = &KernelPool::shared(threads);
  module_options.cancel = deadline.hard();
  module_options.plan = plan;
  module_options.exact = options.level == Accuracy::Bitwise;
  code.cpu = Module::compile(graph, cache, module_options);
  return code;
}

std::vector<CompiledCode> Session::codes_for(const std::vector<Outcome*>& outcomes) {
  Stopwatch watch(report.compile_s);
  std::vector<CompiledCode> codes(outcomes.size());
  const auto one = [&](Outcome& outcome) -> CompiledCode {
    try {
      return compile(outcome.graph);
    } catch (const Error& e) {
      if (e.kind() == ErrorKind::Cancelled) return {};
      // A missing compiler, a full disk or a broken device would fail every candidate: the user has
      // to know.
      if (e.kind() == ErrorKind::ToolMissing || e.kind() == ErrorKind::Io ||
          e.kind() == ErrorKind::Device)
        throw;
      outcome.fate = Fate::NotCompiled;
      outcome.why = e.what();
      return {};
    }
  };
  eval_pool.parallel_for(int64_t(outcomes.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++) codes[size_t(i)] = one(*outcomes[size_t(i)]);
  });
  return codes;
}

std::string Session::check_failure(const Graph& graph, const CompiledCode& code) {
  Stopwatch watch(report.check_s);
  if (code.cuda && !code.runs()) return emulated_failure(graph);
  CheckOptions check;
  check.seed = options.seed;
  check.pool = &eval_pool;
  check.cancel = deadline.hard();
  if (target.tf32) check.least_unit = kTf32Unit;
  check.normwise = code.cpu ? code.cpu->normwise() : 0;
  CheckReport found;
  auto run = [&](auto in, auto out) {
    if (code.cpu)
      code.cpu->run(in, out);
    else
      code.cuda->module->run_on_host_arrays(in, out);
  };
  if (check_compiled(graph, run, check, &found)) return "";
  return found.what.empty() ? "the compiled code is wrong" : found.what;
}

// The code of a smaller instance of the same program, of the same tiles, in the emulator.
std::string Session::emulated_failure(const Graph& given) {
  WrittenSources written;
  const std::string device = place.device();
  const Graph graph = with_checked_bodies(given, cache, true, best_isa(), device, written);
  constexpr double kMostWork = 2e6;  // multiply-adds: a second or two
  constexpr double kTooMuch = 1e9;   // minutes, in which nothing can be cancelled
  std::optional<Graph> small;
  if (evaluation_cost(graph) > kMostWork) {
    const Symmetry symmetry({&graph}, Folds::Restricted);
    if (const auto kept = symmetry.choose(kMostWork, 2, Rng(options.seed)))
      small = symmetry.restrict(0, *kept);
  }
  // A body is run as it is used: the smaller instance has to have it, too.
  if (small && !(with_checked_bodies(*small, cache, true, best_isa(), device, written) == *small))
    small.reset();
  if (std::ranges::any_of(written, [](const auto& w) {
        return w.second.bodies[0].language == patterns::Language::Raw;
      }))
    return place.context ? "" : "raw CUDA cannot be emulated";
  const CudaChoice whole = cuda_choice(graph, described, place.context);
  // What a library does of the program it does of the smaller one, and the interpreter here; what
  // is one launch is so there too.
  const auto same_joins = [&](const Graph& g) {
    std::vector<KernelJoin> joins;
    for (const KernelJoin& join : whole.joins)
      if (const auto own = kernel_join(g, join.second); own && own->first == join.first)
        joins.push_back(*own);
    return joins;
  };
  if (small &&
      (small->ops().size() != graph.ops().size() ||
       same_joins(*small).size() != whole.joins.size()) &&
      !whole.joins.empty())
    small.reset();
  const Graph& run = small ? *small : graph;
  if (evaluation_cost(run) > kTooMuch)
    return "there is no instance of it small enough for the emulator: the smallest takes " +
           std::to_string(int64_t(evaluation_cost(run) / 1e6)) + " million multiply-adds";
  CudaChoice choice;
  if (run.ops().size() == graph.ops().size()) {
    for (const auto& [op, call] : whole.calls)
      if (const auto own = same_call(run, OpId(op), call))
        choice.calls[op] = own->after_padding().value_or(*own);
    choice.joins = same_joins(run);
  }
  CudaProgram emitted =
      emit_cuda(run, place.arch, {}, described, choice.calls, choice.joins, written);
  const std::string key = sha256_hex("emulated " + print(run) + emitted.source);
  if (cache.find_text(key)) return "";
  const EmulatedProgram program(run, std::move(emitted));
  std::optional<KernelFault> fault;
  CheckOptions check;
  check.seed = options.seed;
  check.pool = &eval_pool;
  check.cancel = deadline.hard();
  check.max_work = evaluation_cost(run);  // the most telling inputs
  if (target.tf32) check.least_unit = kTf32Unit;
  CheckReport found;
  const auto emulated = [&](auto in, auto out) {
    if (!fault) fault = program.run(in, out, options.seed + 1);
  };
  const bool right = check_compiled(run, emulated, check, &found).has_value();
  if (fault) return "the emulator finds a fault: " + fault->str();
  if (!right && deadline.ended())
    throw Error(ErrorKind::Cancelled, "the budget ended before the kernels were emulated");
  if (right) {
    cache.store_text(key, "right");
    return "";
  }
  return found.what.empty() ? "the emulated code is wrong" : found.what;
}

std::vector<Timing> Session::race(const std::vector<CompiledCode>& codes, const RaceInputs& inputs,
                                  double seconds, double limit_seconds) {
  std::vector<Timing> timings;
  if (codes[0].runs()) {
    if (codes[0].cuda) {
      timings = race_on_device(codes, inputs, seconds, deadline.hard());
      learn(codes, timings);
      return timings;
    }
    std::vector<std::shared_ptr<Module>> modules = mapped(codes, &CompiledCode::cpu);
    const std::vector<const RaceInputs*> each(modules.size(), &inputs);
    return tessera::race(modules, each, seconds, limit_seconds);
  }
  for (const CompiledCode& c : codes) {
    Timing t;
    t.median_s = t.min_s = c.model_seconds;
    t.speedup = codes[0].model_seconds / c.model_seconds;
    t.speedup_low = t.speedup_high = t.speedup;
    timings.push_back(t);
  }
  return timings;
}

void Session::learn(const std::vector<CompiledCode>& codes, const std::vector<Timing>& timings) {
  constexpr size_t kMostRows = 256;
  for (size_t i = 0; i < timings.size(); ++i)
    measured_.push_back({codes[i].modelled, timings[i].median_s});
  if (measured_.size() > kMostRows)
    measured_.erase(measured_.begin(), measured_.end() - std::ptrdiff_t(kMostRows));
  fit_model();
  if (options.use_cache)
    cache.store_text(rows_key(*place.context, described), print_rows(measured_));
}

void Session::fit_model() {
  report.model = fit_scales(measured_);
  target.scale = report.model->worthwhile() ? report.model->scales : described.scale;
}

bool Session::passes_filter(const Filter& filter, Outcome& outcome) {
  Stopwatch watch(report.verify_s);
  try {
    if (filter.may_equal(outcome.graph)) return true;
    outcome.why = "differs from the original in a finite field";
  } catch (const Error& e) {
    outcome.why = e.what();
  }
  outcome.fate = Fate::Unknown;
  return false;
}

std::optional<Verified> Session::prove(Verifier& verifier, Outcome& outcome, const Graph* between) {
  Stopwatch watch(report.verify_s);
  try {
    Acceptance a = verifier.accept(outcome.graph, between);
    if (a.verified && options.level == Accuracy::Bitwise) {
      outcome.why = inexact_operator(outcome.graph);
      if (!outcome.why.empty()) {
        outcome.fate = Fate::NotCompiled;
        return std::nullopt;
      }
    }
    if (a.verified) {
      if (target.tf32 && has_f32_products(outcome.graph))
        a.verified->note("factors of products in f32 may be rounded to 10 bits of fraction (tf32), "
                         "as was asked for; the error bounds are those of f32");
      return std::move(a.verified);
    }
    outcome.why = a.verdict.str();
    if (deadline.proofs_ended()) return std::nullopt;
    outcome.fate = a.verdict.refuted() ? Fate::Refuted : Fate::Unknown;
  } catch (const Error& e) {
    outcome.fate = Fate::Unknown;
    outcome.why = e.what();
  }
  return std::nullopt;
}

std::optional<CheckedCode> Session::check(const Graph& graph, CompiledCode code, std::string& why,
                                          const std::string& before) {
  why.clear();
  if (before.empty() || before != sha256_hex(code.source())) why = check_failure(graph, code);
  if (!why.empty()) return std::nullopt;
  return CheckedCode(graph, std::move(code));
}

std::optional<CheckedCode> Session::check(Outcome& outcome, const CompiledCode& code,
                                          const std::string& before) {
  try {
    auto checked = check(outcome.graph, code, outcome.why, before);
    if (!checked && !deadline.ended()) outcome.fate = Fate::CheckFailed;
    return checked;
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::Cancelled) throw;
    outcome.why = e.message();
    return std::nullopt;
  }
}

void keep_times(Outcome& o, const Timing& t) {
  const bool measured = t.rounds > 0;
  o.fate = measured ? Fate::Measured : Fate::Proposed;
  o.seconds = measured ? t.median_s : 0;
  o.least_seconds = measured ? t.min_s : 0;
  o.spread = measured ? t.spread : 0;
  o.warm_seconds = t.warm_s;
  o.speedup = t.speedup;
}

VerifyOptions Session::verify_options() const {
  VerifyOptions v;
  v.level = options.level;
  v.special = options.special;
  v.accept_tested = options.accept_tested;
  v.seed = options.verify_seed;
  v.threads = workers;
  v.minimise = false;
  v.cancel = deadline.proofs();
  return v;
}

}  // namespace tessera
