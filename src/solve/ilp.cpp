#include "solve/ilp.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "base/names.h"

namespace tessera {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kTolerance = 1e-9;

// a·x <= b, or == b.
struct Row {
  std::vector<std::pair<int, double>> terms;
  double bound;
  bool equal;
  double slack() const {  // rounding errors that count as satisfied
    double scale = std::fabs(bound);
    for (const auto& [j, a] : terms) scale = std::max(scale, std::fabs(a));
    return kTolerance * std::max(1.0, scale);
  }
};

class BranchAndBound {
 public:
  BranchAndBound(const Ilp& ilp, const IlpOptions& options)
      : ilp_(ilp), options_(options), n_(ilp.cost.size()), value_(n_, kFree), rows_of_(n_) {
    for (const IlpConstraint& c : ilp.constraints) {
      const double sign = c.relation == Relation::GreaterEqual ? -1 : 1;
      Row row{{}, sign * c.bound, c.relation == Relation::Equal};
      for (const auto& [j, a] : c.terms) {
        CHECK(j >= 0 && size_t(j) < n_) << "no variable " << j;
        if (a != 0) row.terms.emplace_back(j, sign * a);
      }
      for (const auto& [j, a] : row.terms) rows_of_[size_t(j)].push_back(int(rows_.size()));
      rows_.push_back(std::move(row));
    }
    find_groups();
    multiplier_.assign(rows_.size(), 0);
    for (double c : ilp.cost) scale_ = std::max(scale_, std::fabs(c));
  }

  IlpResult run() {
    IlpResult result;
    result.solver = "built-in";
    const bool possible = propagate_all();
    if (possible) search(options_.root_steps);
    result.nodes = nodes_;
    const bool complete = nodes_ <= options_.max_nodes && !stopped_;
    if (best_.empty() && best_value_ == kInfinity) {
      result.status = complete ? IlpStatus::Infeasible : IlpStatus::Unknown;
      result.bound = complete ? kInfinity : root_bound_;
      return result;
    }
    result.x = best_;
    result.value = best_value_;
    result.bound = complete ? best_value_ : std::min(best_value_, root_bound_);
    result.status =
        complete || result.gap() <= tolerance() ? IlpStatus::Optimal : IlpStatus::Feasible;
    return result;
  }

 private:
  static constexpr int8_t kFree = -1;

  bool stopped() {
    stopped_ = stopped_ || (options_.stopped && options_.stopped());
    return stopped_;
  }
  double tolerance() const { return kTolerance * std::max(1e-30, scale_); }

  // Disjoint rows "exactly one of" and "at most one of", which the relaxation keeps as they are.
  void find_groups() {
    group_of_.assign(n_, -1);
    for (const bool equal : {true, false}) {
      for (size_t r = 0; r < rows_.size(); ++r) {
        const Row& row = rows_[r];
        if (row.equal != equal || row.bound != 1 || row.terms.empty()) continue;
        const bool fits = std::ranges::all_of(row.terms, [&](const auto& t) {
          return t.second == 1 && group_of_[size_t(t.first)] < 0;
        });
        if (!fits) continue;
        for (const auto& [j, a] : row.terms) group_of_[size_t(j)] = int(groups_.size());
        groups_.push_back(int(r));
      }
    }
    in_group_.assign(rows_.size(), false);
    for (int r : groups_) in_group_[size_t(r)] = true;
  }

  void fix(int j, bool v) {
    value_[size_t(j)] = v ? 1 : 0;
    trail_.push_back(j);
  }
  void undo(size_t mark) {
    while (trail_.size() > mark) {
      value_[size_t(trail_.back())] = kFree;
      trail_.pop_back();
    }
  }

  // Fixes what one row forces; false if it cannot be satisfied.
  bool propagate(const Row& row) {
    double low = 0, high = 0;
    for (const auto& [j, a] : row.terms) {
      const int8_t v = value_[size_t(j)];
      low += v == kFree ? std::min(0.0, a) : v * a;
      high += v == kFree ? std::max(0.0, a) : v * a;
    }
    const double slack = row.slack();
    if (low > row.bound + slack || (row.equal && high < row.bound - slack)) return false;
    for (const auto& [j, a] : row.terms) {
      if (value_[size_t(j)] != kFree) continue;
      const double size = std::fabs(a);
      if (low + size > row.bound + slack) {
        fix(j, a < 0);
        high -= size;
      } else if (row.equal && high - size < row.bound - slack) {
        fix(j, a > 0);
        low += size;
      }
    }
    return low <= row.bound + slack && !(row.equal && high < row.bound - slack);
  }

  bool propagate_from(size_t mark) {
    for (size_t at = mark; at < trail_.size(); ++at)
      for (int r : rows_of_[size_t(trail_[at])])
        if (!propagate(rows_[size_t(r)])) return false;
    return true;
  }
  bool propagate_all() {
    for (const Row& row : rows_)
      if (!propagate(row)) return false;
    return propagate_from(0);
  }

  // The relaxation at the multipliers at hand: leaves reduced costs and its solution.
  double relax() {
    reduced_ = ilp_.cost;
    double total = 0;
    for (size_t r = 0; r < rows_.size(); ++r) {
      if (multiplier_[r] == 0) continue;
      total -= multiplier_[r] * rows_[r].bound;
      for (const auto& [j, a] : rows_[r].terms) reduced_[size_t(j)] += multiplier_[r] * a;
    }
    chosen_.assign(n_, false);
    for (size_t j = 0; j < n_; ++j) {
      if (value_[j] == 1 || (value_[j] == kFree && group_of_[j] < 0 && reduced_[j] < 0))
        chosen_[j] = true;
      if (chosen_[j]) total += reduced_[j];
    }
    for (int r : groups_) {
      const Row& row = rows_[size_t(r)];
      int best = -1;
      bool taken = false;
      for (const auto& [j, a] : row.terms) {
        const size_t i = size_t(j);
        taken = taken || value_[i] == 1;
        if (value_[i] == kFree && (best < 0 || reduced_[i] < reduced_[size_t(best)])) best = j;
      }
      if (taken || best < 0 || (!row.equal && reduced_[size_t(best)] >= 0)) continue;
      chosen_[size_t(best)] = true;
      total += reduced_[size_t(best)];
    }
    return total;
  }

  // Improves the multipliers by subgradient steps; the best bound met.
  double ascend(int steps) {
    double best = -kInfinity, shrink = 1;
    std::vector<double> best_multiplier = multiplier_;
    int stalled = 0;
    for (int step = 0; step <= steps; ++step) {
      const double bound = relax();
      offer(chosen_);
      if (bound > best + tolerance()) {
        best = bound;
        best_multiplier = multiplier_;
        stalled = 0;
      } else if (++stalled >= 5) {
        shrink /= 2;
        stalled = 0;
      }
      if (step == steps || best >= best_value_ - tolerance() || stopped()) break;
      double norm = 0;
      std::vector<double> direction(rows_.size(), 0);
      for (size_t r = 0; r < rows_.size(); ++r) {
        if (in_group_[r]) continue;
        double excess = -rows_[r].bound;
        for (const auto& [j, a] : rows_[r].terms)
          if (chosen_[size_t(j)]) excess += a;
        if (!rows_[r].equal && excess < 0 && multiplier_[r] <= 0) continue;
        direction[r] = excess;
        norm += excess * excess;
      }
      if (norm < 1e-18) break;
      const double target =
          best_value_ < kInfinity ? best_value_ - bound : 0.1 * std::max(std::fabs(bound), scale_);
      const double length = shrink * std::max(target, tolerance()) / norm;
      for (size_t r = 0; r < rows_.size(); ++r) {
        multiplier_[r] += length * direction[r];
        if (!rows_[r].equal) multiplier_[r] = std::max(0.0, multiplier_[r]);
      }
    }
    multiplier_ = best_multiplier;
    return best;
  }

  void offer(const std::vector<bool>& x) {
    const double v = ilp_.value(x);
    if (v < best_value_ - tolerance() && ilp_.feasible(x)) best_value_ = v, best_ = x;
  }

  // Values that the bound forbids in anything better than the best.
  void fix_by_reduced_cost(double bound) {
    if (best_value_ == kInfinity) return;
    for (size_t j = 0; j < n_; ++j) {
      if (value_[j] != kFree || group_of_[j] >= 0) continue;
      if (bound + std::fabs(reduced_[j]) > best_value_ + tolerance()) fix(int(j), reduced_[j] < 0);
    }
  }

  void search(int steps) {
    if (++nodes_ > options_.max_nodes || stopped()) return;
    const double bound = ascend(steps);
    if (nodes_ == 1) root_bound_ = bound;
    if (stopped_) return;
    if (bound >= best_value_ - tolerance()) return;
    relax();
    const size_t here = trail_.size();
    fix_by_reduced_cost(bound);
    if (!propagate_from(here)) return undo(here);
    // The free variable about which the relaxation is least sure: of a group, its choice.
    int pick = -1;
    double least = kInfinity;
    for (size_t j = 0; j < n_; ++j) {
      if (value_[j] != kFree) continue;
      const double doubt = std::fabs(reduced_[j]) - (chosen_[j] ? scale_ : 0);
      if (doubt < least) least = doubt, pick = int(j);
    }
    if (pick < 0) {
      std::vector<bool> x(n_);
      for (size_t j = 0; j < n_; ++j) x[j] = value_[j] == 1;
      offer(x);
      return undo(here);
    }
    const std::vector<double> multiplier = multiplier_;
    const bool first = chosen_[size_t(pick)];
    for (const bool v : {first, !first}) {
      const size_t mark = trail_.size();
      fix(pick, v);
      if (propagate_from(mark)) search(options_.node_steps);
      undo(mark);
      multiplier_ = multiplier;
      if (nodes_ > options_.max_nodes || stopped_) break;
    }
    undo(here);
  }

  const Ilp& ilp_;
  const IlpOptions& options_;
  size_t n_;
  std::vector<Row> rows_;
  std::vector<int8_t> value_;  // kFree, 0 or 1
  std::vector<std::vector<int>> rows_of_;
  std::vector<int> group_of_;  // of each variable, or -1
  std::vector<int> groups_;    // their rows
  std::vector<bool> in_group_;
  std::vector<double> multiplier_;  // per row; none for groups
  std::vector<double> reduced_;
  std::vector<bool> chosen_;
  std::vector<int> trail_;
  std::vector<bool> best_;
  double best_value_ = kInfinity, root_bound_ = -kInfinity, scale_ = 0;
  int64_t nodes_ = 0;
  bool stopped_ = false;
};

}  // namespace

int Ilp::add_variable(double c) {
  cost.push_back(c);
  return int(cost.size()) - 1;
}

void Ilp::add(std::vector<std::pair<int, double>> terms, Relation relation, double bound) {
  constraints.push_back({std::move(terms), relation, bound});
}

double Ilp::value(const std::vector<bool>& x) const {
  double v = 0;
  for (size_t j = 0; j < cost.size(); ++j) v += x[j] ? cost[j] : 0;
  return v;
}

bool Ilp::feasible(const std::vector<bool>& x) const {
  return std::ranges::all_of(
      constraints,
      [&](const IlpConstraint& c) {
        double sum = 0, scale = std::max(1.0, std::fabs(c.bound));
        for (const auto& [j, a] : c.terms) {
          sum += x[size_t(j)] ? a : 0;
          scale = std::max(scale, std::fabs(a));
        }
        const double slack = kTolerance * scale;
        if (c.relation != Relation::GreaterEqual && sum > c.bound + slack) return false;
        return c.relation == Relation::LessEqual || sum >= c.bound - slack;
      });
}

const char* name(IlpStatus status) {
  return name_of<IlpStatus::Unknown>(status, {"optimal", "feasible", "infeasible", "unknown"});
}

IlpResult solve_ilp(const Ilp& ilp, const IlpOptions& options) {
  return BranchAndBound(ilp, options).run();
}

}  // namespace tessera
