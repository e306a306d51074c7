#include "search/mugraph/assemble.h"

#include <algorithm>
#include <set>

#include "base/error.h"
#include "ir/block.h"
#include "ir/validate.h"
#include "search/mugraph/lower.h"
#include "search/mugraph/moments.h"
#include "search/mugraph/represent.h"
#include "search/mugraph/threads.h"
#include "search/mugraph/wide_sums.h"

namespace tessera::mugraph {
namespace {

int block_operators(const Graph& g) {
  int most = 0;
  for (const Graph& b : g.bodies()) {
    int n = sum_of<int>(b.ops(), [&](const Op& op) { return !is_given(op.kind); });
    most = std::max(most, n);
  }
  return most;
}

class Assembler {
 public:
  Assembler(Run& run, const std::vector<Step>& steps, const std::map<size_t, RegionResult>& results)
      : run_(run), steps_(steps), results_(results) {}

  // Whole programs: the best choice everywhere, then one region at a time with its next choices.
  bool combine(CandidateSink& sink) {
    find();
    std::ranges::stable_sort(found_, {}, [](const Found& x) { return x.candidate.cost; });
    take();
    for (Found& f : found_) {
      if (!f.taken) continue;
      if (run_.report.candidates++ == 0) run_.report.best_cost = f.candidate.cost;
      sink.offer(std::move(f.candidate));
    }
    return memory_failed_;
  }

 private:
  using Pick = std::map<size_t, size_t>;  // by step, the number of a choice
  struct Found {
    Candidate candidate;
    std::string structure;
    bool single = true;  // everything in one kernel
    bool taken = false;
  };

  void find() {
    Pick best, written;
    size_t longest = 0;
    for (const auto& [s, r] : results_) {
      if (!r.choices.empty()) best[s] = 0;
      longest = std::max(longest, r.choices.size());
      const auto as_written = std::ranges::find_if(
          r.choices, [&](const Choice& c) { return r.worlds[c.world]->as_written; });
      if (as_written != r.choices.end()) written[s] = size_t(as_written - r.choices.begin());
    }
    offer(best);
    // The program as written, fused only: where rounding forbids the algebra this one still stands.
    if (!written.empty() && (written == best || offer(written)) && !found_.empty())
      found_.back().candidate.as_written = true;
    // Many regions have too many combinations to write them all down.
    const size_t most =
        run_.regions == 1 ? SIZE_MAX : 4 * size_t(std::max(1, run_.budget.candidates));
    // One region at a time with its next choices, in turns.
    for (size_t i = 1; i < longest; ++i) {
      for (const auto& [s, first] : best) {
        if (i >= results_.at(s).choices.size()) continue;
        if (run_.context.cancelled() || run_.out_of_time() || found_.size() >= most) break;
        Pick pick = best;
        pick[s] = i;
        offer(pick);
      }
    }
  }

  bool offer(const Pick& pick) {
    // The estimate of a block's memory leaves out what lowering adds (transposes, scaled copies);
    // where that matters, tiles are chosen again with less.
    std::optional<Candidate> c;
    for (double share : {1.0, 0.7, 0.45}) {
      too_large_ = false;
      c = assemble(pick, share);
      if (!too_large_) break;
    }
    memory_failed_ = memory_failed_ || too_large_;
    if (too_large_) ++run_.report.pruned["memory of the lowered kernel"];
    if (!c) return false;
    Found f{std::move(*c), ""};
    for (const auto& [s, i] : pick) {
      const Choice& choice = results_.at(s).choices[i];
      f.single = f.single && choice.plan.kernels.size() == 1;
      f.structure += std::to_string(choice.world) + choice.plan.structure() + "|";
    }
    found_.push_back(std::move(f));
    return true;
  }

  // Different structures first, then variants; half of the room at most for candidates with notes,
  // since a program that asks for a shift must find candidates that keep it.
  void take() {
    const size_t room = size_t(std::max(1, run_.budget.candidates));
    size_t taken = 0, noted = 0;
    auto add = [&](Found& f) {
      f.taken = true;
      ++taken;
    };
    for (Found& f : found_)
      if (f.candidate.as_written) add(f);
    // Everything in one kernel comes with all its variants.
    for (Found& f : found_)
      if (taken < room / 2 && f.single && !f.taken && f.candidate.notes.empty()) add(f);
    for (int copies = 1; copies <= run_.options.variants && taken < room; ++copies) {
      std::map<std::string, int> structures;
      for (Found& f : found_) {
        if (taken >= room) break;
        const bool notes = !f.candidate.notes.empty();
        const int n = ++structures[f.structure + (notes ? "!" : "")];
        if (f.taken || n > copies) continue;
        if (notes && ++noted > (room + 1) / 2) continue;
        add(f);
      }
    }
  }

  std::optional<Candidate> assemble(const Pick& pick, double share) {
    Graph g(run_.program.name());
    std::vector<TensorId> tensors(run_.program.tensors().size());
    Candidate c;
    c.origin = "mugraph";
    bool carry = false, over_limit = false;
    int added = 0;  // operators of a block by which sums are shifted
    try {
      for (TensorId t : run_.program.inputs())
        copy_op(run_.program, run_.program.producer(t), g, tensors);
      auto mapped = [&](TensorId t) {
        if (!tensors[t.index].valid()) {
          const Op& op = run_.program.producer(t);
          if (!op.constant()) return TensorId();
          tensors[t.index] =
              g.add_const(std::get<ConstAttrs>(op.attrs).value, run_.program.type(t));
        }
        return tensors[t.index];
      };
      for (size_t s = 0; s < steps_.size(); ++s) {
        auto choice = pick.find(s);
        if (steps_[s].kept.valid()) {
          copy(run_.program.op(steps_[s].kept), g, tensors, mapped);
        } else if (choice == pick.end()) {  // not searched: as the program has it
          for (TensorId t : steps_[s].outputs) copy_tree(t, g, tensors, mapped);
        } else {
          const RegionResult& r = results_.at(s);
          const Choice& ch = r.choices[choice->second];
          const World& w = *r.worlds[ch.world];
          if (!w.note.empty()) c.notes.push_back(w.note);
          carry = carry || w.drops_shift;
          if (auto centred = shifted_sums(w, ch.plan, uint32_t(tensors.size()))) {
            if (!lower_centred(*centred, w, share, g, tensors)) return std::nullopt;
            added = std::max(added, centred->added);
            c.derivation += describe(centred->plan, centred->values, centred->region, *centred->nf,
                                     w.region_forms);
            c.derivation += "sums behind variances are taken of differences to a centre c\n";
            continue;
          }
          Plan plan = ch.plan;
          if (share < 1) {
            KernelCounters counters;
            for (Kernel& k : plan.kernels)
              w.kernels.at(plan.parts)->choose_tiles(k, counters, share);
            run_.merge(counters);
          }
          if (!lower_plan(plan, w.graph, w.region, w.region_forms, *w.kernels.at(plan.parts),
                          run_.program, g, tensors)) {
            ++run_.report.pruned["cannot be lowered"];
            return std::nullopt;
          }
          c.derivation += describe(plan, w.graph, w.region, *w.forms, w.region_forms);
        }
      }
      for (TensorId t : run_.program.outputs()) g.add_output(mapped(t));
      // The limit is on what is searched: how values are represented comes afterwards.
      over_limit =
          run_.options.max_block_ops && block_operators(g) > *run_.options.max_block_ops + added;
      if (carry && run_.rule("running maximum")) carry_running_maxima(g, c);
      g = store_sums_wide(g);
      if (run_.rule("thread graphs")) g = form_thread_graphs(g);
      if (run_.context.target->kind == TargetKind::Gpu)
        for (const Graph& b : g.bodies())
          too_large_ = too_large_ || block_memory(b).peak() > run_.context.target->block_bytes();
      if (too_large_) return std::nullopt;
      validate(g);
    } catch (const Error&) {
      ++run_.report.pruned["not valid"];
      return std::nullopt;
    }
    if (over_limit) {
      ++run_.report.pruned["operator limit"];
      return std::nullopt;
    }
    uint64_t hash = structural_hash(g);
    if (!seen_.insert(hash).second) {
      ++run_.report.pruned["duplicate"];
      return std::nullopt;
    }
    c.cost = run_.model.cost(g).seconds;
    c.graph = std::move(g);
    return c;
  }

  // The plan with the sums behind its variances shifted; nothing where none are.
  std::optional<Moments::Centred> shifted_sums(const World& w, const Plan& plan, uint32_t first) {
    if (!run_.rule("moments")) return std::nullopt;
    std::unique_ptr<Moments>& m = moments_[&w];
    if (!m) m = std::make_unique<Moments>(w.graph, w.region, w.region_forms, *w.forms);
    return m->centred(plan, first);
  }

  // Tiles are chosen again; the centres are computed by operators of their own.
  bool lower_centred(Moments::Centred& plan, const World& world, double share, Graph& g,
                     std::vector<TensorId>& tensors) {
    KernelOptions options;
    options.bound_rule = false;  // nothing is searched
    options.memory_share = run_.memory_share;
    const KernelSearch kernels(plan.values, plan.region, world.region_forms, plan.plan.parts,
                               run_.machine, options, run_.resident);
    KernelCounters counters;
    bool fits = true;
    for (Kernel& k : plan.plan.kernels) fits = kernels.choose_tiles(k, counters, share) && fits;
    run_.merge(counters);
    if (!fits) {
      ++run_.report.pruned["memory of shifted sums"];
      return false;
    }
    std::vector<TensorId> known = tensors;
    for (const Moments::Centre& c : plan.centres)
      known.push_back(add_centre(g, tensors[c.tensor.index], c.over));
    if (!lower_plan(plan.plan, plan.values, plan.region, world.region_forms, kernels, run_.program,
                    g, known)) {
      ++run_.report.pruned["cannot be lowered"];
      return false;
    }
    std::copy_n(known.begin(), tensors.size(), tensors.begin());
    return true;
  }

  // Exponentials that enter sums get running maxima, unless that cannot be expressed.
  void carry_running_maxima(Graph& g, Candidate& c) {
    try {
      Graph carried = carry_exponents(g);
      validate(carried);
      if (exponents_are_shifted(g)) c.notes.clear();
      if (structural_hash(carried) == structural_hash(g)) return;
      g = std::move(carried);
      c.notes.clear();
      c.derivation += "exponentials that enter sums are carried with running maxima\n";
    } catch (const Error&) {  // ragged tiles cannot be broadcast
      ++run_.report.pruned["running maximum not expressible"];
    }
  }

  template <class Map>
  void copy(const Op& op, Graph& g, std::vector<TensorId>& tensors, const Map& mapped) {
    for (TensorId t : op.inputs) mapped(t);
    copy_op(run_.program, op, g, tensors);
  }

  template <class Map>
  void copy_tree(TensorId t, Graph& g, std::vector<TensorId>& tensors, const Map& mapped) {
    if (mapped(t).valid()) return;
    const Op& op = run_.program.producer(t);
    for (TensorId u : op.inputs) copy_tree(u, g, tensors, mapped);
    copy(op, g, tensors, mapped);
  }

  Run& run_;
  const std::vector<Step>& steps_;
  const std::map<size_t, RegionResult>& results_;
  bool too_large_ = false;      // the candidate just assembled needs more memory than a block has
  bool memory_failed_ = false;  // that happened to some candidate
  std::vector<Found> found_;
  std::set<uint64_t> seen_;
  std::map<const World*, std::unique_ptr<Moments>> moments_;
};

}  // namespace

bool offer_programs(Run& run, const std::vector<Step>& steps,
                    const std::map<size_t, RegionResult>& results, CandidateSink& sink) {
  return Assembler(run, steps, results).combine(sink);
}

}  // namespace tessera::mugraph
