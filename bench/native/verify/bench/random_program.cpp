#include "verify/bench/random_program.h"

#include "ir/validate.h"
#include "verify/bench/random_generator.h"

namespace tessera {
namespace random_programs {

Graph Generator::run() {
  for (int& d : dims_) d = int(rng_.between(2, o_.max_extent));
  const bool integral = o_.integers && rng_.chance(0.1);
  const int num_inputs = int(rng_.between(1, 4));
  for (int i = 0; i < num_inputs; i++) add_input(integral);
  const int ops = int(rng_.between(o_.min_ops, o_.max_ops));
  bool kernel = !integral && rng_.chance(o_.kernel_chance);
  int added = 0;
  for (int tries = 0; added < ops && tries < 40 * ops; tries++) {
    const size_t before = g_.ops().size();
    if (kernel && added >= ops / 3) {
      for (int k = 0; k < 8 && kernel; k++)
        if (attempt([&] { return fused_kernel(); })) kernel = false, added++;
      kernel = false;
    } else if (attempt([&] { return integral ? integer_step() : step(); })) {
      added++;
    }
    if (g_.ops().size() > before && size_of(last()) > 4096) break;
  }
  // Drawn apart, so that the other programs are what they are without them.
  if (!integral && windows_.chance(o_.window_chance)) {
    for (int tries = 0; tries < 8; tries++)
      if (attempt([&] { return window(); })) break;
  } else if (!integral && windows_.chance(o_.convolution_chance)) {
    for (int tries = 0; tries < 8; tries++)
      if (attempt([&] { return convolution(); })) break;
  }
  return finish();
}

void Generator::add_input(bool integral) {
  Shape s;
  const int r = rng_.chance(0.6) ? 2 : int(rng_.between(1, 3));
  for (int d = 0; d < r; d++) s.push_back(Dim(dims_[pick(3)]));
  if (r == 2 && rng_.chance(0.25)) s[1] = s[0];
  if (rng_.chance(0.1)) s[size_t(pick(r))] = Dim(1);
  DType dtype =
      integral ? one_of({DType::I64, DType::I32, DType::I8, DType::U8, DType::I32}) : o_.dtype;
  if (integral && !pool_.empty()) dtype = g_.type(pool_[0]).dtype;
  TensorId t = g_.add_input({dtype, s}, "x" + std::to_string(pool_.size()));
  fact(t);
  pool_.push_back(t);
}

bool Generator::integer_step() {
  auto any = [&] { return choose([&](TensorId t) { return is_integer(g_.type(t).dtype); }); };
  TensorId x = any();
  switch (pick(9)) {
  case 0:
  case 1:
  case 2: {
    TensorId y = partner(x);
    return keep(
        emit(one_of({OpKind::Add, OpKind::Sub, OpKind::Mul, OpKind::Max, OpKind::Min}), {x, y}));
  }
  case 3: return keep(emit(one_of({OpKind::Neg, OpKind::Abs, OpKind::Sqr, OpKind::Relu}), {x}));
  case 4: {
    if (rank(x) < 1) return false;
    const ReduceAttrs a{{pick(rank(x))}, rng_.chance(0.5)};
    return keep(emit(one_of({OpKind::Sum, OpKind::ReduceMax, OpKind::Sum}), {x}, a));
  }
  case 5: {
    if (rank(x) != 2) return false;
    return keep(emit(OpKind::Transpose, {x}, PermAttrs{{1, 0}}));
  }
  case 6: {
    TensorId y = partner(x);
    TensorId c = emit(one_of({OpKind::Lt, OpKind::Le, OpKind::Eq, OpKind::Ge}), {x, y});
    return keep(emit(OpKind::Where, {c, x, y}));
  }
  case 7:
    return keep(emit(one_of({OpKind::Add, OpKind::Mul}),
                     {x, constant(Rational(rng_.between(1, 5)), g_.type(x).dtype)}));
  default: {
    if (rank(x) != 2) return false;
    TensorId y = choose([&](TensorId t) {
      return g_.type(t).dtype == g_.type(x).dtype && rank(t) == 2 && shape(t)[0] == shape(x)[1];
    });
    return keep(emit(OpKind::Matmul, {x, y}));
  }
  }
}

// The last value is an output, and so is what nothing else uses, up to three.
Graph Generator::finish() {
  std::vector<int> uses = use_counts(g_);
  std::vector<TensorId> outputs{last()};
  for (size_t i = pool_.size() - 1; i-- > 0 && outputs.size() < 3;)
    if (uses[pool_[i].index] == 0 && g_.producer(pool_[i]).kind != OpKind::Input &&
        rng_.chance(0.6))
      outputs.push_back(pool_[i]);
  g_.set_outputs(outputs);
  // Drop inputs that nothing uses by rebuilding with dead code removed.
  Graph live = without_dead_code(g_);
  std::vector<int> live_uses = use_counts(live);
  Graph out(live.name());
  std::vector<TensorId> to(live.tensors().size());
  for (const Op& op : live.ops()) {
    std::vector<TensorId> in;
    for (TensorId t : op.inputs) in.push_back(to[t.index]);
    TensorId first(out.tensors().size());
    if (op.kind == OpKind::Input) {
      if (live_uses[op.result().index] == 0) continue;
      out.add_input(live.type(op.result()), live.tensor(op.result()).name);
    } else if (op.body.valid()) {
      out.add_graph_op(op.kind, in, live.body(op));
    } else {
      out.add_op(op.kind, in, op.attrs);
    }
    for (uint32_t r = 0; r < op.num_results; r++)
      to[op.result(r).index] = TensorId(first.index + r);
  }
  for (TensorId t : live.outputs()) out.add_output(to[t.index]);
  return out;
}

}  // namespace random_programs

namespace {

// At least one operator that is not an input, and something to compute.
bool interesting(const Graph& g) {
  return !g.inputs().empty() && g.ops().size() >= g.inputs().size() + 2;
}

}  // namespace

Graph random_program(uint64_t seed, const RandomProgramOptions& options) {
  for (uint64_t i = 0;; i++) {
    Graph g = random_programs::Generator(mix64(seed + i * 0x9e3779b97f4a7c15ull), options).run();
    if (!interesting(g)) continue;
    validate(g);
    return g;
  }
}

}  // namespace tessera
