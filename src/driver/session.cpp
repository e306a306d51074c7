#include "driver/session.h"

#include <algorithm>
#include <cstdio>

#include "backend/check.h"
#include "base/error.h"
#include "cost/analytical.h"
#include "search/mugraph/mugraph.h"
#include "search/rules/library.h"
#include "search/synth/synth.h"

namespace tessera {

Session::Session(const OptimizeOptions& o, const std::function<void(const Progress&)>& progress,
                 const std::atomic<bool>* cancel, const std::atomic<bool>* abandon)
    : options(o), deadline(o.budget_seconds, cancel, abandon), target(resolve_target(o)),
      threads(o.threads > 0 ? o.threads : default_threads()), eval_pool(threads),
      progress_(progress), cancel_(cancel) {
  if (threads != KernelPool::shared().threads()) pool_.emplace(threads);
}

void Session::tell(const std::string& stage, const std::string& part, int done, int total,
                   const SearchReport* search) {
  if (progress_) progress_({stage, part, done, total, search, best_speedup, deadline.spent()});
}

SearchReport Session::search(const Graph& graph, const std::string& part, double seconds,
                             Memory* memory, CandidateSink& sink) {
  if (options.disable.count("mugraph")) {
    SearchReport none;
    none.detail = "engine mugraph is disabled";
    return none;
  }
  AnalyticalModel cost(target);
  Context context;
  context.target = &target;
  context.cost = &cost;
  context.seed = options.seed;
  context.threads = threads;
  context.cancel = cancel_;
  context.memory = memory;
  context.progress = [&](const SearchReport& r) { tell("search", part, 0, 0, &r); };
  Budget budget;
  budget.seconds = std::max(0.0, seconds);
  MugraphOptions engine_options;
  engine_options.max_block_ops = options.max_block_ops;
  engine_options.exhaustive = options.exhaustive;
  for (const std::string& name : options.disable)
    if (name.starts_with("mugraph:")) engine_options.ablate.insert(name.substr(8));
  SearchReport found = Mugraph(engine_options).run(Subprogram{graph}, context, budget, sink);
  tell("search", part, 0, 0, &found);
  return found;
}

const rules::RuleSet* Session::rules() {
  if (options.disable.count("rules")) return nullptr;
  if (!rules_) {
    std::vector<rules::Rule> all;
    std::vector<std::string> problems;
    for (const std::string& folder : options.rule_folders) {
      if (&folder == &options.rule_folders.front())
        all = rules::load_rules(folder);
      else
        rules::load_more(folder, all, problems);
    }
    for (const std::string& p : problems)
      std::fprintf(stderr, "warning: rules left out: %s\n", p.c_str());
    rules_.emplace(std::move(all));
  }
  return &*rules_;
}

SearchReport Session::synthesize(const Graph& graph, double seconds, CandidateSink& sink) {
  Stopwatch watch(report.search_s);
  Context context;
  context.target = &target;
  context.seed = options.seed;
  context.threads = threads;
  context.cancel = cancel_;
  Budget budget;
  budget.steps = 1'000'000;
  budget.seconds = std::max(0.0, seconds);
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
  return Synth(std::move(engine_options)).run(Subprogram{graph}, context, budget, sink);
}

std::shared_ptr<Module> Session::compiled(const Graph& graph) {
  Stopwatch watch(report.compile_s);
  ModuleOptions module_options;
  module_options.pool = pool_ ? &*pool_ : nullptr;
  module_options.cancel = deadline.hard();
  for (const std::string& name : options.disable)
    if (name.starts_with("plan:")) disable_plan(module_options.plan, name);
  return Module::compile(graph, cache, module_options);
}

std::shared_ptr<Module> Session::code_for(Outcome& outcome) {
  try {
    return compiled(outcome.graph);
  } catch (const Error& e) {
    if (e.kind() == ErrorKind::Cancelled) return nullptr;
    // A missing compiler or a full disk would fail every candidate: the user has to know.
    if (e.kind() == ErrorKind::ToolMissing || e.kind() == ErrorKind::Io) throw;
    outcome.fate = Fate::NotCompiled;
    outcome.why = e.what();
    return nullptr;
  }
}

std::string Session::check_failure(const Graph& graph, const Module& module) {
  Stopwatch watch(report.check_s);
  CheckOptions check;
  check.seed = options.seed;
  check.pool = &eval_pool;
  check.cancel = deadline.hard();
  CheckReport found;
  auto run_module = [&](auto in, auto out) { module.run(in, out); };
  if (check_compiled(graph, run_module, check, &found)) return "";
  return found.what.empty() ? "the compiled code is wrong" : found.what;
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

std::optional<Certificate> Session::prove(Verifier& verifier, Outcome& outcome) {
  Stopwatch watch(report.verify_s);
  try {
    Acceptance a = verifier.accept(outcome.graph);
    if (a.verified) return a.verified->certificate();
    outcome.why = a.verdict.str();
    if (deadline.ended()) return std::nullopt;
    outcome.fate = a.verdict.refuted() ? Fate::Refuted : Fate::Unknown;
  } catch (const Error& e) {
    outcome.fate = Fate::Unknown;
    outcome.why = e.what();
  }
  return std::nullopt;
}

bool Session::passes_check(Outcome& outcome, const Module& module) {
  outcome.why = check_failure(outcome.graph, module);
  if (outcome.why.empty()) return true;
  if (!deadline.ended()) outcome.fate = Fate::CheckFailed;
  return false;
}

VerifyOptions Session::verify_options() const {
  VerifyOptions v;
  v.strict = options.strict;
  v.seed = options.verify_seed;
  v.threads = threads;
  v.minimise = false;
  v.cancel = deadline.hard();
  return v;
}

}  // namespace tessera
