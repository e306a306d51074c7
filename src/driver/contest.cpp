#include "driver/contest.h"

#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/text.h"
#include "cost/analytical.h"
#include "driver/partition.h"
#include "driver/race.h"
#include "driver/results.h"
#include "driver/tiles.h"
#include "search/fold/fold.h"

namespace tessera {
namespace {

// A compiled candidate and how fast it was in its last race.
struct Racer {
  size_t outcome = 0;
  CompiledCode code;
  Timing timing;
};

void by_speed(std::vector<Racer>& racers) {
  std::ranges::stable_sort(
      racers, [](const Racer& a, const Racer& b) { return a.timing.speedup > b.timing.speedup; });
}

class Contest {
 public:
  Contest(Session& session, const Graph& spec, int part, const std::string& label,
          const Timetable& times, SearchMemory* memory, const Candidate* also)
      : s_(session), spec_(spec), part_(part), label_(label), times_(times), memory_(memory),
        also_(also), wanted_((session.options.tune ? 16 : 5) + (also ? 1 : 0)),
        first_(session.outcomes.size()) {}

  PartResult run() {
    PartResult result = raced();
    learn(result);
    return result;
  }

 private:
  PartResult raced() {
    PartResult result;
    propose();
    result.finished = searched_;
    if (first_ == s_.outcomes.size()) return result;
    try {
      result.original = original_ = s_.compiled(spec_);
    } catch (const Error& e) {
      if (e.kind() != ErrorKind::Cancelled) throw;
      result.finished = false;
      return result;
    }
    const std::vector<size_t> order = racing_order();
    const RaceInputs inputs(spec_, s_.options.seed);
    const Filter filter(spec_, s_.options.seed + 1, s_.workers);
    Verifier verifier(spec_, s_.verify_options());
    inputs_ = &inputs;
    filter_ = &filter;
    // Where all that were faster than the original fell out, another wave, of what is proved.
    std::map<size_t, Verified> proofs;
    constexpr int kMostAlike = 12;  // that fall for one reason (two lines): so will others
    int tried = 0, alike = 0;
    std::string reason;
    const auto proved = [&](size_t n) {
      s_.tell("verify", label_, tried++, int(order.size()));
      std::optional<Verified> verified = s_.prove(verifier, s_.outcomes[n]);
      if (verified) proofs.emplace(n, std::move(*verified));
      const std::string &why = s_.outcomes[n].why, its = why.substr(0, why.find('\n', 10));
      alike = its == std::exchange(reason, its) ? alike + 1 : 1;
      return proofs.count(n) > 0;
    };
    bool again = true;
    for (size_t next = 0; again && next < order.size() && !s_.deadline.proofs_ended();) {
      again = false;
      const bool first = next == 0;
      std::vector<Racer> racers;
      const auto more = [&] {
        return next < order.size() && !s_.deadline.proofs_ended() && alike < kMostAlike &&
               !(late() && (!racers.empty() || next >= wanted_));
      };
      while (racers.size() < wanted_ && more()) {
        s_.tell("compile", label_, int(next), int(order.size()));
        std::vector<size_t> some;
        for (; some.size() < at_once(wanted_ - racers.size()) && more(); next++) {
          Outcome& o = s_.outcomes[order[next]];
          if (!fell_before(o) && keep_verdict(o, s_.passes_filter(filter, o)) &&
              (first || keep_verdict(o, proved(order[next]))))
            some.push_back(order[next]);
        }
        compile(some, racers);
      }
      if (racers.size() < wanted_ && next < order.size() && alike < kMostAlike)
        result.finished = false;
      if (racers.empty() || s_.options.compile_only) break;

      s_.tell("measure", label_, 0, int(racers.size()));
      race(racers, 0);
      if (s_.options.tune) {
        tune(racers);
        // Who was a little lucky among many is not so again.
        by_speed(racers);
        std::vector<Racer> finalists(
            racers.begin(), racers.begin() + std::ptrdiff_t(std::min<size_t>(4, racers.size())));
        race(finalists, 0);
        racers = std::move(finalists);
      }
      result.original_timing = original_timing_;
      result.seconds = original_timing_.median_s;
      by_speed(racers);
      for (Racer& racer : racers) {
        if (!worthwhile(racer.timing)) continue;
        if (s_.deadline.proofs_ended()) {
          result.finished = false;
          break;
        }
        Outcome& o = s_.outcomes[racer.outcome];
        if (!proofs.count(racer.outcome)) proved(racer.outcome);
        const auto proof = proofs.find(racer.outcome);
        std::optional<CheckedCode> code;
        if (proof != proofs.end()) code = s_.check(o, racer.code);
        if (!keep_verdict(o, code.has_value())) {
          again = !late();
          continue;
        }
        o.fate = Fate::Chosen;
        result.rewrite.emplace(std::move(proof->second), std::move(*code));
        result.seconds = racer.timing.median_s;
        result.speedup = racer.timing.speedup;
        result.finished = result.finished && !cut_short_;
        if (label_.empty()) s_.best_speedup = result.speedup;
        return result;
      }
    }
    result.finished = result.finished && !cut_short_ && !s_.deadline.proofs_ended();
    result.too_noisy = too_noisy_;
    return result;
  }

  // Time to prove what there is: the budget's last part, or the caller wants the best so far.
  bool late() const { return s_.deadline.cancelled() || s_.deadline.spent() > times_.race_until; }

  // --- candidates ------------------------------------------------------------------------------

  void propose() {
    CandidateSink sink;
    for (const Proposal& p : s_.options.proposals)
      if (p.of == spec_) {
        sink.candidates.push_back(p.candidate);
        Graph& graph = sink.candidates.back().graph;
        graph = fitted_to(spec_, std::move(graph));
      }
    searched_ = true;
    if (!s_.options.only_proposals) {
      Stopwatch watch(s_.report.search_s);
      const std::vector<Folding> foldings = foldings_of_part();
      constexpr double kShareOfExperts = 0.2;
      const double all = times_.search_until - s_.deadline.spent();
      if (!s_.options.pattern_folders.empty()) {
        SearchReport experts = s_.experts(spec_, kShareOfExperts * all, sink);
        s_.report.experts.push_back(std::move(experts));
      }
      const double time = times_.search_until - s_.deadline.spent();
      search_seconds_ = foldings.empty() ? time : 0.7 * time;
      if (known_ = s_.learnt.recall(spec_, search_seconds_); known_) {
        take_known(sink);
      } else {
        s_.report.searches.push_back(s_.search(spec_, label_, search_seconds_, memory_, sink));
        searched_ = complete(s_.report.searches.back());
      }
      for (const Folding& f : foldings) add_folding(f, sink);
    }
    std::ranges::stable_sort(sink.candidates, {}, &Candidate::cost);
    if (also_) sink.candidates.insert(sink.candidates.begin(), *also_);
    for (Candidate& c : sink.candidates) {
      Outcome o;
      o.graph = std::move(c.graph);
      o.origin = std::move(c.origin);
      o.derivation = std::move(c.derivation);
      o.notes = std::move(c.notes);
      o.as_written = c.as_written;
      o.part = part_;
      o.rank = int(s_.outcomes.size() - first_) + 1;
      o.model_seconds = c.cost;
      s_.outcomes.push_back(std::move(o));
    }
  }

  // What an earlier search came to, in place of another one.
  void take_known(CandidateSink& sink) {
    SearchReport report;
    report.detail = known_->note;
    if (known_->graph) {
      report.candidates = 1;
      report.best_cost = AnalyticalModel(s_.target).cost(*known_->graph).seconds;
      sink.offer({*known_->graph, report.best_cost, "mugraph", known_->note + "\n", {}, false});
    }
    s_.report.searches.push_back(std::move(report));
    searched_ = true;
  }

  // Keeps what the search found, or that there is nothing to find, for programs of this meaning.
  void learn(const PartResult& result) {
    if (known_ || s_.options.only_proposals || s_.options.disable.count("mugraph") ||
        s_.deadline.cancelled())
      return;
    const Outcome* chosen = nullptr;
    bool raced = false;
    for (size_t i = first_; i < s_.outcomes.size(); i++) {
      const Outcome& o = s_.outcomes[i];
      if (o.fate == Fate::Chosen) chosen = &o;
      raced = raced || o.fate == Fate::Measured;
    }
    // What other engines found, or what nobody had the time to look at, tells nothing.
    if (chosen ? chosen->origin != "mugraph" && chosen->origin != "mugraph+tiles"
               : too_noisy_ || s_.deadline.proofs_ended() || (cut_short_ && !raced))
      return;
    const std::string times = ", " + significant(1e6 * result.seconds, 3) + " us against " +
                              significant(1e6 * result.original_timing.median_s, 3) + " us";
    s_.learnt.remember(spec_, chosen ? &chosen->graph : nullptr, search_seconds_, searched_,
                       "found by searching " + spec_.name() + " for " + s_.target.name + times);
  }

  static bool complete(const SearchReport& r) {
    return r.stop != StopReason::TimeBudget && r.stop != StopReason::Cancelled;
  }

  std::vector<Folding> foldings_of_part() const {
    if (s_.options.disable.count("fold") || s_.options.disable.count("plan:weights")) return {};
    return fold_weights(spec_);
  }

  // A program in which more depends on weights alone, and what the engine makes of the rest of it.
  void add_folding(const Folding& f, CandidateSink& sink) {
    constexpr size_t kMostOfOne = 4;
    if (s_.deadline.cancelled()) return;
    const std::vector<Part> parts = partition(f.graph);
    if (parts.size() != 1) return;
    const double cost = AnalyticalModel(s_.target).cost(parts[0].graph).seconds;
    sink.offer({f.graph, cost, "fold", f.derivation, {}, false});
    CandidateSink of_part;
    std::optional<MemoryOf> memory;
    if (memory_) memory.emplace(*memory_, memory_prefix(parts[0].graph));
    s_.report.searches.push_back(s_.search(parts[0].graph, label_,
                                           times_.search_until - s_.deadline.spent(),
                                           memory ? &*memory : nullptr, of_part));
    searched_ = searched_ && complete(s_.report.searches.back());
    for (Candidate& c : of_part.candidates) {
      if (&c - of_part.candidates.data() >= std::ptrdiff_t(kMostOfOne)) break;
      c.graph = splice(f.graph, parts, {c.graph});
      c.origin = "fold+" + c.origin;
      c.derivation = f.derivation + c.derivation;
      sink.candidates.push_back(std::move(c));
    }
  }

  // The order in which candidates race: by modelled cost; an engine's note is a doubt (such as a
  // dropped maximum), and those come last. The program as written, only fused, races at once: it
  // stands where rounding forbids the algebra of all others.
  std::vector<size_t> racing_order() const {
    std::vector<size_t> order;
    const size_t own = first_ + (also_ ? 1 : 0);
    for (bool doubted : {false, true})
      for (size_t i = own; i < s_.outcomes.size(); i++)
        if (s_.outcomes[i].notes.empty() != doubted) order.push_back(i);
    spread(order, s_.outcomes, own_places());
    heed_experts(order, s_.outcomes, own_places());
    for (size_t at = own_places(); at < order.size(); at++) {
      if (!s_.outcomes[order[at]].as_written) continue;
      std::rotate(order.begin() + std::ptrdiff_t(own_places()) - 1,
                  order.begin() + std::ptrdiff_t(at), order.begin() + std::ptrdiff_t(at) + 1);
      break;
    }
    if (also_) order.insert(order.begin(), first_);
    return order;
  }

  // In the first wave, for what the engines propose.
  size_t own_places() const { return wanted_ - (also_ ? 1 : 0); }

  // --- verdicts of earlier runs ----------------------------------------------------------------

  static std::string verdict_name(const Outcome& o) {
    return "verdict " + std::to_string(structural_hash(o.graph));
  }

  // Remembers why a candidate fell out; only refusals are kept, acceptance is proved again.
  bool keep_verdict(const Outcome& o, bool passed) {
    if (!passed && memory_ && o.fate != Fate::Proposed && o.fate != Fate::Measured)
      memory_->remember(verdict_name(o), std::to_string(int(o.fate)) + " " + o.why);
    return passed;
  }

  bool fell_before(Outcome& o) {
    const auto known = memory_ ? memory_->recall(verdict_name(o)) : std::nullopt;
    if (!known) return false;
    const int fate = std::atoi(known->c_str());
    for (Fate f : {Fate::Refuted, Fate::Unknown, Fate::NotCompiled, Fate::CheckFailed}) {
      if (int(f) != fate) continue;
      o.fate = f;
      o.why = known->substr(std::min(known->size(), known->find(' ') + 1));
      return true;
    }
    return false;
  }

  // --- races -----------------------------------------------------------------------------------

  // Candidates that are compiled side by side, of those wanted.
  size_t at_once(size_t wanted) const { return std::min(wanted, size_t(s_.workers)); }

  void compile(const std::vector<size_t>& which, std::vector<Racer>& racers) {
    std::vector<Outcome*> outcomes = mapped(which, [&](size_t i) { return &s_.outcomes[i]; });
    std::vector<CompiledCode> codes = s_.codes_for(outcomes);
    for (size_t k = 0; k < which.size(); k++)
      if (keep_verdict(*outcomes[k], bool(codes[k])))
        racers.push_back({which[k], std::move(codes[k]), {}});
  }

  // Times the racers from `from` on against the original.
  void race(std::vector<Racer>& racers, size_t from) {
    Stopwatch watch(s_.report.measure_s);
    std::vector<CompiledCode> codes{original_};
    for (size_t i = from; i < racers.size(); i++) codes.push_back(racers[i].code);
    const double left = times_.end - s_.deadline.spent();
    const double most = std::max(0.02, 0.4 * left);
    const double wanted = std::min(s_.options.tune ? 4.0 : 1.0, 0.15 * double(codes.size()));
    const std::vector<Timing> timings = s_.race(codes, *inputs_, std::min(wanted, most), most);
    if (timings.size() < codes.size()) {
      racers.resize(from + timings.size() - 1);
      cut_short_ = true;
    }
    for (size_t i = from; i < racers.size(); i++) {
      racers[i].timing = timings[i - from + 1];
      keep_times(s_.outcomes[racers[i].outcome], racers[i].timing);
    }
    original_timing_ = timings[0];
    too_noisy_ = too_noisy(timings);
  }

  // Other tiles for the fastest racers: the variants that the model likes best are compiled and
  // timed, and those that won are varied again, until nothing gains one percent.
  void tune(std::vector<Racer>& racers) {
    constexpr size_t kBases = 3, kPerWave = 8;
    constexpr int kWaves = 6;
    const AnalyticalModel model(s_.target);
    std::set<uint64_t> seen;
    for (const Racer& r : racers) seen.insert(structural_hash(s_.outcomes[r.outcome].graph));
    by_speed(racers);
    for (int wave = 0; wave < kWaves && !late(); wave++) {
      struct Variant {
        double model_seconds;
        size_t base;
        Graph graph;
      };
      std::vector<Variant> variants;
      for (size_t b = 0; b < std::min(kBases, racers.size()); b++)
        for (Graph& g : retilings(s_.outcomes[racers[b].outcome].graph))
          if (seen.insert(structural_hash(g)).second) {
            double seconds = model.cost(g).seconds;
            variants.push_back({seconds, racers[b].outcome, std::move(g)});
          }
      std::ranges::stable_sort(variants, {}, &Variant::model_seconds);
      const double best = racers[0].timing.speedup;
      const size_t from = racers.size();
      std::vector<size_t> some;
      const auto compile_some = [&] {
        s_.tell("tune", label_, int(racers.size() - from),
                int(std::min(kPerWave, variants.size())));
        compile(some, racers);
        some.clear();
      };
      for (Variant& v : variants) {
        if (racers.size() - from + some.size() >= kPerWave || late()) break;
        Outcome o = s_.outcomes[v.base];
        o.graph = std::move(v.graph);
        o.origin += o.origin.ends_with("tiles") ? "" : "+tiles";
        o.model_seconds = v.model_seconds;
        o.as_written = false;
        o.rank = int(s_.outcomes.size()) + 1;
        o.fate = Fate::Proposed;
        o.seconds = o.warm_seconds = o.speedup = 0;
        s_.outcomes.push_back(std::move(o));
        Outcome& made = s_.outcomes.back();
        if (s_.passes_filter(*filter_, made)) some.push_back(s_.outcomes.size() - 1);
        if (some.size() == at_once(kPerWave - (racers.size() - from))) compile_some();
      }
      if (!some.empty()) compile_some();
      if (racers.size() == from) break;
      race(racers, from);
      by_speed(racers);
      if (racers[0].timing.speedup < 1.01 * best) break;
    }
  }

  Session& s_;
  const Graph& spec_;
  const int part_;
  const std::string& label_;
  const Timetable& times_;
  SearchMemory* memory_;
  const Candidate* also_;
  const size_t wanted_;  // in one wave
  const size_t first_;   // of this part's outcomes
  bool searched_ = false;
  double search_seconds_ = 0;  // that the search had at most
  std::optional<KnownSearch> known_;
  bool cut_short_ = false;  // some of a wave did not race
  bool too_noisy_ = false;  // the last race
  Timing original_timing_;  // in it
  CompiledCode original_;
  const RaceInputs* inputs_ = nullptr;
  const Filter* filter_ = nullptr;
};

}  // namespace

void spread(std::vector<size_t>& order, const std::vector<Outcome>& outcomes, size_t wanted) {
  constexpr double kTold = 1.02;  // the model's costs differ by more
  size_t tied = 0;
  while (tied < order.size() && outcomes[order[tied]].notes.empty() &&
         outcomes[order[tied]].model_seconds <= kTold * outcomes[order[0]].model_seconds)
    tied++;
  if (tied <= wanted) return;
  const size_t places = wanted - 1;  // one is for the program as written
  for (size_t k = 1; k < places; k++) {
    const auto from = order.begin() + std::ptrdiff_t(k * tied / places);
    std::rotate(order.begin() + std::ptrdiff_t(k), from, from + 1);
  }
}

void heed_experts(std::vector<size_t>& order, const std::vector<Outcome>& outcomes, size_t wanted) {
  if (wanted <= 2 || order.size() <= wanted) return;
  const auto expert = [&](size_t i) {
    return outcomes[i].origin == "patterns" && outcomes[i].notes.empty();
  };
  const auto found = std::ranges::find_if(order, expert);
  // Behind it is the place of the program as written.
  const auto place = order.begin() + std::ptrdiff_t(wanted) - 2;
  if (found != order.end() && found > place) std::rotate(place, found, found + 1);
}

PartResult improve(Session& session, const Graph& part, int index, const std::string& label,
                   const Timetable& times, SearchMemory* memory, const Candidate* also) {
  return Contest(session, part, index, label, times, memory, also).run();
}

}  // namespace tessera
