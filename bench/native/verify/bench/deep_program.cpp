#include "verify/bench/deep_program.h"

#include "base/check.h"
#include "base/rng.h"
#include "ir/validate.h"

namespace tessera {
namespace {

class Layers {
 public:
  explicit Layers(uint64_t seed) : rng_(seed), g_("deep") {}

  Graph run() {
    const int64_t rows = rng_.between(2, 5), columns = rng_.between(2, 5);
    TensorId x = g_.add_input({DType::F32, {Dim(rows), Dim(columns)}}, "x");
    const TensorId w = g_.add_input({DType::F32, {Dim(columns), Dim(columns)}}, "w");
    const int64_t layers = rng_.between(3, 6);
    for (int64_t i = 0; i < layers; i++) x = layer(x, w);
    g_.add_output(rng_.chance(0.3) ? add(OpKind::Sum, {x}, ReduceAttrs{{0}, false}) : x);
    Graph used = without_dead_code(g_);
    validate(used);
    return used;
  }

 private:
  TensorId add(OpKind kind, std::vector<TensorId> in, Attrs attrs = NoAttrs{}) {
    return g_.add(kind, std::move(in), std::move(attrs));
  }
  TensorId number(Rational value) { return g_.add_const(value, {DType::F32, {}}); }
  TensorId softmax(TensorId x) {
    const ReduceAttrs rows{{1}, true};
    TensorId shifted = add(OpKind::Sub, {x, add(OpKind::ReduceMax, {x}, rows)});
    TensorId e = add(OpKind::Exp, {shifted});
    return add(OpKind::Div, {e, add(OpKind::Sum, {e}, rows)});
  }
  TensorId layer(TensorId x, TensorId w) {
    switch (rng_.below(6)) {
    case 0: {
      TensorId q = add(OpKind::Tanh, {add(OpKind::Matmul, {x, w})});
      TensorId s = add(OpKind::Matmul, {q, add(OpKind::Transpose, {q}, PermAttrs{{1, 0}})});
      return add(OpKind::Matmul, {softmax(s), x});
    }
    case 1: return add(OpKind::Add, {softmax(x), add(OpKind::Tanh, {x})});
    case 2: {
      TensorId e = add(OpKind::Exp, {add(OpKind::Tanh, {x})});
      return add(OpKind::Mul, {add(OpKind::Sigmoid, {e}), add(OpKind::Silu, {x})});
    }
    case 3: {
      static constexpr OpKind kNamed[] = {OpKind::Erf, OpKind::Sin, OpKind::Cos, OpKind::Gelu};
      TensorId f = add(kNamed[rng_.below(4)], {add(OpKind::Tanh, {x})});
      return add(OpKind::Add, {f, add(OpKind::Mul, {x, number(Rational::ratio(1, 2))})});
    }
    case 4: {
      const ReduceAttrs rows{{1}, true};
      TensorId c = add(OpKind::Sub, {x, add(OpKind::Mean, {x}, rows)});
      TensorId v = add(OpKind::Mean, {add(OpKind::Sqr, {c})}, rows);
      TensorId s = add(OpKind::Add, {v, number(Rational::ratio(1, 10))});
      return add(OpKind::Mul, {c, add(OpKind::Rsqrt, {s})});
    }
    case 5: {
      TensorId e = add(OpKind::Exp, {add(OpKind::Sigmoid, {x})});
      return add(OpKind::Log, {add(OpKind::Add, {e, number(Rational(1))})});
    }
    }
    unreachable("layer");
  }

  Rng rng_;
  Graph g_;
};

}  // namespace

Graph deep_program(uint64_t seed) { return Layers(seed).run(); }

}  // namespace tessera
