// Programs over a few leaves, one per value: what a window has found so far, with the cheapest way
// to each. What computes the window's target, or another class of the e-graph that matters, is told
// to the e-graph at once.
#pragma once
#include <array>
#include <vector>

#include "search/synth/egraph.h"
#include "search/synth/window.h"

namespace tessera::synth {

inline constexpr int kMaxSteps = 12;  // operations in one derivation

// A program over the leaves. Arguments of its node are indices of entries.
struct Entry {
  Node node;
  Sample sample;
  ValueId known = kNone;      // the e-graph's class, where it has one
  bool committed = false;     // does that class have this way?
  double own = 0, total = 0;  // seconds: the last operation, the derivation
  uint8_t size = 0, steps = 0;
  std::array<uint32_t, kMaxSteps> step{};  // entries of the derivation, ascending, itself last
};

class Bank {
 public:
  Bank(EGraph& graph, const Grammar& grammar, ValueId target, const std::vector<bool>& live,
       const WindowLimits& limits, const std::function<bool()>& stopped)
      : graph_(graph), world_(graph.world()), grammar_(grammar), target_(target), live_(live),
        limits_(limits), dearest_(limits.seconds * (1 + 1e-9)), stopped_(stopped),
        levels_(size_t(limits.max_size) + 1) {}

  EGraph& graph() { return graph_; }
  World& world() { return world_; }
  const Grammar& grammar() const { return grammar_; }
  const WindowLimits& limits() const { return limits_; }
  ValueId target() const { return target_; }
  const Sample& target_sample() const { return graph_[target_].sample; }
  double dearest() const { return dearest_; }  // seconds of programs worth looking at
  WindowReport& report() { return report_; }
  bool stopped() const { return stopped_(); }
  // Is the window's share of evaluations, or the time, spent?
  bool over();

  size_t size() const { return entries_.size(); }
  const Entry& operator[](uint32_t id) const { return entries_[id]; }
  const std::vector<uint32_t>& level(int size) const { return levels_[size_t(size)]; }
  // The entry of a value; kNone where there is none.
  uint32_t find(const Sample& s) const { return index_.find(s.hash); }

  void add_leaf(ValueId v);
  // The entry of a scalar constant; kNone where the dtype has no such number.
  uint32_t constant(const Rational& c, DType dtype);
  // Likewise of a value all of whose elements are one simple number other than zero.
  uint32_t constant_of(const Sample& s);
  bool is_constant(uint32_t a) const {
    return entries_[a].known != kNone && entries_[a].node.form == Form::Const;
  }
  bool is_extent(uint32_t a) const { return entries_[a].node.form == Form::Extent; }
  bool is_number(uint32_t a) const { return is_constant(a) || is_extent(a); }

  // Entries of truth values: the window's leaves, and comparisons of the program whose operands are
  // entries, which are filed now if they were not before.
  std::vector<uint32_t> conditions();

  // Evaluates an operation on entries and files its value: as a way to compute a class of the
  // e-graph, and for larger programs where it is new or cheaper than before. Its entry; kNone where
  // it has no value, is too dear or nothing to build on.
  uint32_t try_node(const Node& node, int size);
  // Files an operation whose value is known to be the target's, should its shape be.
  void offer_target(const Node& node);
  // The target as a constant times an entry.
  void offer_scaled(uint32_t b, const Rational& c);
  // Seconds of an operation on entries; nothing where they do not fit.
  std::optional<double> seconds(const Node& node) const;

 private:
  void push(Entry e);
  void note_cost(double seconds);  // of a program that computes the target
  ValueId constant_class(const Rational& c, DType dtype);
  std::optional<Dims> shape_of(const Node& node) const;
  bool derive(Entry& e) const;
  ValueId commit(uint32_t id);
  Node translated(Node node);
  void offer(const Entry& e, ValueId known);

  EGraph& graph_;
  World& world_;
  const Grammar& grammar_;
  ValueId target_;
  const std::vector<bool>& live_;
  const WindowLimits& limits_;
  double dearest_;
  const std::function<bool()>& stopped_;
  SampleStore store_;
  std::vector<Entry> entries_;
  std::vector<std::vector<uint32_t>> levels_;  // by size
  HashIndex index_;
  WindowReport report_;
  uint64_t looks_ = 0;  // at whether it is over
  bool over_ = false;
};

}  // namespace tessera::synth
