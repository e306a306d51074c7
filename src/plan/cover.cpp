#include "plan/cover.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "base/check.h"
#include "base/error.h"
#include "base/mapped.h"
#include "base/union_find.h"

namespace tessera {
namespace {

class Chooser {
 public:
  Chooser(const CoverProblem& p, const std::vector<size_t>& known, const CoverOptions& options)
      : p_(p), known_(known.begin(), known.end()), options_(options), given_(p.values, false),
        makers_(p.values) {
    for (const size_t v : p.given) given_[v] = true;
    for (size_t k = 0; k < p.kernels.size(); k++)
      for (const size_t v : p.kernels[k].outputs)
        if (makers_[v].empty() || makers_[v].back() != k) makers_[v].push_back(k);
  }

  Cover run() {
    Cover best;
    best.kernels = in_order(known_, given_);
    if (!complete(best.kernels)) bad_input("the known kernels do not compute what is wanted");
    best.seconds = seconds(best.kernels);
    best.solver = "none";
    find_inevitable();
    if (const auto found = by_pieces()) return better(best, *found);
    // Pieces that are right by themselves may compute a value from itself together.
    pieces_ = {std::vector<size_t>(p_.kernels.size())};
    std::iota(pieces_[0].begin(), pieces_[0].end(), size_t(0));
    std::fill(inevitable_.begin(), inevitable_.end(), false);
    for (const size_t v : p_.wanted) inevitable_[v] = true;
    const auto found = by_pieces();
    return found ? better(best, *found) : best;
  }

 private:
  static Cover better(const Cover& known, const Cover& found) {
    if (found.seconds <= known.seconds) return found;
    Cover c = known;
    c.pieces = found.pieces;
    c.variables = found.variables;
    c.solver = found.solver;
    return c;
  }

  double seconds(const std::vector<size_t>& kernels) const {
    return sum_of<double>(
        kernels, [&](const size_t k) { return p_.kernels[k].seconds; });
  }

  // Those that can run where these values are there, in an order in which they can.
  std::vector<size_t> in_order(std::set<size_t> left, std::vector<bool> there) const {
    std::vector<size_t> order;
    for (bool moved = true; moved;) {
      moved = false;
      for (auto it = left.begin(); it != left.end();) {
        const CoverKernel& k = p_.kernels[*it];
        if (!std::ranges::all_of(k.inputs, [&](size_t v) { return there[v]; })) {
          ++it;
          continue;
        }
        for (const size_t v : k.outputs) there[v] = true;
        order.push_back(*it);
        it = left.erase(it);
        moved = true;
      }
    }
    return order;
  }
  bool complete(const std::vector<size_t>& order) const {
    std::vector<bool> there = given_;
    for (const size_t k : order)
      for (const size_t v : p_.kernels[k].outputs) there[v] = true;
    return std::ranges::all_of(p_.wanted, [&](size_t v) { return there[v]; });
  }

  // Values that every solution computes: those wanted, and what all makers of such a value read.
  void find_inevitable() {
    inevitable_.assign(p_.values, false);
    std::vector<size_t> open = p_.wanted;
    for (const size_t v : open) inevitable_[v] = true;
    while (!open.empty()) {
      const size_t v = open.back();
      open.pop_back();
      if (given_[v] || makers_[v].empty()) continue;
      std::vector<size_t> common = p_.kernels[makers_[v][0]].inputs;
      for (const size_t k : makers_[v]) {
        const auto& in = p_.kernels[k].inputs;
        std::erase_if(common, [&](size_t u) { return std::ranges::find(in, u) == in.end(); });
      }
      for (const size_t u : common)
        if (!inevitable_[u]) {
          inevitable_[u] = true;
          open.push_back(u);
        }
    }
    // Kernels belong together where one makes a value that may not be computed and another reads or
    // makes it, or where both make the same.
    UnionFind group(p_.kernels.size());
    for (size_t v = 0; v < p_.values; v++)
      for (const size_t k : makers_[v]) group.join(k, makers_[v][0]);
    for (size_t k = 0; k < p_.kernels.size(); k++)
      for (const size_t v : p_.kernels[k].inputs)
        if (!inevitable_[v] && !given_[v] && !makers_[v].empty()) group.join(k, makers_[v][0]);
    std::vector<std::vector<size_t>> by(p_.kernels.size());
    for (size_t k = 0; k < p_.kernels.size(); k++) by[group.find(k)].push_back(k);
    for (auto& piece : by)
      if (!piece.empty()) pieces_.push_back(std::move(piece));
  }

  // Nothing where what the pieces chose does not run together.
  std::optional<Cover> by_pieces() {
    Cover all;
    all.proved = true;
    all.solver = "none";
    std::set<size_t> chosen;
    for (const auto& piece : pieces_) {
      if (piece.size() == 1) {
        const auto& outputs = p_.kernels[piece[0]].outputs;
        if (std::ranges::any_of(outputs, [&](size_t v) { return inevitable_[v] && !given_[v]; }))
          chosen.insert(piece[0]);
        continue;
      }
      all.pieces++;
      all.variables += piece.size();
      const std::vector<size_t> found = solve(piece, all);
      chosen.insert(found.begin(), found.end());
    }
    all.kernels = in_order(chosen, given_);
    if (!complete(all.kernels)) return std::nullopt;
    all.seconds = seconds(all.kernels);
    return all;
  }

  // One integer program after another, each without the cycles of those before.
  std::vector<size_t> solve(const std::vector<size_t>& piece, Cover& all) {
    constexpr int kMostRounds = 40;
    std::vector<int> variable(p_.kernels.size(), -1);
    Ilp ilp;
    double scale = most_of(0.0, piece, [&](const size_t k) { return p_.kernels[k].seconds; });
    for (const size_t k : piece)
      variable[k] = ilp.add_variable(p_.kernels[k].seconds / std::max(scale, 1e-30));
    // Values that come from elsewhere are there: all solutions compute them.
    std::vector<bool> outside = given_;
    for (size_t v = 0; v < p_.values; v++)
      if (inevitable_[v] &&
          std::ranges::none_of(makers_[v], [&](size_t k) { return variable[k] >= 0; }))
        outside[v] = true;
    std::set<size_t> made;
    for (const size_t k : piece)
      made.insert(p_.kernels[k].outputs.begin(), p_.kernels[k].outputs.end());
    for (const size_t v : made) {
      if (!inevitable_[v] || given_[v]) continue;
      std::vector<std::pair<int, double>> terms;
      for (const size_t m : makers_[v]) terms.emplace_back(variable[m], 1);
      ilp.add(std::move(terms), Relation::GreaterEqual, 1);
    }
    for (const size_t k : piece)
      for (const size_t v :
           std::set<size_t>(p_.kernels[k].inputs.begin(), p_.kernels[k].inputs.end())) {
        const bool relay = p_.kernels[k].relay;
        if (outside[v] || (inevitable_[v] && !relay)) continue;
        std::vector<std::pair<int, double>> terms = {{variable[k], -1}};
        for (const size_t m : makers_[v])
          if (m != k && !(relay && p_.kernels[m].relay)) terms.emplace_back(variable[m], 1);
        ilp.add(std::move(terms), Relation::GreaterEqual, 0);
      }
    for (int round = 0; round < kMostRounds; round++) {
      const bool highs = options_.highs && highs_version();
      const IlpResult r = highs ? solve_ilp_highs(ilp) : solve_ilp(ilp, options_.ilp);
      all.solver = r.solver;
      if (r.x.empty()) break;
      std::set<size_t> chosen;
      for (const size_t k : piece)
        if (r.x[size_t(variable[k])]) chosen.insert(k);
      std::set<size_t> stuck = chosen;
      for (const size_t k : in_order(chosen, outside)) stuck.erase(k);
      if (stuck.empty()) {
        all.proved = all.proved && r.status == IlpStatus::Optimal;
        return {chosen.begin(), chosen.end()};
      }
      // One of these waits no longer only if another makes what they wait for, or it is not chosen.
      std::vector<std::pair<int, double>> terms;
      for (const size_t k : stuck) terms.emplace_back(variable[k], -1);
      std::set<size_t> others;
      for (const size_t k : stuck)
        for (const size_t v : p_.kernels[k].inputs)
          for (const size_t m : makers_[v])
            if (variable[m] >= 0 && !chosen.count(m)) others.insert(m);
      for (const size_t m : others) terms.emplace_back(variable[m], 1);
      ilp.add(std::move(terms), Relation::GreaterEqual, 1 - double(stuck.size()));
    }
    all.proved = false;
    return those(piece, [&](const size_t k) { return known_.count(k); });
  }

  const CoverProblem& p_;
  const std::set<size_t> known_;
  const CoverOptions& options_;
  std::vector<bool> given_, inevitable_;
  std::vector<std::vector<size_t>> makers_;
  std::vector<std::vector<size_t>> pieces_;
};

}  // namespace

Cover choose_cover(const CoverProblem& problem, const std::vector<size_t>& known,
                   const CoverOptions& options) {
  for (const CoverKernel& k : problem.kernels)
    for (const auto* list : {&k.inputs, &k.outputs})
      for (const size_t v : *list)
        CHECK(v < problem.values) << "a kernel's value " << v << " of " << problem.values;
  return Chooser(problem, known, options).run();
}

}  // namespace tessera
