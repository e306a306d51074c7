#include "driver/linear_parts.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "base/interruption.h"
#include "ir/weights.h"
#include "search/mutate/mutate.h"

namespace tessera {
namespace {

class Splitter {
 public:
  Splitter(const Graph& g, size_t most, size_t subsets)
      : g_(g), most_(most), subsets_(subsets), once_(computed_once(g, true)),
        linear_(g.ops().size(), false), users_(g.tensors().size()) {
    for (size_t i = 0; i < g.ops().size(); i++) {
      const Op& op = g.ops()[i];
      for (const TensorId t : op.inputs) users_[t.index].push_back(i);
      linear_[i] =
          !once_[i] && !op.constant() && is_multilinear(g, op) && !has(op.kind, algebra::Pointwise);
    }
    for (const TensorId t : g.outputs()) users_[t.index].push_back(g.ops().size());
  }

  std::vector<Part> run() {
    std::vector<std::vector<size_t>> found = chains();
    for (auto& group : siblings()) found.push_back(std::move(group));
    std::ranges::sort(found);
    found.erase(std::unique(found.begin(), found.end()), found.end());
    return mapped(found, [&](const auto& ops) { return part_of(g_, {ops.begin(), ops.end()}); });
  }

 private:
  size_t maker(TensorId t) const { return g_.tensor(t).producer.index; }
  bool works(size_t i) const { return linear_[i] && !has(g_.ops()[i].kind, algebra::Movement); }
  // A product with one constant, which stays where it is: the divisor of an average, say.
  bool scales(size_t i) const {
    interruption_point();
    const Op& op = g_.ops()[i];
    if ((op.kind != OpKind::Mul && op.kind != OpKind::Div) || once_[i]) return false;
    const bool constant = std::ranges::any_of(op.inputs, [&](TensorId t) {
      return g_.producer(t).constant() && g_.type(t).shape.empty();
    });
    return constant && is_multilinear(g_, op);
  }
  bool multiplies(size_t i) const {
    interruption_point();
    return is_bilinear(g_.ops()[i].kind);
  }

  // In longer chains, pooling with the product before it and with the one after it: what changes
  // places with a neighbour is found in few steps. If asked for, all that follow each other.
  void add_windows(const std::vector<size_t>& chain,
                   std::vector<std::vector<size_t>>& found) const {
    std::vector<size_t> working;  // positions
    for (size_t k = 0; k < chain.size(); k++)
      if (works(chain[k])) working.push_back(k);
    const auto kind = [&](size_t k) { return g_.ops()[chain[working[k]]].kind; };
    for (size_t k = 0; k < working.size(); k++)
      for (size_t l = k; l < working.size(); l++) {
        const bool pools = l == k + 1 && working.size() > 2 &&
                           (kind(k) == OpKind::PoolSum || kind(l) == OpKind::PoolSum);
        std::vector<size_t> window(chain.begin() + std::ptrdiff_t(working[k]),
                                   chain.begin() + std::ptrdiff_t(working[l]) + 1);
        if (!(pools || l - k < subsets_) || !convex(window) ||
            std::ranges::none_of(window, [&](size_t i) { return multiplies(i); }))
          continue;
        std::ranges::sort(window);
        found.push_back(std::move(window));
      }
  }

  // Operators that follow each other with nobody else reading what is in between: convex as they
  // are. Movement and scales at either end are left out.
  std::vector<std::vector<size_t>> chains() const {
    std::vector<std::vector<size_t>> found;
    std::vector<bool> taken(g_.ops().size(), false);
    for (size_t i = 0; i < g_.ops().size(); i++) {
      if (!works(i) || taken[i]) continue;
      std::vector<size_t> chain = {i};
      size_t work = 1, kept = 1;
      for (size_t at = i;;) {
        const auto& readers = users_[g_.ops()[at].result().index];
        if (readers.size() != 1 || readers[0] >= g_.ops().size() || taken[readers[0]] ||
            !(linear_[readers[0]] || scales(readers[0])))
          break;
        at = readers[0];
        // What else it reads has to come from outside.
        if (works(at) && ++work > most_) break;
        chain.push_back(at);
        if (works(at)) kept = chain.size();
      }
      chain.resize(kept);
      if (!convex(chain)) chain = {i};
      for (const size_t k : chain) taken[k] = true;
      if (std::ranges::any_of(chain, [&](size_t k) { return multiplies(k); })) {
        add_windows(chain, found);
        std::ranges::sort(chain);
        found.push_back(std::move(chain));
      }
    }
    return found;
  }

  // Equal operators of one operand, weights alike but for the channels or columns that they make;
  // also convolutions whose windows differ in size, where their results are alike.
  std::vector<std::vector<size_t>> siblings() const {
    using Key = std::tuple<uint32_t, OpKind, std::string>;
    std::map<Key, std::vector<size_t>> groups;
    for (size_t i = 0; i < g_.ops().size(); i++) {
      const Op& op = g_.ops()[i];
      if (!works(i) || !multiplies(i) || op.kind == OpKind::ConvTranspose) continue;
      const TensorId w = op.inputs[1];
      if (!g_.is_weight(w) && !once_[maker(w)]) continue;
      Shape like = g_.type(w).shape;
      like.erase(op.kind == OpKind::Conv ? like.begin() : like.end() - 1);
      const std::string dtype = g_.type(w).str().substr(0, 3);
      std::string key = dtype + str(like);
      if (op.kind == OpKind::Conv) {
        const auto& a = g_.attrs<ConvAttrs>(op);
        if (a.groups != 1) continue;
        Shape result = g_.type(op.result()).shape;
        result.erase(result.begin() + 1);
        std::string loose = "any window " + dtype + str(result);
        for (const auto* list : {&a.strides, &a.dilations, &a.low, &a.high}) {
          key += "|";
          for (const int64_t x : *list) key += std::to_string(x) + ",";
          if (list == &a.dilations) loose += key.substr(key.find('|'));
        }
        groups[{op.inputs[0].index, op.kind, loose}].push_back(i);
      }
      groups[{op.inputs[0].index, op.kind, key}].push_back(i);
    }
    std::vector<std::vector<size_t>> found;
    for (auto& [key, group] : groups) {
      if (group.size() < 2 || group.size() > 8) continue;
      found.push_back(group);
      for (unsigned chosen = 0; subsets_ > 1 && chosen < 1u << group.size(); chosen++) {
        std::vector<size_t> some;
        for (size_t i = 0; i < group.size(); i++)
          if (chosen >> i & 1) some.push_back(group[i]);
        if (some.size() > 1 && some.size() <= subsets_) found.push_back(std::move(some));
      }
    }
    return found;  // one operand and weights: none can depend on another
  }

  // Does no path leave these operators and come back?
  bool convex(const std::vector<size_t>& ops) const {
    interruption_point();
    const std::set<size_t> inside(ops.begin(), ops.end());
    std::set<size_t> after;  // operators outside that depend on some inside
    const size_t last = *inside.rbegin();
    for (size_t i = *inside.begin(); i <= last; i++) {
      for (const TensorId t : g_.ops()[i].inputs) {
        const size_t m = maker(t);
        if (after.count(m)) {
          if (inside.count(i)) return false;
          after.insert(i);
        } else if (inside.count(m) && !inside.count(i)) {
          after.insert(i);
        }
      }
    }
    return true;
  }

  const Graph& g_;
  const size_t most_, subsets_;
  const std::vector<bool> once_;
  std::vector<bool> linear_;
  std::vector<std::vector<size_t>> users_;
};

}  // namespace

std::vector<Part> linear_parts(const Graph& program, size_t most, size_t subsets) {
  return Splitter(program, most, subsets).run();
}

}  // namespace tessera
