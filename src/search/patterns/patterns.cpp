#include "search/patterns/patterns.h"

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>

#include "base/deadline.h"
#include "base/error.h"
#include "cost/analytical.h"
#include "ir/build.h"
#include "ir/written.h"
#include "search/patterns/check.h"
#include "search/patterns/identify.h"
#include "search/patterns/instantiate.h"
#include "search/patterns/region.h"
#include "verify/funnel.h"

namespace tessera {
namespace patterns {
namespace {

constexpr size_t kBestOfPlace = 3;  // settings offered of one pattern in one place

// An instance in its place.
struct Use {
  const Pattern* pattern = nullptr;
  Region region;
  Graph graph;  // of the region's inputs and output
  double seconds = 0, original = 0;
  std::string what;  // with which sizes, numbers and settings
  // What a proof came to, of this and its likes elsewhere: why it is refused, or "".
  std::shared_ptr<std::optional<std::string>> verdict;
};

// How a value lies in what is stored: its rows as they are, its last two axes swapped, or neither.
enum class Lies { Rows, Transposed, Otherwise };

// What came of a pattern and a region: regions that are alike, as in a model's layers, share one.
struct Answer {
  const Pattern* pattern = nullptr;
  Graph region;
  std::vector<Lies> lies;  // of the region's inputs, where a guard asks
  std::string where;       // the first place
  std::vector<Use> uses;   // in the region
  std::string why;         // some of it, or all, is refused
};

// The program with regions computed by instances; none overlap.
Graph with_uses(const Graph& program, const std::vector<const Use*>& uses) {
  std::map<uint32_t, const Use*> at;
  for (const Use* u : uses) at[u->region.output.index] = u;
  const auto replace = [&](const Op& op, Graph& out, std::vector<TensorId>& map) {
    const auto use = op.num_results == 1 ? at.find(op.result().index) : at.end();
    if (use == at.end()) return false;
    auto inputs = mapped(use->second->region.inputs, [&](TensorId t) { return map[t.index]; });
    map[op.result().index] = build::graph(out, use->second->graph, inputs)[0];
    return true;
  };
  return without_dead_code(rewritten(program, replace));
}

class Run {
 public:
  Run(const PatternsOptions& options, const Graph& program, Context& context, const Budget& budget)
      : options_(options), program_(program), context_(context), budget_(budget),
        deadline_(budget.seconds, context.cancel, context.cancel), model_(*context.target) {}

  SearchReport run(CandidateSink& sink) {
    const std::vector<Pattern>& all = *options_.warehouse;
    const std::vector<Subgraph> subgraphs = identify(program_, all, &deadline_);
    report_.original_cost = model_.cost(program_).seconds;
    for (const Subgraph& s : subgraphs) {
      for (Region& r : regions(program_, s.ops)) {
        // The same region may come of several subgraphs.
        std::vector<uint32_t> key = {r.output.index};
        for (OpId id : r.ops) key.push_back(id.index);
        for (size_t p : s.patterns) {
          if (deadline_.ended()) break;
          std::vector<uint32_t> mine = key;
          mine.push_back(uint32_t(p));
          if (seen_.insert(std::move(mine)).second) try_pattern(all[p], r);
        }
      }
    }
    offer(sink);
    report_.seconds = deadline_.spent();
    report_.stop = deadline_.cancelled() ? StopReason::Cancelled
                   : deadline_.ended()   ? StopReason::TimeBudget
                                         : StopReason::Exhausted;
    for (const auto& [key, why] : near_)
      if (!matched_.count(key)) report_.refused.push_back(why);
    return std::move(report_);
  }

 private:
  std::string label(const Region& r) const {
    const std::string& name = program_.tensor(r.output).name;
    return name.empty() ? "%" + std::to_string(r.output.index) : name;
  }
  std::string place(const Region& r) const {
    std::string ops;
    for (OpId id : r.ops)
      ops += (ops.empty() ? "" : " ") + std::string(tessera::name(program_.op(id).kind));
    return label(r) + " (" + ops + ")";
  }
  void try_pattern(const Pattern& p, const Region& r) {
    std::vector<Answer>& known = known_[structural_hash(r.graph)];
    const auto of_layout = [](const Condition& c) { return c.comparison == "layout"; };
    bool asks = std::ranges::any_of(p.when, of_layout);
    for (const Body& b : p.bodies) asks = asks || std::ranges::any_of(b.when, of_layout);
    std::vector<Lies> lies;
    if (asks)
      for (TensorId t : r.inputs) lies.push_back(lie(program_, t));
    auto at = std::ranges::find_if(known, [&](const Answer& a) {
      return a.pattern == &p && a.region == r.graph && a.lies == lies;
    });
    std::string like;
    if (at == known.end()) {
      Answer made{&p, r.graph, lies, label(r), {}, {}};
      answer(p, r, made);
      at = known.insert(known.end(), std::move(made));
    } else {
      like = "as at " + at->where + ": ";
    }
    const std::string in_place = p.name + " at " + place(r);
    if (!at->why.empty())
      near_.insert_or_assign(std::pair(p.name, r.output.index), in_place + ": " + like + at->why);
    for (Use u : at->uses) {
      u.region = r;
      u.what = "pattern " + in_place + u.what;
      if (!options_.verify) matched_.insert({p.name, r.output.index});
      uses_.push_back(std::move(u));
    }
  }

  void answer(const Pattern& p, const Region& r, Answer& a) {
    int rank = 0;
    for (const Tensor& t : r.graph.tensors()) rank = std::max(rank, t.type.rank());
    int wanted = most_of(0, p.def.tensors(), [&](const Tensor& t) { return t.type.rank(); });
    const int merge = std::max(1, rank - wanted + 1);
    const std::optional<Graph> merged = merge_leading(r.graph, merge);
    const std::optional<Graph> small = merged ? reduced(*merged) : std::nullopt;
    if (!merged) {
      a.why = "its leading axes are no single axis, and the pattern has only " +
              std::to_string(wanted) + " axes";
    } else if (!small) {
      a.why = "its operators tie the sizes of its axes to each other";
    } else {
      const Matches found = match(p, *merged, *small, context_.seed);
      a.why = found.why;
      for (const Match& m : found.found) use(p, r, *merged, m, a);
    }
  }

  // Why a guard does not hold; empty where it does.
  std::string against(const Pattern& p, const Condition& c, const Region& r, const Graph& merged,
                      const Match& m, const Values& values) const {
    const DType dtype = merged.tensor(merged.outputs()[0]).type.dtype;
    const std::string no = "'" + c.str() + "' does not hold";
    if (!c.holds(values, dtype))
      return no + " for " + sizes(m, dtype) +
             (c.comparison == "align"
                  ? ": a row of " + c.operand + " has " +
                        std::to_string(c.left.value(values).value_or(0) * size_in_bytes(dtype)) +
                        " bytes"
                  : "");
    if (c.comparison != "layout") return "";
    TensorId t = m.inputs[*p.input(c.operand)];
    Lies lies = lie(merged, t);
    const Graph* g = &merged;
    if (const auto& in = merged.inputs(); lies == Lies::Rows && is_input(merged.producer(t).kind)) {
      t = r.inputs[size_t(std::ranges::find(in, t) - in.begin())];
      g = &program_;
      lies = lie(program_, t);
    }
    if (lies == (c.transposed ? Lies::Transposed : Lies::Rows)) return "";
    const std::string& stored = g->tensor(t).name;
    return no + ": " + c.operand +
           (lies == Lies::Rows ? " lies row by row" : " is a transpose of what is stored") +
           (stored.empty() ? "" : " ('" + stored + "')");
  }
  // How a value lies in what it is made of by moving elements, through names for the same elements
  // that keep the last two axes; `t` becomes that.
  static Lies lie(const Graph& g, TensorId& t) {
    for (;;) {
      const Op& op = g.producer(t);
      if (op.kind == OpKind::Transpose) {
        const std::vector<int>& perm = g.attrs<PermAttrs>(op).perm;
        const int last = int(perm.size()) - 1;
        t = op.inputs[0];
        return perm[size_t(last)] == last                                         ? Lies::Rows
               : perm[size_t(last)] == last - 1 && perm[size_t(last) - 1] == last ? Lies::Transposed
                                                                                  : Lies::Otherwise;
      }
      if (!is_reshape(op.kind)) return Lies::Rows;
      const Shape &to = g.type(t).shape, &from = g.type(op.inputs[0]).shape;
      if (to.size() < 2 || from.size() < 2 || !std::equal(to.end() - 2, to.end(), from.end() - 2))
        return Lies::Rows;
      t = op.inputs[0];
    }
  }

  void use(const Pattern& p, const Region& r, const Graph& merged, const Match& m, Answer& a) {
    const DType dtype = merged.tensor(merged.outputs()[0]).type.dtype;
    for (const Condition& c : p.when)
      if (const std::string no = against(p, c, r, merged, m, m.symbols); !no.empty()) {
        a.why = "its guard " + no;
        return;
      }
    const bool gpu = context_.target->kind != TargetKind::Cpu;
    std::vector<Use> made;
    std::set<uint64_t> known;
    std::string why = "no body of it is for this target";
    for (const Body& b : p.bodies) {
      if (!b.target.empty() && b.target != (gpu ? "cuda" : "cpu")) continue;
      if (!b.unusable.empty()) {
        if (why[0] == 'n') why = b.unusable;
        continue;
      }
      for (const Values& setting : settings(p)) {
        if (deadline_.ended()) return;
        Values values = m.symbols;
        values.insert(setting.begin(), setting.end());
        std::string no;
        for (const Condition& c : b.when)
          if (no.empty()) no = against(p, c, r, merged, m, values);
        if (!no.empty()) {
          if (why[0] == 'n') why = "of its body the guard " + no;
          continue;
        }
        try {
          Use u;
          u.graph = unmerged(r.graph, instantiate(p, b, m, setting, merged));
          if (!known.insert(structural_hash(u.graph)).second) continue;
          u.pattern = &p;
          u.region = r;
          if (!called(b, u.graph)) {
            why = b.library + " has no call for it on " + context_.target->name + " with " +
                  sizes(m, dtype);
            continue;
          }
          u.seconds = model_.cost(u.graph).seconds;
          u.what = describe(p, merged, m, setting);
          if (b.language == Language::Torch)
            u.what += ", called as torch " + b.text;
          else if (b.written())
            u.what += ", body of line " + std::to_string(b.line);
          report_.tilings++;
          made.push_back(std::move(u));
        } catch (const Error& e) {
          why = e.message();
        }
      }
    }
    if (made.empty()) {
      a.why = why;
      return;
    }
    std::ranges::stable_sort(made, {}, &Use::seconds);
    // What a person wrote is known to the model by what it computes only: the first of them runs.
    const auto written = std::ranges::find_if(made, [](const Use& u) {
      return std::ranges::any_of(
          u.graph.ops(), [&](const Op& op) { return written_kernel(u.graph, op).has_value(); });
    });
    if (written != made.end() && written - made.begin() >= std::ptrdiff_t(kBestOfPlace))
      std::iter_swap(written, made.begin() + kBestOfPlace - 1);
    if (made.size() > kBestOfPlace) made.resize(kBestOfPlace);
    const double original = model_.cost(r.graph).seconds;
    for (Use& u : made) {
      u.original = original;
      u.verdict = std::make_shared<std::optional<std::string>>();
      a.uses.push_back(std::move(u));
    }
  }

  // Whether the library that a body names takes its operators in a call. Those of a CPU are ours.
  bool called(const Body& b, const Graph& g) const {
    if (b.library.empty() || b.target == "cpu") return true;
    for (const AnalyticalModel::KernelCost& k : model_.kernels(g))
      if (k.call && (k.call->kind == LibraryCall::Kind::Matmul) == (b.library == "cublaslt"))
        return true;
    return false;
  }

  // Whether a use may be offered; each is proved once, when it is to be.
  bool accepted(const Use& u) {
    if (!options_.verify) return true;
    if (!u.verdict->has_value()) *u.verdict = refusal(u);
    const std::pair at(u.pattern->name, u.region.output.index);
    if ((*u.verdict)->empty())
      matched_.insert(at);
    else
      near_.insert_or_assign(at, at.first + " at " + place(u.region) + ": " + **u.verdict);
    return (*u.verdict)->empty();
  }

  std::string refusal(const Use& u) {
    VerifyOptions options;
    options.scales = false;
    options.threads = context_.threads;
    options.seed = context_.seed + 1;
    options.cancel = deadline_.hard();
    const Verdict v = verify(u.region.graph, u.graph, options);
    if (v.equal()) return "";
    return v.refuted() ? "refuted: " + told(*u.pattern, v.counterexample())
                       : "not proved: " + v.why_unknown().what;
  }

  static std::string sizes(const Match& m, DType dtype) {
    return str(m.symbols) + " " + tessera::name(dtype);
  }

  std::string describe(const Pattern& p, const Graph& merged, const Match& m,
                       const Values& setting) const {
    std::string text = " with " + sizes(m, merged.tensor(merged.outputs()[0]).type.dtype);
    for (const auto& [name, value] : setting) text += " " + name + "=" + std::to_string(value);
    for (size_t i = 0; i < m.numbers.size(); i++)
      if (p.is_number(i))
        text += " " + p.def.tensor(p.def.inputs()[i]).name + "=" + m.numbers[i].str();
    const auto after = epilogue(merged, m.value);
    if (after && !after->empty()) {
      text += ", epilogue";
      for (OpId id : *after) text += std::string(" ") + tessera::name(merged.op(id).kind);
    }
    return text;
  }

  void offer(CandidateSink& sink) {
    std::vector<Candidate> found;
    const auto add = [&](const std::vector<const Use*>& uses) {
      Candidate c;
      try {
        c.graph = with_uses(program_, uses);
      } catch (const Error&) {
        return;
      }
      c.cost = model_.cost(c.graph).seconds;
      c.origin = "patterns";
      for (const Use* u : uses) c.derivation += u->what + "\n";
      found.push_back(std::move(c));
    };
    // The cover: what saves most first, as long as it overlaps with nothing chosen.
    std::vector<const Use*> order = mapped(
        uses_, [&](const Use& u) { return &u; });
    std::ranges::stable_sort(order, std::ranges::greater(),
                             [](const Use* u) { return u->original - u->seconds; });
    std::vector<const Use*> cover;
    std::set<OpId> covered;
    for (const Use* u : order) {
      if (u->seconds >= u->original) continue;
      const auto& ops = u->region.ops;
      if (std::ranges::any_of(ops, [&](OpId id) { return covered.count(id) > 0; })) continue;
      if (!accepted(*u)) continue;
      covered.insert(ops.begin(), ops.end());
      cover.push_back(u);
    }
    if (cover.size() > 1) add(cover);
    for (const Use* u : order)
      if (int(found.size()) < budget_.candidates && accepted(*u)) add({u});
    std::ranges::stable_sort(found, {}, &Candidate::cost);
    for (Candidate& c : found) {
      if (report_.candidates >= budget_.candidates) break;
      if (report_.candidates++ == 0) report_.best_cost = c.cost;
      sink.offer(std::move(c));
    }
  }

  const PatternsOptions& options_;
  const Graph& program_;
  Context& context_;
  const Budget& budget_;
  Deadline deadline_;
  AnalyticalModel model_;
  SearchReport report_;
  std::set<std::vector<uint32_t>> seen_;
  std::unordered_map<uint64_t, std::vector<Answer>> known_;
  std::vector<Use> uses_;
  // By pattern and place: what nearly matched and why not, of its largest region.
  std::map<std::pair<std::string, uint32_t>, std::string> near_;
  std::set<std::pair<std::string, uint32_t>> matched_;
};

}  // namespace
}  // namespace patterns

SearchReport Patterns::run(const Subprogram& sub, Context& context, const Budget& budget,
                           CandidateSink& sink) {
  return patterns::Run(options_, sub.graph, context, budget).run(sink);
}

}  // namespace tessera
