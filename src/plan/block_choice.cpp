#include "plan/block_choice.h"

#include <algorithm>
#include <limits>
#include <set>

#include "base/check.h"
#include "base/error.h"
#include "solve/ilp.h"

namespace tessera {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
// In cycles of a multiprocessor, of which shared memory serves one wavefront each.
constexpr double kIssue = 1;       // an instruction of a warp
constexpr double kSwizzle = 0.5;   // exchanging the bits of its addresses
constexpr double kSector = 0.5;    // 32 bytes from the second-level cache
constexpr double kPerByte = 1e-3;  // a byte that other blocks of the multiprocessor could use

class Pricer {
 public:
  Pricer(const Block& block, const BlockLimits& limits, const BlockPlanOptions& options)
      : block_(block), limits_(limits), options_(options) {}

  BlockPrices run() {
    BlockPrices p;
    p.per_byte = kPerByte;
    p.options.resize(block_.values.size());
    collect(p);
    for (size_t v = 0; v < block_.values.size(); ++v)
      if (!block_.values[v].registers) price(p, int(v), layouts(int(v)));
    return p;
  }

 private:
  const BlockStep& step(int s) const { return block_.steps[size_t(s)]; }
  size_t walks(int s) const { return options_.layout ? step(s).walks.size() : 1; }

  void collect(BlockPrices& p) {
    for (size_t s = 0; s < block_.steps.size(); ++s) {
      for (const bool write : {false, true}) {
        for (const BlockAccess& a : write ? block_.steps[s].writes : block_.steps[s].reads) {
          p.accesses.push_back({int(s), a.value, write, {}});
          access_.push_back(&a);
        }
      }
    }
  }

  // Axes that may be innermost: all along which some step has neighbours, and the last.
  std::set<int> inner_axes(int value) const {
    const BlockValue& v = block_.values[size_t(value)];
    if (v.innermost >= 0) return {v.innermost};
    std::set<int> axes = {int(v.extents.size()) - 1};
    const auto add = [&](const BlockAccess& a, int to) {
      for (size_t i = 0; !a.anyhow && i < a.axes.size(); ++i)
        if (to >= 0 && a.axes[i] == to) axes.insert(int(i));
    };
    for (const BlockStep& s : block_.steps) {
      for (const auto* list : {&s.reads, &s.writes}) {
        for (const BlockAccess& a : *list) {
          if (a.value != value) continue;
          add(a, s.global_along);
          for (const Walk& w : s.walks)
            for (int axis : {w.along, w.m, w.n, w.k}) add(a, axis);
        }
      }
    }
    return axes;
  }

  std::vector<TileLayout> layouts(int value) const {
    const BlockValue& v = block_.values[size_t(value)];
    const int rank = int(v.extents.size()), bytes = size_in_bytes(v.dtype);
    std::vector<TileLayout> out;
    std::set<std::vector<int64_t>> known;
    const auto add = [&](const SharedLayout& l) {
      if (!known.insert(shared_offsets(l, v.extents, bytes)).second) return;
      out.push_back({l, shared_bytes(l, v.extents, bytes)});
    };
    if (v.innermost < 0 || v.innermost == rank - 1) add({});
    if (rank < 2) return out;
    for (int inner : inner_axes(value)) {
      SharedLayout l;
      for (int a = 0; a < rank; ++a)
        if (a != inner) l.order.push_back(a);
      l.order.push_back(inner);
      const SharedLayout base = l;
      add(base);
      for (int pad : {4, 8, 16}) {
        l = base;
        l.pad = pad / bytes;
        if (pad % bytes == 0) add(l);
      }
      const int64_t row = v.extents[size_t(inner)] * bytes;
      if (row % 16 != 0) continue;
      for (int bits = 1; bits <= 3; ++bits) {
        for (int shift = 7; shift <= 10; ++shift) {
          l = base;
          l.swizzle_bits = bits;
          l.swizzle_shift = shift;
          // Rows further apart than the bits reach are all exchanged alike.
          if (shift == 7 || row >= int64_t{1} << (shift - 1)) add(l);
        }
      }
      if (row > 128 && row % 128 == 0 && by_hardware(value)) {
        l = base;
        l.block = 128 / bytes;
        l.swizzle_bits = 3;
        add(l);
      }
    }
    return out;
  }

  // Whether the asynchronous proxy may touch the value.
  bool by_hardware(int value) const {
    for (const BlockStep& s : block_.steps)
      for (const auto* list : {&s.reads, &s.writes})
        for (const BlockAccess& a : *list)
          for (const Walk& w : s.walks) {
            const AccessKind kind = access_kind(s, w, a);
            if (a.value == value && (kind == AccessKind::Bulk || kind == AccessKind::Operand))
              return true;
          }
    return false;
  }

  // Prices every access of the value, then leaves out what another option beats everywhere.
  void price(BlockPrices& p, int value, const std::vector<TileLayout>& tried) {
    std::vector<size_t> mine;
    for (size_t i = 0; i < p.accesses.size(); ++i)
      if (p.accesses[i].value == value) mine.push_back(i);
    std::vector<std::vector<double>>
        columns;  // of each option, one after the other access and walk
    for (const TileLayout& o : tried) {
      const BlockValue& v = block_.values[size_t(value)];
      const std::vector<int64_t> offsets =
          shared_offsets(o.layout, v.extents, size_in_bytes(v.dtype));
      std::vector<double> column;
      for (size_t i : mine)
        for (size_t w = 0; w < walks(p.accesses[i].step); ++w)
          column.push_back(cycles(p.accesses[i], *access_[i], int(w), o, offsets));
      columns.push_back(std::move(column));
    }
    std::vector<size_t> kept;
    for (size_t o = 0; o < tried.size(); ++o) {
      bool possible = true;
      for (size_t at = 0, i = 0; i < mine.size(); ++i) {
        bool some = false;
        for (size_t w = 0; w < walks(p.accesses[mine[i]].step); ++w, ++at)
          some = some || columns[o][at] < kNever;
        possible = possible && some;
      }
      bool beaten = !possible;
      for (size_t other = 0; options_.layout && other < tried.size() && !beaten; ++other) {
        if (other == o || tried[other].bytes > tried[o].bytes) continue;
        bool better = true, equal = tried[other].bytes == tried[o].bytes;
        for (size_t at = 0; at < columns[o].size(); ++at) {
          better = better && columns[other][at] <= columns[o][at];
          equal = equal && columns[other][at] == columns[o][at];
        }
        beaten = better && (!equal || other < o);
      }
      // Without the decision: of the layouts, the first that works at all.
      if (!beaten && (options_.layout || kept.empty())) kept.push_back(o);
    }
    for (size_t o : kept) p.options[size_t(value)].push_back(tried[o]);
    for (size_t at = 0, i = 0; i < mine.size(); ++i) {
      PricedAccess& a = p.accesses[mine[i]];
      for (size_t w = 0; w < walks(a.step); ++w, ++at) {
        std::vector<double> row;
        for (size_t o : kept) row.push_back(columns[o][at]);
        a.cycles.push_back(row);
      }
    }
  }

  double cycles(const PricedAccess& p, const BlockAccess& a, int walk, const TileLayout& o,
                const std::vector<int64_t>& offsets) const {
    const BlockStep& s = step(p.step);
    const Walk& w = s.walks[size_t(walk)];
    const auto plan = price_access(block_, limits_, s, w, a, p.write, o.layout, offsets);
    if (!plan) return kNever;
    double c = double(plan->wavefronts);
    double issued = double(plan->instructions);
    if (s.kind == StepKind::Load && plan->instruction == Instruction::Vector) issued *= 2;
    c += issued * kIssue;
    const bool by_hardware =
        plan->instruction == Instruction::Bulk || plan->instruction == Instruction::Operand;
    if (o.layout.swizzle_bits > 0 && !by_hardware) c += issued * kSwizzle;
    if (s.kind == StepKind::Load) {
      const double bytes = double(block_.values[size_t(p.value)].elements()) *
                           size_in_bytes(block_.values[size_t(p.value)].dtype);
      c += bytes / 32 * kSector;
    }
    return double(executions(block_, s)) * c;
  }

  const Block& block_;
  const BlockLimits& limits_;
  const BlockPlanOptions& options_;
  std::vector<const BlockAccess*> access_;  // of each priced one
};

[[noreturn]] void impossible(const Block& block, const PricedAccess& a) {
  throw Error(ErrorKind::Unsupported,
              "step " + block.steps[size_t(a.step)].name + " cannot " +
                  (a.write ? "write " : "read ") + block.values[size_t(a.value)].name +
                  " in any layout that the other steps allow; give it another walk or a copy");
}

}  // namespace

int64_t executions(const Block& block, const BlockStep& step) {
  int64_t n = 1;
  for (int l = step.loop; l >= 0; l = block.loops[size_t(l)].around)
    n *= block.loops[size_t(l)].extent;
  return n;
}

BlockPrices price_block(const Block& block, const BlockLimits& limits,
                        const BlockPlanOptions& options) {
  return Pricer(block, limits, options).run();
}

double choice_cycles(const Block& block, const BlockPrices& p, const BlockChoice& choice) {
  double total = 0;
  for (size_t v = 0; v < block.values.size(); ++v)
    if (!p.options[v].empty())
      total += p.per_byte * double(p.options[v][size_t(choice.option[v])].bytes);
  for (const PricedAccess& a : p.accesses) {
    if (p.options[size_t(a.value)].empty()) continue;
    total += a.cycles[size_t(choice.walk[size_t(a.step)])][size_t(choice.option[size_t(a.value)])];
  }
  return total;
}

namespace {

// The integer program. Once the walks of the steps that touch a value are known, so is the value's
// best option: a variable stands for a value and one combination of those walks.
class Chooser {
 public:
  Chooser(const Block& block, const BlockPrices& prices) : block_(block), prices_(prices) {
    of_value_.resize(block.values.size());
    for (size_t i = 0; i < prices.accesses.size(); ++i)
      of_value_[size_t(prices.accesses[i].value)].push_back(i);
    walks_.assign(block.steps.size(), 1);
    for (const PricedAccess& a : prices.accesses)
      if (!a.cycles.empty()) walks_[size_t(a.step)] = int(a.cycles.size());
  }

  BlockChoice run() {
    limit_combinations();
    for (size_t s = 0; s < walks_.size(); ++s) {
      walk_.emplace_back();
      if (walks_[s] < 2) continue;
      for (int w = 0; w < walks_[s]; ++w) walk_[s].push_back(ilp_.add_variable(0));
      exactly_one(walk_[s]);
    }
    for (size_t v = 0; v < block_.values.size(); ++v)
      if (!block_.values[v].registers) add_value(int(v));
    IlpOptions how;
    how.max_nodes = 2000;  // what describes real kernels takes a few dozen
    const IlpResult solved = solve_ilp(ilp_, how);
    // A block whose values are all placed already leaves nothing to choose: an optimum without x.
    if (solved.status != IlpStatus::Optimal && solved.status != IlpStatus::Feasible) {
      throw Error(ErrorKind::Unsupported,
                  std::string("no layouts of the block's tiles: ") + name(solved.status));
    }
    BlockChoice choice;
    choice.optimal = solved.status == IlpStatus::Optimal && !limited_;
    choice.option.assign(block_.values.size(), -1);
    for (const Column& c : columns_)
      if (solved.x[size_t(c.variable)]) choice.option[size_t(c.value)] = c.option;
    for (const auto& group : walk_) {
      choice.walk.push_back(0);
      for (size_t w = 0; w < group.size(); ++w)
        if (solved.x[size_t(group[w])]) choice.walk.back() = int(w);
    }
    choice.cycles = choice_cycles(block_, prices_, choice);
    return choice;
  }

 private:
  struct Column {
    int variable, value, option;
  };
  void exactly_one(const std::vector<int>& group) {
    std::vector<std::pair<int, double>> row;
    for (int j : group) row.emplace_back(j, 1);
    ilp_.add(std::move(row), Relation::Equal, 1);
  }
  // Steps that touch the value and have a choice of walks, ascending.
  std::vector<int> steps_of(int v) const {
    std::set<int> steps;
    for (size_t i : of_value_[size_t(v)])
      if (walks_[size_t(prices_.accesses[i].step)] > 1) steps.insert(prices_.accesses[i].step);
    return {steps.begin(), steps.end()};
  }
  int64_t combinations(const std::vector<int>& steps) const {
    int64_t n = 1;
    for (int s : steps) n *= walks_[size_t(s)];
    return n;
  }
  // Tiles that very many steps touch: the last of them do as they would without a choice.
  void limit_combinations() {
    constexpr int64_t kMost = 2048;
    for (size_t v = 0; v < block_.values.size(); ++v) {
      std::vector<int> steps = steps_of(int(v));
      while (combinations(steps) > kMost) {
        walks_[size_t(steps.back())] = 1;
        steps.pop_back();
        limited_ = true;
      }
    }
  }

  void add_value(int v) {
    const std::vector<TileLayout>& options = prices_.options[size_t(v)];
    const std::vector<int> steps = steps_of(v);
    std::vector<int> all;
    std::vector<std::vector<std::vector<std::pair<int, double>>>> linked;  // [step][walk]
    for (int s : steps) linked.emplace_back(size_t(walks_[size_t(s)]));
    std::vector<int> walk(block_.steps.size(), 0);
    for (int64_t c = 0; c < combinations(steps); ++c) {
      int64_t rest = c;
      for (int s : steps) {
        walk[size_t(s)] = int(rest % walks_[size_t(s)]);
        rest /= walks_[size_t(s)];
      }
      int best = -1;
      double least = kNever;
      for (size_t o = 0; o < options.size(); ++o) {
        const double cost = option_cycles(v, int(o), walk);
        if (cost < least) least = cost, best = int(o);
      }
      if (best < 0) continue;
      const int j = ilp_.add_variable(least);
      columns_.push_back({j, v, best});
      all.push_back(j);
      for (size_t i = 0; i < steps.size(); ++i)
        linked[i][size_t(walk[size_t(steps[i])])].emplace_back(j, 1);
    }
    if (all.empty() && !of_value_[size_t(v)].empty())
      impossible(block_, prices_.accesses[of_value_[size_t(v)][0]]);
    if (all.empty()) return;
    exactly_one(all);
    for (size_t i = 0; i < steps.size(); ++i) {
      for (size_t w = 0; w < linked[i].size(); ++w) {
        linked[i][w].emplace_back(walk_[size_t(steps[i])][w], -1);
        ilp_.add(std::move(linked[i][w]), Relation::Equal, 0);
      }
    }
  }

  double option_cycles(int v, int o, const std::vector<int>& walk) const {
    double total = prices_.per_byte * double(prices_.options[size_t(v)][size_t(o)].bytes);
    for (size_t i : of_value_[size_t(v)]) {
      const PricedAccess& a = prices_.accesses[i];
      total += a.cycles[size_t(walk[size_t(a.step)])][size_t(o)];
    }
    return total;
  }

  const Block& block_;
  const BlockPrices& prices_;
  std::vector<std::vector<size_t>> of_value_;  // accesses
  std::vector<int> walks_;                     // by step: how many
  bool limited_ = false;
  Ilp ilp_;
  std::vector<std::vector<int>> walk_;  // variables, by step
  std::vector<Column> columns_;
};

}  // namespace

BlockChoice choose_block(const Block& block, const BlockPrices& prices) {
  return Chooser(block, prices).run();
}

}  // namespace tessera
