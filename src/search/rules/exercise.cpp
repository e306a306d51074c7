
#include "base/error.h"
#include "base/rng.h"
#include "ir/build.h"
#include "search/rules/instance.h"
#include "search/rules/learn.h"

namespace tessera::rules {
namespace {

class Exercise {
 public:
  explicit Exercise(uint64_t seed) : rng_(seed), graph_("exercise") {
    const size_t inputs = 1 + rng_.below(3);
    for (size_t i = 0; i < inputs; ++i) {
      Shape shape;
      const size_t rank = rng_.chance(0.7) ? 2 : rng_.chance(0.8) ? 1 : 0;
      for (size_t axis = 0; axis < rank; ++axis) shape.push_back(Dim(kExtent));
      values_.push_back(graph_.add_input({DType::F32, shape}, std::string(1, char('A' + i))));
    }
  }

  Graph run() {
    const size_t operations = 2 + rng_.below(4);
    for (size_t made = 0, tries = 0; made < operations && tries < 60; ++tries) {
      const Graph::Mark mark = graph_.mark();
      try {
        const TensorId t = operation();
        if (graph_.type(t).dtype != DType::F32) bad_input("no float");
        values_.push_back(t);
        ++made;
      } catch (const Error&) {  // shapes that do not fit
        graph_.rollback(mark);
      }
    }
    graph_.add_output(values_.back());
    return without_dead_code(graph_);
  }

 private:
  static constexpr int64_t kExtent = 200;

  // Often the newest value, so that programs hang together.
  TensorId operand() {
    return rng_.chance(0.5) ? values_.back() : values_[rng_.below(values_.size())];
  }
  TensorId scalar() {
    static const Rational kNumbers[] = {2, 3, Rational::ratio(1, 2), 1, -1, 5, 4};
    return graph_.add_const(kNumbers[rng_.below(std::size(kNumbers))], {DType::F32, {}});
  }
  TensorId operation() {
    static constexpr OpKind kUnary[] = {OpKind::Neg,  OpKind::Sqr,  OpKind::Sqrt,
                                        OpKind::Exp,  OpKind::Log,  OpKind::Abs,
                                        OpKind::Tanh, OpKind::Relu, OpKind::Sigmoid};
    static constexpr OpKind kBinary[] = {OpKind::Add, OpKind::Add, OpKind::Sub, OpKind::Mul,
                                         OpKind::Mul, OpKind::Div, OpKind::Max, OpKind::Min};
    static constexpr OpKind kReductions[] = {OpKind::Sum, OpKind::Sum, OpKind::Mean,
                                             OpKind::ReduceMax, OpKind::ReduceMin};
    static const Rational kExponents[] = {2, 3, 4, -1, -2, Rational::ratio(1, 2)};
    const TensorId a = operand();
    const int rank = graph_.type(a).rank();
    switch (rng_.below(12)) {
    case 0:
    case 1: return graph_.add(kUnary[rng_.below(std::size(kUnary))], {a});
    case 2:
    case 3:
    case 4: return graph_.add(kBinary[rng_.below(std::size(kBinary))], {a, operand()});
    case 5: {
      static constexpr OpKind kWith[] = {OpKind::Mul, OpKind::Add, OpKind::Sub, OpKind::Div};
      return graph_.add(kWith[rng_.below(4)], {a, scalar()});
    }
    case 6:
      return graph_.add(OpKind::Pow, {a}, PowAttrs{kExponents[rng_.below(std::size(kExponents))]});
    case 7:
    case 8: {
      ReduceAttrs axes;
      if (rank == 2 && rng_.chance(0.7)) axes.axes = {int(rng_.below(2))};
      return graph_.add(kReductions[rng_.below(std::size(kReductions))], {a}, axes);
    }
    case 9: return add_dot(graph_, a, operand());
    case 10:
      if (rank == 2 && rng_.chance(0.3)) return diagonal(a);
      if (rng_.chance(0.2))
        return graph_.add(rng_.chance(0.5) ? OpKind::Triu : OpKind::Tril, {a}, DiagonalAttrs{0});
      return build::transpose(graph_, a, {{1, 0}});
    default: {
      const TensorId b = operand();
      if (rng_.chance(0.4)) return build::stack(graph_, {a, b}, {0});
      const OpKind order = rng_.chance(0.5) ? OpKind::Gt : OpKind::Le;
      const TensorId other = rng_.chance(0.4) ? graph_.add_const(0, {DType::F32, {}}) : b;
      const TensorId mask = graph_.add(order, {a, other});
      return graph_.add(OpKind::Where, {mask, operand(), operand()});
    }
    }
  }
  TensorId diagonal(TensorId a) {
    const TensorId flat = build::reshape(graph_, a, {{Dim(kExtent * kExtent)}});
    return build::slice(graph_, flat, {{0}, {kExtent * kExtent}, {kExtent + 1}});
  }
  Rng rng_;
  Graph graph_;
  std::vector<TensorId> values_;
};

}  // namespace

Graph exercise(uint64_t seed) { return Exercise(seed).run(); }

}  // namespace tessera::rules
