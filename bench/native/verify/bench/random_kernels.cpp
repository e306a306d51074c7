// Random fused kernels: grids, loops and accumulators whose tiles need not divide the shapes.
#include "ir/validate.h"
#include "verify/bench/random_generator.h"

namespace tessera::random_programs {

bool Generator::fused_kernel() {
  switch (pick(5)) {
  case 4: return two_pass_kernel();
  case 0: return pointwise_kernel();
  case 1: return reduce_kernel();
  case 2: return matmul_kernel();
  default: return online_softmax_kernel();
  }
}

TensorId Generator::tile(Graph& b, TensorId arg, GridMap imap, LoopMap fmap) {
  return b.add(OpKind::Iter, {arg}, IterAttrs{imap, fmap});
}

// A chain of pointwise operators inside the body.
TensorId Generator::chain(Graph& b, TensorId x, int length) {
  const DType dtype = b.type(x).dtype;
  for (int i = 0; i < length; i++) switch (pick(7)) {
    case 0: x = b.add(OpKind::Sqr, {x}); break;
    case 1: x = b.add(OpKind::Relu, {x}); break;
    case 2:
      x = b.add(OpKind::Mul,
                {x, b.add_const(one_of({Rational(2), Rational::ratio(1, 4), Rational(-3)}),
                                {dtype, {}})});
      break;
    case 3:
      x = b.add(OpKind::Add,
                {x, b.add_const(one_of({Rational(1), Rational::ratio(1, 2)}), {dtype, {}})});
      break;
    case 4: x = b.add(OpKind::Neg, {x}); break;
    case 5: x = b.add(OpKind::Mul, {x, x}); break;
    default: x = b.add(OpKind::Abs, {x}); break;
    }
  return x;
}

bool Generator::finish_kernel(std::vector<TensorId> args, Graph body) {
  Graph probe("probe");  // validate the kernel alone before it joins the program
  std::vector<TensorId> in;
  for (TensorId t : args) in.push_back(probe.add_input(g_.type(t)));
  OpId id = probe.add_graph_op(OpKind::Kernel, in, body);
  for (uint32_t r = 0; r < probe.op(id).num_results; r++) probe.add_output(probe.op(id).result(r));
  validate(probe);
  int size = 1, exps = 0;
  for (TensorId t : args) {
    size = std::max(size, fact(t).size);
    exps = std::max(exps, fact(t).exps);
  }
  OpId made = g_.add_graph_op(OpKind::Kernel, args, std::move(body));
  for (uint32_t r = 0; r < g_.op(made).num_results; r++) {
    TensorId t = g_.op(made).result(r);
    fact(t).size = 2 * size + 4;
    fact(t).exps = exps + 1;
    fact(t).order = true;  // bodies have extrema of their own
    pool_.push_back(t);
  }
  return true;
}

bool Generator::pointwise_kernel() {
  TensorId x = real_of_rank(2);
  if (rank(x) != 2 || fact(x).size > 6) return false;
  TensorId y = choose([&](TensorId t) { return g_.type(t) == g_.type(x); });
  const int64_t m = shape(x)[0].extent, n = shape(x)[1].extent;
  const bool looped = rng_.chance(0.6);
  Graph b = looped ? Graph::block({parts(m)}, {parts(n)}) : Graph::block({parts(m), parts(n)}, {});
  GridMap imap = looped ? GridMap{0, -1, -1} : GridMap{0, 1, -1};
  LoopMap fmap = looped ? LoopMap{1, -1, -1, -1} : kNoLoops;
  TensorId bx = b.add_input(g_.type(x)), by = b.add_input(g_.type(y));
  TensorId tx = tile(b, bx, imap, fmap), ty = tile(b, by, imap, fmap);
  TensorId v = b.add(one_of({OpKind::Add, OpKind::Mul, OpKind::Sub, OpKind::Max}),
                     {chain(b, tx, pick(3)), chain(b, ty, pick(2))});
  v = chain(b, v, pick(2));
  b.add_output(b.add(OpKind::Save, {v}, SaveAttrs{imap, fmap, g_.type(x)}));
  return finish_kernel({x, y}, std::move(b));
}

bool Generator::reduce_kernel() {
  TensorId x = real_of_rank(2);
  if (rank(x) != 2 || fact(x).size > 6) return false;
  const DType dtype = g_.type(x).dtype;
  const int64_t m = shape(x)[0].extent, n = shape(x)[1].extent;
  Graph b = Graph::block({parts(m)}, {parts(n)});
  TensorId bx = b.add_input(g_.type(x));
  TensorId t = tile(b, bx, {0, -1, -1}, {1, -1, -1, -1});
  const bool use_max = rng_.chance(0.3);
  TensorId v = chain(b, t, pick(3));
  const ReduceAttrs a{{1}, true};
  TensorId r = b.add(use_max ? OpKind::ReduceMax : OpKind::Sum, {v}, a);
  TensorId acc =
      b.add(OpKind::Accum, {r}, AccumAttrs{use_max ? AccumKind::Max : AccumKind::Sum, {0}});
  if (rng_.chance(0.4)) {  // a second accumulator combined after the loop
    TensorId s = b.add(OpKind::Sum, {b.add(OpKind::Sqr, {t})}, a);
    TensorId acc2 = b.add(OpKind::Accum, {s}, AccumAttrs{AccumKind::Sum, {0}});
    TensorId d =
        b.add(OpKind::Sqrt, {b.add(OpKind::Add, {acc2, b.add_const(Rational(1), {dtype, {}})})});
    acc = b.add(OpKind::Div, {acc, d});
  }
  acc = chain(b, acc, pick(2));
  b.add_output(
      b.add(OpKind::Save, {acc}, SaveAttrs{{0, -1, -1}, kNoLoops, {dtype, {Dim(m), Dim(1)}}}));
  return finish_kernel({x}, std::move(b));
}

// Rows scaled by what a first loop over them has folded; sometimes a third loop comes between.
bool Generator::two_pass_kernel() {
  TensorId x = real_of_rank(2);
  if (rank(x) != 2 || fact(x).size > 6) return false;
  const DType dtype = g_.type(x).dtype;
  const int64_t m = shape(x)[0].extent, n = shape(x)[1].extent;
  const bool three = rng_.chance(0.4);
  std::vector<int64_t> loops{parts(n), parts(n)};
  if (three) loops.push_back(parts(n));
  Graph b = Graph::block({parts(m)}, loops);
  TensorId bx = b.add_input(g_.type(x));
  auto over = [&](int loop) {
    LoopMap fmap = kNoLoops;
    fmap[size_t(loop)] = 1;
    return fmap;
  };
  auto folded = [&](TensorId v, int loop) {
    TensorId r = b.add(OpKind::Sum, {v}, ReduceAttrs{{1}, true});
    return b.add(OpKind::Accum, {r}, AccumAttrs{AccumKind::Sum, {loop}});
  };
  TensorId first = folded(chain(b, tile(b, bx, {0, -1, -1}, over(0)), pick(2)), 0);
  TensorId scale = b.add(OpKind::Mul, {first, b.add_const(Rational::ratio(1, n), {dtype, {}})});
  int last = 1;
  if (three) {
    TensorId c = b.add(OpKind::Sub, {tile(b, bx, {0, -1, -1}, over(1)), scale});
    TensorId v = folded(b.add(OpKind::Sqr, {c}), 1);
    scale = b.add(OpKind::Rsqrt,
                  {b.add(OpKind::Add, {v, b.add_const(Rational::ratio(1, 100), {dtype, {}})})});
    last = 2;
  }
  TensorId t = tile(b, bx, {0, -1, -1}, over(last));
  TensorId out = chain(b, b.add(one_of({OpKind::Sub, OpKind::Mul}), {t, scale}), pick(2));
  b.add_output(b.add(OpKind::Save, {out}, SaveAttrs{{0, -1, -1}, over(last), g_.type(x)}));
  return finish_kernel({x}, std::move(b));
}

bool Generator::matmul_kernel() {
  TensorId x = real_of_rank(2);
  if (rank(x) != 2 || fact(x).size > 6) return false;
  TensorId y = choose([&](TensorId t) {
    return g_.type(t).dtype == g_.type(x).dtype && rank(t) == 2 && shape(t)[0] == shape(x)[1];
  });
  if (fact(y).size > 6) return false;
  const DType dtype = g_.type(x).dtype;
  const int64_t m = shape(x)[0].extent, k = shape(x)[1].extent, n = shape(y)[1].extent;
  Graph b = Graph::block({parts(m), parts(n)}, {parts(k)});
  TensorId bx = b.add_input(g_.type(x)), by = b.add_input(g_.type(y));
  TensorId tx = tile(b, bx, {0, -1, -1}, {1, -1, -1, -1});
  TensorId ty = tile(b, by, {-1, 1, -1}, {0, -1, -1, -1});
  TensorId p = b.add(OpKind::Matmul, {chain(b, tx, pick(2)), ty});
  TensorId acc = b.add(OpKind::Accum, {p}, AccumAttrs{AccumKind::Sum, {0}});
  if (rng_.chance(0.5)) {
    TensorId s = b.add(OpKind::Sum, {b.add(OpKind::Sqr, {tx})}, ReduceAttrs{{1}, true});
    TensorId acc2 = b.add(OpKind::Accum, {s}, AccumAttrs{AccumKind::Sum, {0}});
    TensorId mean = b.add(OpKind::Mul, {acc2, b.add_const(Rational::ratio(1, k), {dtype, {}})});
    TensorId d =
        b.add(OpKind::Sqrt,
              {b.add(OpKind::Add, {mean, b.add_const(Rational::ratio(1, 100), {dtype, {}})})});
    acc = b.add(OpKind::Div, {acc, d});
  }
  acc = chain(b, acc, pick(2));
  b.add_output(
      b.add(OpKind::Save, {acc}, SaveAttrs{{0, 1, -1}, kNoLoops, {dtype, {Dim(m), Dim(n)}}}));
  return finish_kernel({x, y}, std::move(b));
}

// softmax(x)·y in one pass: running maxima and rescaled sums.
bool Generator::online_softmax_kernel() {
  TensorId x = real_of_rank(2);
  if (rank(x) != 2 || fact(x).exps > 0) return false;
  TensorId y = choose([&](TensorId t) {
    return g_.type(t).dtype == g_.type(x).dtype && rank(t) == 2 && shape(t)[0] == shape(x)[1];
  });
  const DType dtype = g_.type(x).dtype;
  const int64_t m = shape(x)[0].extent, k = shape(x)[1].extent, n = shape(y)[1].extent;
  Graph b = Graph::block({parts(m)}, {parts(k)});
  TensorId bx = b.add_input(g_.type(x)), by = b.add_input(g_.type(y));
  TensorId tx = tile(b, bx, {0, -1, -1}, {1, -1, -1, -1});
  TensorId ty = tile(b, by, {-1, -1, -1}, {0, -1, -1, -1});
  TensorId mx = b.add(OpKind::ReduceMax, {tx}, ReduceAttrs{{1}, true});
  TensorId e = b.add(OpKind::Exp, {b.add(OpKind::Sub, {tx, mx})});
  TensorId s = b.add(OpKind::Sum, {e}, ReduceAttrs{{1}, true});
  TensorId v = b.add(OpKind::Matmul, {e, ty});
  const AccumAttrs fold{AccumKind::Sum, {0}};
  TensorId out = b.add(OpKind::Div, {b.add(OpKind::AccumRescale, {v, mx}, fold),
                                     b.add(OpKind::AccumRescale, {s, mx}, fold)});
  b.add_output(
      b.add(OpKind::Save, {out}, SaveAttrs{{0, -1, -1}, kNoLoops, {dtype, {Dim(m), Dim(n)}}}));
  return finish_kernel({x, y}, std::move(b));
}

}  // namespace tessera::random_programs
