// The program optimiser of the partially equivalent engine (PET, OSDI'21, §6, Algorithm 2), with a
// cover by integer program in place of its heap of programs: subprograms are mutated in rounds, the
// rearrangements at their borders become kernels of their own, and of all that any engine offers
// for any value of the program the cheapest kernels are chosen together. Rearrangements that meet
// their inverse are then never computed, and others only once: what PET calls post-optimisations.
#pragma once
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "driver/kernel_costs.h"
#include "driver/partition.h"
#include "driver/session.h"
#include "ir/arrangement.h"
#include "plan/cover.h"

namespace tessera {

// What another engine made of a part, and how many times as fast that was.
struct Replacement {
  Graph graph;
  double speedup = 1;
};

class ProgramOptimizer {
 public:
  // `base` outlives this. Without `timed` the cost model decides alone, the same on any machine.
  ProgramOptimizer(Session& session, const Graph& base, bool timed = true);

  // Mutants of the program's linear subprograms, the most expensive first, until between `least`
  // and `most` on the session's clock, by how much of the program's time there is to gain from;
  // what the model does not rule out is timed. Adds to the report's subprograms. True where nothing
  // was cut short.
  bool propose(double least, double most);
  bool offers() const { return !offered_.empty(); }
  // The cheapest program of mutants and of what other engines made of `parts`; nothing where no
  // mutant gains. Says in the report what was chosen.
  std::optional<Graph> choose(const std::vector<Part>& parts,
                              const std::vector<Replacement>& replacements);
  // What choose() chose, every mutant between the copies that bring it what the program has there
  // and back: equal to the program value by value, so that each mutant is proved alone.
  const Graph& in_place() const { return in_place_; }
  // The whole was proved, and with it what it was made of.
  void accept();
  // Says in the report why what choose() chose is not in the result, and has it choose otherwise:
  // where the whole was refused, without mutants that are not proved; where it was slow, first what
  // should save most alone, then all but that. False where there is nothing else.
  bool reject(const Outcome& whole);

 private:
  // An element of a class of equal values: a tensor of the program, rearranged.
  struct Value {
    TensorId of;
    Arrangement view;
  };
  struct Kernel {
    std::vector<size_t> inputs, outputs;  // values
    double seconds = 0;
    bool relay = false;  // another view of a value
    std::function<std::vector<TensorId>(Graph&, const std::vector<TensorId>&)> emit;
    int subprogram = -1, alternative = -1;  // of the report
  };
  // A program over values, which replaces `original` on them. `inputs` and `outputs` are in the
  // order of the graph's.
  struct Item {
    Graph graph;
    std::vector<size_t> inputs, outputs;
    double seconds = 0;
    int subprogram = -1, alternative = -1, round = 0;
    // How it came about: what it is a mutant of (among those found; -1: the subprogram), as a
    // whole.
    int parent = -1;
    Graph whole = Graph();
  };

  // A subprogram, where it is in the program, and its mutants.
  struct Explored {
    size_t subprogram = 0;
    std::vector<const Part*> places;
    Item original = Item();
    std::vector<Item> found = {};
    double expected_s = 0;  // of the program's time that the best of them saves by the model
  };

  size_t value_of(TensorId t, const Arrangement& view);
  std::optional<Item> opened(const Item& original, const Graph& mutant);
  void mutate(const Item& item, int number, double until, std::vector<Item>& found);
  bool prove(const Explored& explored, int alternative);
  Explored explore(size_t subprogram, const std::vector<const Part*>& places, double until);
  bool settle(Explored& explored, double until);
  void place(const Item& item, const Part& first, const Part& here);
  void add_views(std::vector<Kernel>& kernels);
  void follow_views();
  std::vector<Kernel> own_kernels();
  Kernel kernel_of(const Part& part, const Replacement& replacement) const;

  Session& s_;
  const Graph& base_;
  const bool timed_;
  KernelCosts costs_;
  std::vector<double> seconds_;  // of the base, by operator
  std::vector<bool> once_;       // by operator: computed from weights alone
  std::vector<Value> values_;    // first the base's tensors as they are
  std::map<std::pair<uint32_t, std::string>, size_t> numbers_;
  std::vector<Kernel> offered_;
  std::vector<Explored> explored_;
  Graph in_place_;
  std::set<int> rejected_;  // subprograms that keep their operators
  int rejections_ = 0;
};

}  // namespace tessera
