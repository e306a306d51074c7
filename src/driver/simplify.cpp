#include "driver/simplify.h"

#include <algorithm>

#include "driver/kernel_costs.h"
#include "search/fold/fold.h"
#include "search/synth/slices.h"

namespace tessera {

Graph simplified(Session& s, const Graph& given) {
  constexpr double kLeastGain = 0.97, kShare = 0.1, kMostSeconds = 0.25;
  constexpr size_t kTried = 4;
  if (s.options.disable.count("synth") || s.options.max_block_ops || s.options.only_proposals)
    return given;
  const KernelCosts model(s);
  std::optional<Verifier> verifier;
  const auto is_equal = [&](const Graph& g, std::string origin) {
    if (!verifier) verifier.emplace(given, s.verify_options());
    Outcome o;
    o.graph = g;
    o.origin = std::move(origin);
    return s.prove(*verifier, o);
  };
  Graph program = given;
  double before = model.cost(program).seconds;
  const auto take = [&](Graph found, const std::string& derivation, const char* origin) {
    const double after = model.cost(found).seconds;
    if (after > kLeastGain * before || !is_equal(found, origin)) return false;
    s.report.simplified += derivation;
    program = std::move(found), before = after;
    return true;
  };
  if (!s.options.disable.count("fold") && !s.options.disable.count("plan:weights"))
    for (Folding& f : fold_weights(given))
      if (take(std::move(f.graph), f.derivation, "fold")) break;
  // By themselves, as what is found beside them may be refused.
  std::vector<synth::Retold> forms = synth::reslice(program);
  for (synth::Retold& r : synth::reslice(program, true))
    if (std::ranges::find(forms, r.graph, &synth::Retold::graph) == forms.end())
      forms.push_back(std::move(r));
  for (synth::Retold& r : forms)
    if (take(std::move(r.graph), r.derivation, "synth")) break;
  // Most of what is found is proved. Where nothing of it is, the search goes on around what was
  // refused.
  for (const bool proved : {false, true}) {
    CollectingSink sink;
    s.tell("simplify", "", 0, 0);
    SearchReport found =
        s.synthesize(program, std::min(kMostSeconds, kShare * s.deadline.seconds()), sink, proved);
    if (found.stop != StopReason::Unsupported) s.report.synthesis = std::move(found);
    bool refused = false;
    for (size_t i = 0; i < std::min(kTried, sink.candidates.size()); ++i) {
      Candidate& c = sink.candidates[i];
      if (model.cost(c.graph).seconds > kLeastGain * before) continue;
      if (!is_equal(c.graph, c.origin)) {
        refused = true;
        continue;
      }
      s.report.simplified += c.derivation;
      return std::move(c.graph);
    }
    if (!refused || s.deadline.proofs_ended()) break;
  }
  return program;
}

}  // namespace tessera
