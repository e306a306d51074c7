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
constexpr double kExposed = 300;   // a loop that waits for global memory in each iteration
constexpr double kPerByte = 1e-3;  // a byte that other blocks of the multiprocessor could use

class Pricer {
 public:
  Pricer(const Block& block, const BlockLimits& limits, const BlockPlanOptions& options)
      : block_(block), limits_(limits), options_(options) {}

  BlockPrices run() {
    BlockPrices p;
    p.per_byte = kPerByte;
    p.register_bytes = limits_.register_bytes;
    p.options.resize(block_.values.size());
    collect(p);
    for (size_t v = 0; v < block_.values.size(); ++v) {
      if (block_.values[v].registers) continue;
      std::vector<PlaceOption> tried = layouts(int(v));
      if (PlaceOption o; may_stay(p, int(v), o)) tried.push_back(o);
      if (may_be_read_through(p, int(v))) tried.push_back({BlockPlace::Global, {}, 0, 0});
      price(p, int(v), tried);
    }
    for (size_t v = 0; v < block_.values.size(); ++v) find_apart(p, int(v));
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

  std::vector<PlaceOption> layouts(int value) const {
    const BlockValue& v = block_.values[size_t(value)];
    const int rank = int(v.extents.size()), bytes = size_in_bytes(v.dtype);
    std::vector<PlaceOption> out;
    std::set<std::vector<int64_t>> known;
    const auto add = [&](const SharedLayout& l) {
      if (!known.insert(shared_offsets(l, v.extents, bytes)).second) return;
      out.push_back({BlockPlace::Shared, l, shared_bytes(l, v.extents, bytes), 0});
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

  bool may_stay(const BlockPrices& p, int value, PlaceOption& o) const {
    const BlockValue& v = block_.values[size_t(value)];
    if (!options_.registers || !v.may_stay) return false;
    int64_t most = 0;
    for (size_t i = 0; i < p.accesses.size(); ++i) {
      if (p.accesses[i].value != value) continue;
      const BlockStep& s = step(p.accesses[i].step);
      for (const Walk& w : s.walks) {
        if (access_kind(s, w, *access_[i]) != AccessKind::Lanes) return false;
        most = std::max(most, owners(block_, s, w, *access_[i], p.accesses[i].write).most_elements);
      }
    }
    o.place = BlockPlace::Registers;
    o.registers = most * std::max(4, size_in_bytes(v.dtype));
    return o.registers <= limits_.register_bytes;
  }

  bool may_be_read_through(const BlockPrices& p, int value) const {
    if (!options_.through || !block_.values[size_t(value)].may_be_read_through) return false;
    int writers = 0;
    for (const PricedAccess& a : p.accesses) {
      if (a.value != value) continue;
      writers += a.write;
      if (a.write && step(a.step).kind != StepKind::Load) return false;
    }
    return writers == 1;
  }

  // Prices every access of the value, then leaves out what another option beats everywhere.
  void price(BlockPrices& p, int value, const std::vector<PlaceOption>& tried) {
    std::vector<size_t> mine;
    for (size_t i = 0; i < p.accesses.size(); ++i)
      if (p.accesses[i].value == value) mine.push_back(i);
    std::vector<std::vector<double>>
        columns;  // of each option, one after the other access and walk
    for (const PlaceOption& o : tried) {
      const BlockValue& v = block_.values[size_t(value)];
      std::vector<int64_t> offsets;
      if (o.place == BlockPlace::Shared)
        offsets = shared_offsets(o.layout, v.extents, size_in_bytes(v.dtype));
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
        if (other == o || tried[other].place != BlockPlace::Shared ||
            tried[other].bytes > tried[o].bytes || tried[o].place != BlockPlace::Shared)
          continue;
        bool better = true, equal = tried[other].bytes == tried[o].bytes;
        for (size_t at = 0; at < columns[o].size(); ++at) {
          better = better && columns[other][at] <= columns[o][at];
          equal = equal && columns[other][at] == columns[o][at];
        }
        beaten = better && (!equal || other < o);
      }
      // Without the decision: of the layouts, the first that works at all.
      const bool another = !options_.layout && tried[o].place == BlockPlace::Shared &&
                           std::any_of(kept.begin(), kept.end(), [&](size_t k) {
                             return tried[k].place == BlockPlace::Shared;
                           });
      if (!beaten && !another) kept.push_back(o);
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

  double cycles(const PricedAccess& p, const BlockAccess& a, int walk, const PlaceOption& o,
                const std::vector<int64_t>& offsets) const {
    const BlockStep& s = step(p.step);
    const Walk& w = s.walks[size_t(walk)];
    const double times = double(executions(block_, s));
    // Only what goes to shared memory runs ahead.
    const double exposed = s.loop >= 0 ? times * kExposed : 0;
    if (o.place == BlockPlace::Registers) {
      if (s.kind != StepKind::Load) return 0;
      return times * sectors(s, w, a, true) * kSector + exposed;
    }
    if (o.place == BlockPlace::Global) {
      if (p.write) return 0;
      if (access_kind(s, w, a) != AccessKind::Lanes) return kNever;
      return times * sectors(load_of(p.value), w, s, a) * kSector + exposed;
    }
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
    return times * c;
  }

  const BlockStep& load_of(int value) const {
    for (const BlockStep& s : block_.steps)
      if (s.kind == StepKind::Load && s.writes[0].value == value) return s;
    unreachable("a value read through is loaded");
  }
  // Sectors of 32 bytes of global memory that a load's own walk touches.
  double sectors(const BlockStep& load, const Walk& w, const BlockAccess& a, bool write) const {
    return count_sectors(load, load, w, a, write);
  }
  double sectors(const BlockStep& load, const Walk& w, const BlockStep& s,
                 const BlockAccess& a) const {
    return count_sectors(load, s, w, a, false);
  }
  double count_sectors(const BlockStep& load, const BlockStep& s, const Walk& w,
                       const BlockAccess& a, bool write) const {
    const BlockValue& v = block_.values[size_t(a.value)];
    const BlockAccess& made = load.writes[0];
    int along = -1;  // axis of the value
    for (size_t i = 0; i < made.axes.size(); ++i)
      if (load.global_along >= 0 && made.axes[i] == load.global_along) along = int(i);
    int64_t below = 1;
    for (size_t i = v.extents.size(); along >= 0 && i-- > size_t(along) + 1;) below *= v.extents[i];
    const int64_t extent = along >= 0 ? v.extents[size_t(along)] : 1;
    const int64_t per = std::max<int64_t>(1, 32 / size_in_bytes(v.dtype));
    double total = 0;
    std::vector<int64_t> touched;
    for_each_round(block_, s, w, a, write, [&](int, const Round& round) {
      touched.clear();
      for (const LaneRun& run : round) {
        for (int i = 0; i < run.count; ++i) {
          const int64_t e = run.first + i * run.stride;
          const int64_t at = along >= 0 ? e / below % extent : 0;
          touched.push_back((e - at * below) * (extent / per + 1) + at / per);
        }
      }
      std::sort(touched.begin(), touched.end());
      total += double(std::unique(touched.begin(), touched.end()) - touched.begin());
    });
    return total;
  }

  void find_apart(BlockPrices& p, int value) const {
    const auto& options = p.options[size_t(value)];
    const bool stays = std::any_of(options.begin(), options.end(), [](const PlaceOption& o) {
      return o.place == BlockPlace::Registers;
    });
    if (!stays) return;
    struct One {
      int step, walk;
      bool write;
      Owners who;
    };
    std::vector<One> all;
    for (size_t i = 0; i < p.accesses.size(); ++i) {
      const PricedAccess& a = p.accesses[i];
      if (a.value != value) continue;
      for (size_t w = 0; w < walks(a.step); ++w)
        all.push_back({a.step, int(w), a.write,
                       owners(block_, step(a.step), step(a.step).walks[w], *access_[i], a.write)});
    }
    for (size_t i = 0; i < all.size(); ++i) {
      for (size_t j = i + 1; j < all.size(); ++j) {
        if (!all[i].write && !all[j].write) continue;
        if (all[i].step == all[j].step && all[i].walk != all[j].walk) continue;
        if (sharing(all[i].who, all[j].who) != Sharing::Thread)
          p.apart.push_back({value, all[i].step, all[i].walk, all[j].step, all[j].walk});
      }
    }
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
  int64_t registers = 0;
  for (size_t v = 0; v < block.values.size(); ++v) {
    if (p.options[v].empty()) continue;
    const PlaceOption& o = p.options[v][size_t(choice.option[v])];
    total += p.per_byte * double(o.bytes);
    registers += o.registers;
  }
  if (registers > p.register_bytes) return kNever;
  for (const PricedAccess& a : p.accesses) {
    if (p.options[size_t(a.value)].empty()) continue;
    total += a.cycles[size_t(choice.walk[size_t(a.step)])][size_t(choice.option[size_t(a.value)])];
  }
  for (const Apart& a : p.apart) {
    const size_t v = size_t(a.value);
    if (p.options[v][size_t(choice.option[v])].place == BlockPlace::Registers &&
        choice.walk[size_t(a.step)] == a.walk && choice.walk[size_t(a.other_step)] == a.other_walk)
      return kNever;
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
    int64_t most = 0;
    for (const auto& options : prices.options) {
      int64_t mine = 0;
      for (const PlaceOption& o : options) mine = std::max(mine, o.registers);
      most += mine;
    }
    scarce_ = most > prices.register_bytes;
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
    if (scarce_) ilp_.add(registers_, Relation::LessEqual, double(prices_.register_bytes));
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
    const std::vector<PlaceOption>& options = prices_.options[size_t(v)];
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
      // Where registers are scarce, staying there is a choice of its own.
      for (const bool stays : {false, true}) {
        int best = -1;
        double least = kNever;
        for (size_t o = 0; o < options.size(); ++o) {
          if (scarce_ ? (options[o].registers > 0) != stays : stays) continue;
          const double cost = option_cycles(v, int(o), walk);
          if (cost < least) least = cost, best = int(o);
        }
        if (best < 0) continue;
        const int j = ilp_.add_variable(least);
        columns_.push_back({j, v, best});
        all.push_back(j);
        if (options[size_t(best)].registers > 0)
          registers_.emplace_back(j, double(options[size_t(best)].registers));
        for (size_t i = 0; i < steps.size(); ++i)
          linked[i][size_t(walk[size_t(steps[i])])].emplace_back(j, 1);
      }
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
    const PlaceOption& option = prices_.options[size_t(v)][size_t(o)];
    double total = prices_.per_byte * double(option.bytes);
    for (size_t i : of_value_[size_t(v)]) {
      const PricedAccess& a = prices_.accesses[i];
      total += a.cycles[size_t(walk[size_t(a.step)])][size_t(o)];
    }
    if (option.place != BlockPlace::Registers) return total;
    for (const Apart& a : prices_.apart)
      if (a.value == v && walk[size_t(a.step)] == a.walk &&
          walk[size_t(a.other_step)] == a.other_walk)
        return kNever;
    return total;
  }

  const Block& block_;
  const BlockPrices& prices_;
  std::vector<std::vector<size_t>> of_value_;  // accesses
  std::vector<int> walks_;                     // by step: how many
  bool scarce_ = false;                        // registers may not do for all that may stay
  bool limited_ = false;
  Ilp ilp_;
  std::vector<std::vector<int>> walk_;  // variables, by step
  std::vector<Column> columns_;
  std::vector<std::pair<int, double>> registers_;
};

}  // namespace

BlockChoice choose_block(const Block& block, const BlockPrices& prices) {
  return Chooser(block, prices).run();
}

}  // namespace tessera
