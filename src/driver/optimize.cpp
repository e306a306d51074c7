#include "driver/optimize.h"

#include <algorithm>
#include <numeric>

#include "backend/compiler.h"
#include "base/check.h"
#include "base/error.h"
#include "base/interruption.h"
#include "cost/analytical.h"
#include "driver/contest.h"
#include "driver/partition.h"
#include "driver/program_optimizer.h"
#include "driver/race.h"
#include "driver/results.h"
#include "driver/saved_search.h"
#include "driver/session.h"
#include "driver/simplify.h"
#include "ir/special.h"
#include "ir/text.h"
#include "ir/validate.h"
#include "search/fold/fold.h"
#include "verify/bitwise.h"
#include "verify/interface.h"

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

namespace {

void require_known_engines(const OptimizeOptions& options) {
  static constexpr std::string_view kEngines[] = {"mugraph",     "mutate", "cover",  "patterns",
                                                  "learnt",      "synth",  "rules",  "synth:holes",
                                                  "synth:bound", "fold",   "library"};
  PlanOptions plan;
  for (const std::string& name : options.disable) {
    if (name.starts_with("plan:"))
      disable_plan(plan, name);
    else if (std::ranges::find(kEngines, name) == std::end(kEngines) &&
             !name.starts_with("mugraph:") && !name.starts_with("mutate:"))
      throw Error(ErrorKind::Usage,
                  "unknown engine '" + name +
                      "' to disable; there are mugraph, mugraph:RULE, mutate, mutate:STEP, cover, "
                      "patterns, learnt, synth, synth:holes, synth:bound, rules, fold, library, "
                      "for functions numpy, and plan:{layout,schedule,memory,weights,images,"
                      "transforms,large-transforms,rare-transforms,fuse}");
  }
}

}  // namespace

Target resolve_target(const OptimizeOptions& options) {
  require_known_engines(options);
  const std::string& name = options.target;
  if (const CodePlace place = place_of(name, options.target_directory); place.gpu) {
    Target gpu = fitted_target(find_target(place.description, options.target_directory), place.arch,
                               place.context ? &place.context->device() : nullptr);
    if (options.disable.count("library")) gpu.libraries.clear();
    gpu.tf32 = options.tf32;
    return gpu;
  }
  if (name != "cpu") return find_target(name, options.target_directory);
  Target t = default_cpu_target();
  if (best_isa() < CpuIsa::Avx512 && !options.target_directory.empty())
    t = find_target("cpu-avx2", options.target_directory);
  t.cores = options.threads > 0 ? options.threads : default_threads();
  return t;
}

namespace {

// Fractions of the budget: the engines search until the first, candidates are compiled and raced
// until the second, and the rest is for proofs.
constexpr double kSearchUntil = 0.5, kRaceUntil = 0.75;
// Of the time, what the partially equivalent engine gets at least and at most, before parts are
// improved.
constexpr double kMutateLeast = 0.3, kMutateMost = 0.55;
// Parts of a program are improved until this fraction; the rest is for the proof of the whole.
constexpr double kPartsUntil = 0.65;
// Of a part's time, what the pieces between its reshapes get before the part as a whole.
constexpr double kPiecesUntil = 0.4;
// Once so much is spent, what was found so far is proved as a whole before parts go on.
constexpr double kFirstWholeAt = 0.4;

class Optimizer {
 public:
  Optimizer(const Graph& program, const OptimizeOptions& options,
            const std::function<void(const Progress&)>& progress, const std::atomic<bool>* cancel,
            const std::atomic<bool>* abandon)
      : program_(program), options_(options), s_(options_, progress, cancel, abandon),
        saved_(s_.cache, program, options_, s_.described) {
    result_.original = program;
    s_.report.target = s_.target.name;
    s_.report.threads = s_.threads;
  }

  OptimizeResult run() {
    if (options_.level == Accuracy::Bitwise) {
      const std::string why = s_.place.gpu ? "GPUs have no kernels with the bits of a CPU's library"
                                           : inexact_operator(program_);
      if (!why.empty()) {
        s_.report.original_failed = "level bitwise: " + why;
        return finish();
      }
    }
    const std::string key =
        options_.use_cache ? result_key(program_, options_, s_.described) : std::string();
    bool finished = false, able = true;
    try {
      const Interruptible scope(s_.deadline.hard());
      if (options_.use_cache && !options_.refresh && !saved_.resumed() && remembered(key))
        return finish();
      // A search is of no use without; the original may have been compiled before.
      able = s_.place.gpu || has_compiler();
      finished = !able || improve_program();
      if (options_.compile_only) return finish();
      if (!result_.improved()) keep_original();
    } catch (const Interrupted&) {  // with the best so far
      finished = false;
    } catch (const Error& e) {
      if (!options_.may_lack_code || e.kind() != ErrorKind::ToolMissing) throw;
      s_.report.original_failed = e.message();
      s_.report.no_compiler = true;
      return finish();
    }
    if (!has_code() && s_.report.original_failed.empty()) not_compiled();
    s_.report.too_noisy = s_.report.too_noisy && !result_.improved();
    result_.candidates = std::move(s_.outcomes);
    s_.report.unfinished = s_.report.unfinished || !finished;
    s_.report.resumed = saved_.note();
    if (finished && able)
      saved_.forget();
    else if (!finished)
      s_.report.resumable = saved_.save(s_.deadline.spent());
    // A search that was cut short and found nothing is worth another try, and a race that told
    // nothing: both may be the machine's load.
    const bool cancelled = s_.deadline.cancelled();
    if (options_.use_cache && able && !cancelled && !s_.report.too_noisy && has_code() &&
        (result_.improved() || (finished && !s_.deadline.proofs_ended()))) {
      const bool proposed = options_.only_proposals;
      // A tuning that the budget cut short is worth another try.
      const bool strong =
          options_.kept_budget == 0 && options_.budget_seconds >= OptimizeOptions().budget_seconds;
      if (options_.tune ? !s_.deadline.over() : proposed && result_.improved() && strong)
        store_result(s_.cache, tuned_options(options_), s_.described, result_);
      else if (!options_.tune && (!proposed || options_.searched || result_.improved()))
        store_result(s_.cache, options_, s_.described, result_);
    }
    s_.report.tuned = options_.tune && !cancelled && !s_.deadline.over();
    return finish();
  }

  SearchOutcome search_only() {
    SearchOutcome out;
    CandidateSink sink;
    MemoryOf memory(saved_, memory_prefix(program_));
    try {
      const Interruptible scope(s_.deadline.hard());
      out.report = run_engine(memory, sink);
    } catch (const Interrupted&) {
      out.report.stop = StopReason::TimeBudget;
    }
    out.candidates = std::move(sink.candidates);
    if (options_.bound > 0)
      std::erase_if(out.candidates, [&](const Candidate& c) { return c.cost > options_.bound; });
    out.resumed = saved_.note();
    const bool cut =
        out.report.stop == StopReason::TimeBudget || out.report.stop == StopReason::Cancelled;
    if (cut && options_.engine != "mutate" && options_.engine != "patterns")
      out.resumable = saved_.save(s_.deadline.spent());
    else
      saved_.forget();
    return out;
  }

 private:
  SearchReport run_engine(SearchMemory& memory, CandidateSink& sink) {
    const double seconds = options_.budget_seconds;
    const bool first = options_.slice == 0;
    if (options_.engine == "synth") {
      if (first && !options_.proved && !options_.disable.count("fold"))
        for (Folding& f : fold_weights(program_)) {
          const double cost = AnalyticalModel(s_.target).cost(f.graph).seconds;
          sink.offer({std::move(f.graph), cost, "fold", std::move(f.derivation), {}, false});
        }
      return s_.synthesize(program_, seconds, sink, options_.proved);
    }
    if (options_.engine == "mutate") return s_.mutants(program_, seconds, sink);
    if (options_.engine == "patterns")
      return first ? s_.experts(program_, seconds, sink, options_.proved) : SearchReport();
    return s_.search(program_, "", seconds, &memory, sink);
  }

  // True where nothing was cut short.
  bool improve_program() {
    base_ = simplified(s_, program_);
    const bool simpler = !(base_ == program_);
    if (!options_.compile_only) s_.measure_convolutions(base_);
    const std::vector<Part> parts =
        partition_across_reshapes(base_, s_.computed_with_images(base_));
    s_.report.parts = int(parts.size());
    // A part that is the whole program needs no splicing and no second proof.
    const bool whole = !simpler && parts.size() == 1 &&
                       parts[0].ops.size() + program_.inputs().size() == program_.ops().size();
    const bool finished = propose_mutants();
    if (whole && !mutants_) {
      const double left = s_.deadline.left(), now = s_.deadline.spent();
      MemoryOf memory(saved_, memory_prefix(program_));
      PartResult found = contest(
          program_, 0, "",
          {now + kSearchUntil * left, now + kRaceUntil * left, s_.deadline.seconds()}, memory);
      const bool searched = found.finished;
      s_.report.too_noisy = found.too_noisy;
      take(std::move(found));
      return searched;
    }
    const bool proposed = propose_wholes();
    if (parts.empty() && !simpler && !mutants_) return finished;
    return ((proposed && options_.only_proposals) || improve_parts(parts)) && finished;
  }

  // Whole programs that were found elsewhere; true where one is faster.
  bool propose_wholes() {
    for (const Proposal& p : options_.proposals) {
      if (!(p.of == program_) || s_.deadline.proofs_ended()) continue;
      std::optional<Graph> between = program_between(p.between);
      race_proposal(p.candidate, between ? &*between : nullptr);
    }
    return result_.improved();
  }

  OptimizeResult finish() {
    s_.report.cancelled = s_.deadline.cancelled();
    s_.report.total_s = s_.deadline.spent();
    result_.report = std::move(s_.report);
    s_.tell("done", "", 1, 1);
    return std::move(result_);
  }

  bool remembered(const std::string& key) {
    // What was tuned once, with whatever budget, serves everybody.
    const std::string as_tuned = result_key(program_, tuned_options(options_), s_.described);
    if (auto tuned = load_result(s_.cache, as_tuned); tuned && tuned->improved && restore(*tuned)) {
      s_.report.from_cache = s_.report.tuned = true;
    } else if (auto stored = load_result(s_.cache, key); stored && restore(*stored)) {
      s_.report.from_cache = true;
    } else {
      s_.outcomes.clear();
      return false;
    }
    result_.candidates = std::move(s_.outcomes);
    return true;
  }

  bool has_code() const { return bool(result_.code()); }

  void take(PartResult part) {
    result_.rewrite = std::move(part.rewrite);
    own_ = std::move(part.original);
    keep_original_times(part.original_timing);
    result_.seconds = part.seconds;
    result_.speedup = part.speedup;
  }

  // --- programs of several parts ---------------------------------------------------------------

  // Mutants of the program's linear subprograms. True where nothing was cut short.
  bool propose_mutants() {
    if (s_.place.gpu || options_.disable.count("mutate") || options_.max_block_ops ||
        options_.only_proposals)
      return true;
    mutants_ = std::make_unique<ProgramOptimizer>(s_, base_);
    const double now = s_.deadline.spent(), left = s_.deadline.left();
    const bool finished = mutants_->propose(now + kMutateLeast * left, now + kMutateMost * left);
    if (!mutants_->offers()) mutants_.reset();
    return finished;
  }

  static std::vector<Graph> graphs(const std::vector<Replacement>& replacements) {
    std::vector<Graph> all;
    for (const Replacement& r : replacements) all.push_back(r.graph);
    return all;
  }

  // True where nothing was cut short.
  bool improve_parts(const std::vector<Part>& parts) {
    std::vector<Replacement> replacements;
    bool fresh = mutants_ || !(base_ == program_);
    double whole_seconds = 0;  // that the last proof of a whole took
    const double until = kPartsUntil * s_.deadline.seconds();
    const auto after_each = [&](bool changed, bool last) {
      fresh = fresh || changed;
      if (!fresh || result_.improved() || last || s_.deadline.cancelled() ||
          s_.deadline.spent() <= kFirstWholeAt * s_.deadline.seconds())
        return;
      const double start = s_.deadline.spent();
      combine_best(parts, replacements);
      whole_seconds = s_.deadline.spent() - start;
      fresh = false;
    };
    bool finished = improve_each(parts, until, "", -1, replacements, after_each);
    if (fresh && s_.deadline.left() > whole_seconds)
      combine_best(parts, replacements);
    else if (fresh)
      finished = false;
    return finished && !s_.deadline.proofs_ended();
  }

  // What the cover chose; where that is not faster after all, the parts alone.
  void combine_best(const std::vector<Part>& parts, const std::vector<Replacement>& replacements) {
    const bool had = result_.improved();
    bool another = mutants_ && !options_.disable.count("cover");
    while (another) {
      const std::optional<Graph> whole = mutants_->choose(parts, replacements);
      if (!whole) break;
      combine(*whole, "cover", &mutants_->in_place());
      if (s_.outcomes.back().fate == Fate::Chosen) return mutants_->accept();
      another = mutants_->reject(s_.outcomes.back());
      if (had || s_.deadline.proofs_ended()) return;
    }
    const Graph spliced = splice(base_, parts, graphs(replacements));
    if (!(spliced == program_)) combine(spliced, "parts");
    // What was simplified is proved by itself.
    if (!result_.improved() && !(base_ == program_) && !(spliced == base_) &&
        std::ranges::none_of(s_.outcomes,
                             [&](const Outcome& o) { return o.part < 0 && o.graph == base_; }))
      combine(base_, "parts");
  }

  // The most expensive parts first, each with a share of the time by its cost; equal parts share
  // one result. `within`: the part of the program that these are pieces of, or -1. True where
  // nothing was cut short.
  bool improve_each(const std::vector<Part>& parts, double until, const std::string& label,
                    int within, std::vector<Replacement>& replacements,
                    const std::function<void(bool changed, bool last)>& after_each) {
    const AnalyticalModel model(s_.target);
    std::vector<double> cost;
    for (const Part& p : parts) cost.push_back(model.cost(p.graph).seconds);
    std::vector<size_t> order(parts.size());
    std::iota(order.begin(), order.end(), size_t(0));
    std::ranges::stable_sort(order, [&](size_t a, size_t b) { return cost[a] > cost[b]; });
    double cost_left = std::accumulate(cost.begin(), cost.end(), 0.0);

    for (const Part& p : parts) replacements.push_back({p.graph});
    std::vector<size_t> solved;
    bool finished = true;
    for (size_t n = 0; n < order.size(); n++) {
      const size_t i = order[n];
      const Graph& part = parts[i].graph;
      const auto same =
          std::ranges::find_if(solved, [&](size_t j) { return parts[j].graph == part; });
      if (same != solved.end()) {
        replacements[i] = replacements[*same];
      } else {
        const double now = s_.deadline.spent(), share = cost[i] / std::max(cost_left, 1e-30);
        const double slot = std::max((until - now) * share, std::min(until - now, 0.3));
        if (s_.deadline.cancelled() || now >= until) return false;
        const std::string name = label + std::to_string(n + 1) + "/" + std::to_string(parts.size());
        const Timetable times{now + kSearchUntil * slot, now + kRaceUntil * slot, now + slot};
        finished = improve_part(part, within < 0 ? int(i) : within, name, times, replacements[i]) &&
                   finished;
        solved.push_back(i);
      }
      cost_left -= cost[i];
      after_each(!(replacements[i].graph == part), n + 1 == order.size());
    }
    return finished;
  }

  // Its result goes into `best`; true where it is finished. A part that an earlier run finished is
  // not searched again; like all parts it is proved with the whole program.
  bool improve_part(const Graph& part, int index, const std::string& label, const Timetable& times,
                    Replacement& best) {
    MemoryOf memory(saved_, memory_prefix(part));
    if (const auto known = memory.recall("result")) {
      if (const auto stored = read_result(*known)) {
        Outcome o = stored->winner;
        best = {o.graph, o.speedup};
        o.part = index;
        o.fate = Fate::Measured;
        if (stored->improved) s_.outcomes.push_back(std::move(o));
        return true;
      }
    }
    const size_t first = s_.outcomes.size();
    PartResult found = contest(part, index, label, times, memory);
    best = {found.rewrite ? found.rewrite->graph() : part, found.speedup};
    s_.report.too_noisy = s_.report.too_noisy || found.too_noisy;
    if (!found.finished) return false;
    if (found.too_noisy) return true;
    StoredResult stored;
    for (size_t i = first; i < s_.outcomes.size(); i++)
      if (s_.outcomes[i].fate == Fate::Chosen) stored.winner = s_.outcomes[i];
    stored.improved = found.rewrite.has_value();
    stored.winner.graph = best.graph;
    stored.winner.seconds = found.seconds;
    stored.winner.speedup = found.speedup;
    stored.original_s = found.original_timing.median_s;
    memory.remember("result", print_result(stored));
    return true;
  }

  // The fastest of what engines make of a part and of what they make of the pieces between its
  // reshapes, which come first.
  PartResult contest(const Graph& part, int index, const std::string& label, const Timetable& times,
                     SearchMemory& memory) {
    const std::vector<Part> pieces = partition(part);
    if (pieces.size() < 2) return improve(s_, part, index, label, times, &memory);
    const size_t first = s_.outcomes.size();
    const double now = s_.deadline.spent();
    Candidate spliced;
    spliced.origin = "parts";
    std::vector<Replacement> replacements;
    bool changed = false;
    const bool finished = improve_each(pieces, now + kPiecesUntil * (times.end - now),
                                       label.empty() ? label : label + ", ", index, replacements,
                                       [&](bool improved, bool) { changed = changed || improved; });
    spliced.graph = splice(part, pieces, graphs(replacements));
    spliced.cost = AnalyticalModel(s_.target).cost(spliced.graph).seconds;
    const size_t own = s_.outcomes.size();
    for (size_t i = first; i < own; i++)
      if (s_.outcomes[i].fate == Fate::Chosen) spliced.derivation += s_.outcomes[i].derivation;
    PartResult found =
        improve(s_, part, index, label, times, &memory, changed ? &spliced : nullptr);
    // Where another candidate is faster, the pieces are not what is used.
    const bool used = found.rewrite && changed && s_.outcomes[own].fate == Fate::Chosen;
    for (size_t i = first; i < own && !used; i++)
      if (s_.outcomes[i].fate == Fate::Chosen) s_.outcomes[i].fate = Fate::Measured;
    found.finished = found.finished && finished;
    return found;
  }

  // Parts were improved one by one; the program made of them is raced as a whole and, where that
  // gains, proved. Replaces an earlier one that is slower.
  void combine(Graph spliced, const char* origin, const Graph* between = nullptr) {
    Outcome whole;
    whole.graph = std::move(spliced);
    whole.origin = base_ == program_ || std::string_view(origin) == "cover" ? origin : "synth";
    whole.derivation = s_.report.simplified;
    if (std::string_view(origin) == "cover")
      for (const SubprogramReport& r : s_.report.subprograms)
        for (const auto& a : r.alternatives)
          if (a.chosen) whole.derivation += r.name + ":\n" + a.derivation;
    race_and_keep(std::move(whole), between);
  }

  void race_proposal(const Candidate& c, const Graph* between) {
    Outcome whole;
    whole.graph = fitted_to(program_, c.graph);
    whole.origin = c.origin;
    whole.derivation = c.derivation;
    whole.notes = c.notes;
    whole.model_seconds = c.cost;
    race_and_keep(std::move(whole), between);
  }

  void race_and_keep(Outcome whole, const Graph* between) {
    whole.rank = 1;
    whole.part = -1;
    if (const CompiledCode code = s_.code_for(whole)) race_whole(whole, code, between);
    s_.outcomes.push_back(std::move(whole));
  }

  void race_whole(Outcome& whole, const CompiledCode& code, const Graph* between) {
    CompiledCode original;
    try {
      original = s_.compiled(program_);
      if (options_.compile_only) return;
    } catch (const Error& e) {
      if (e.kind() != ErrorKind::Cancelled) throw;
      return;
    }
    s_.tell("measure", "", 0, 1);
    const double most = std::max(0.02, 0.3 * s_.deadline.left());
    std::vector<Timing> timings;
    {
      Stopwatch watch(s_.report.measure_s);
      timings =
          s_.race({original, code}, RaceInputs(program_, options_.seed), std::min(0.3, most), most);
    }
    keep_times(whole, timings[1]);
    s_.report.too_noisy = s_.report.too_noisy || too_noisy(timings);
    if (!worthwhile(timings[1]) || (result_.improved() && whole.speedup < result_.speedup)) return;
    s_.tell("verify", "", 0, 1);
    Verifier verifier(program_, s_.verify_options());
    std::optional<Verified> verified = s_.prove(verifier, whole, between);
    if (!verified) return;
    std::optional<CheckedCode> checked = s_.check(whole, code);
    if (!checked) return;
    for (Outcome& o : s_.outcomes)
      if (o.part == -1 && o.fate == Fate::Chosen) o.fate = Fate::Measured;
    whole.fate = Fate::Chosen;
    result_.rewrite.emplace(std::move(*verified), std::move(*checked));
    keep_original_times(timings[0]);
    result_.seconds = timings[1].median_s;
    result_.speedup = s_.best_speedup = timings[1].speedup;
  }

  // --- the original, and results of earlier runs -----------------------------------------------

  // The original is compiled code too, and believed as little as any other.
  // `checked`: SHA-256 of source that agreed with the interpreter before.
  void keep_original(const std::string& checked = "") {
    try {
      CompiledCode code = own_ ? own_ : s_.compiled(program_);
      result_.original_code = s_.check(program_, code, s_.report.original_failed, checked);
      if (!s_.report.original_failed.empty()) {
        s_.report.unfinished = s_.report.unfinished || s_.deadline.ended();  // it says nothing
        s_.report.original_failed =
            s_.deadline.ended()
                ? "the budget ended before its compiled code was checked"
                : "its compiled code differs from the interpreter: " + s_.report.original_failed;
      }
      if (result_.original_code) time_original(code);
    } catch (const Error& e) {
      if (e.kind() != ErrorKind::Cancelled) throw;
      not_compiled();
    }
  }

  void not_compiled() {
    s_.report.original_failed = "the budget ended before it was compiled";
    s_.report.unfinished = true;
  }

  // How fast what is kept runs, where no race told; nothing where too little time is left.
  void time_original(const CompiledCode& code) {
    constexpr double kRuns = 8;  // with warming up
    const double left = s_.deadline.left();
    const double expected = AnalyticalModel(s_.target).cost(program_).seconds;
    if (result_.original_s > 0 || s_.deadline.ended() || kRuns * expected > left) return;
    Stopwatch watch(s_.report.measure_s);
    const Timing t =
        s_.race({code}, RaceInputs(program_, options_.seed), std::min(0.05, left / 2), left / 2)[0];
    keep_original_times(t);
    result_.seconds = t.median_s;
  }

  void keep_original_times(const Timing& t) {
    result_.original_s = t.median_s;
    result_.original_least_s = t.min_s;
    result_.original_spread = t.spread;
  }

  // A remembered result is proved again; its code is checked again but where just this was.
  bool restore(const StoredResult& stored) {
    if (stored.improved) {
      Outcome o = stored.winner;
      s_.tell("verify", "", 0, 1);
      Verifier verifier(program_, s_.verify_options());
      o.graph = fitted_to(program_, std::move(o.graph));
      const std::optional<Graph> between = program_between(stored.between);
      auto verified = s_.prove(verifier, o, between ? &*between : nullptr);
      const CompiledCode code = verified ? s_.code_for(o) : CompiledCode();
      if (!code) return false;
      auto checked = s_.check(o, code, stored.checked);
      if (!checked) return false;
      o.fate = Fate::Chosen;
      result_.rewrite.emplace(std::move(*verified), std::move(*checked));
      result_.original_s = stored.original_s;
      result_.seconds = o.seconds;
      result_.speedup = s_.best_speedup = o.speedup;
      s_.outcomes.push_back(std::move(o));
    } else {
      result_.original_s = result_.seconds = stored.original_s;
      keep_original(stored.checked);
    }
    return true;
  }

  std::optional<Graph> program_between(const std::string& text) const {
    if (text.empty()) return std::nullopt;
    try {
      Graph between = parse(text, "<stored result>");
      validate(between);
      if (!interface_difference(program_, between)) return between;
    } catch (const Error&) {  // as good as none
    }
    return std::nullopt;
  }

  const Graph& program_;
  const OptimizeOptions options_;
  Graph base_;  // what is cut into parts: the program, or a simpler one that is proved equal
  Session s_;
  SavedSearch saved_;
  std::unique_ptr<ProgramOptimizer> mutants_;  // null where it offers nothing
  CompiledCode own_;  // of the program as it is, where a race compiled it; not checked
  OptimizeResult result_;
};

OptimizeOptions with_special(const Graph& program, OptimizeOptions options) {
  options.special |= asks_for_nan(program);
  return options;
}

void require_static(const Graph& program) {
  validate(program);
  if (program.level() != Level::Kernel) bad_input("only kernel graphs can be optimized");
  for (const Tensor& t : program.tensors())
    if (!is_static(t.type.shape))
      throw Error(ErrorKind::Unsupported, "tensor " + t.name + " has the symbolic shape " +
                                              str(t.type.shape) +
                                              "; give every symbol a size first (on the "
                                              "command line: --shape N=...)");
}

}  // namespace

Rewrite::Rewrite(Verified verified, CheckedCode code)
    : verified_(std::move(verified)), code_(std::move(code)) {
  CHECK(code_.graph() == verified_.graph());
}

CompiledCode OptimizeResult::code() const {
  return rewrite ? rewrite->code().code() : original_code ? original_code->code() : CompiledCode();
}

OptimizeResult optimize(const Graph& program, const OptimizeOptions& options,
                        const std::function<void(const Progress&)>& progress,
                        const std::atomic<bool>* cancel, const std::atomic<bool>* abandon) {
  require_static(program);
  return Optimizer(program, with_special(program, options), progress, cancel, abandon).run();
}

SearchOutcome search(const Graph& program, const OptimizeOptions& options,
                     const std::function<void(const Progress&)>& progress,
                     const std::atomic<bool>* cancel) {
  require_static(program);
  if (options.engine != "mugraph" && options.engine != "synth" && options.engine != "mutate" &&
      options.engine != "patterns")
    throw Error(ErrorKind::Usage, "unknown engine '" + options.engine +
                                      "'; there are mugraph, synth, mutate and patterns");
  return Optimizer(program, with_special(program, options), progress, cancel, nullptr)
      .search_only();
}

}  // namespace tessera
