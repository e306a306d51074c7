#include "verify/integers.h"

#include <algorithm>

#include "base/check.h"
#include "base/rng.h"
#include "eval/eval.h"
#include "verify/inputs.h"

namespace tessera {
namespace {

bool is_ring_operator(const Graph& g, const Op& op) {
  switch (op.kind) {
  case OpKind::Input:
  case OpKind::Const:
  case OpKind::Iota:
  case OpKind::Neg:
  case OpKind::Sqr:
  case OpKind::Pow:
  case OpKind::Add:
  case OpKind::Sub:
  case OpKind::Mul:
  case OpKind::Sum:
  case OpKind::Cumsum:
  case OpKind::Matmul:
  case OpKind::ConcatMatmul:
  case OpKind::Conv:
  case OpKind::ConvTranspose:
  case OpKind::PoolSum:
  case OpKind::Transpose:
  case OpKind::Reshape:
  case OpKind::Broadcast:
  case OpKind::Unsqueeze:
  case OpKind::Squeeze:
  case OpKind::Repeat:
  case OpKind::Concat:
  case OpKind::Stack:
  case OpKind::Slice:
  case OpKind::Pad:
  case OpKind::Triu:
  case OpKind::Tril:
  case OpKind::Kernel:
  case OpKind::Thread:
  case OpKind::Iter:
  case OpKind::Save: return true;
  case OpKind::Accum: {
    const AccumKind kind = g.attrs<AccumAttrs>(op).kind;
    return kind == AccumKind::Sum || kind == AccumKind::Concat;
  }
  case OpKind::Abs:
  case OpKind::Sign:
  case OpKind::Sqrt:
  case OpKind::Rsqrt:
  case OpKind::Exp:
  case OpKind::Log:
  case OpKind::Sin:
  case OpKind::Cos:
  case OpKind::Erf:
  case OpKind::Tanh:
  case OpKind::Sigmoid:
  case OpKind::Silu:
  case OpKind::Relu:
  case OpKind::Gelu:
  case OpKind::GeluTanh:
  case OpKind::Floor:
  case OpKind::Round:
  case OpKind::Log1p:
  case OpKind::Expm1:
  case OpKind::Power:
  case OpKind::Mod:
  case OpKind::Atan2:
  case OpKind::Not:
  case OpKind::Cast:
  case OpKind::Div:
  case OpKind::Max:
  case OpKind::Min:
  case OpKind::And:
  case OpKind::Or:
  case OpKind::Eq:
  case OpKind::Ne:
  case OpKind::Lt:
  case OpKind::Le:
  case OpKind::Gt:
  case OpKind::Ge:
  case OpKind::Where:
  case OpKind::Mean:
  case OpKind::ReduceMax:
  case OpKind::ReduceMin:
  case OpKind::PoolMax:
  case OpKind::Gather:
  case OpKind::Opaque:
  case OpKind::AccumRescale: return false;
  }
  unreachable("OpKind");
}

bool all_ring(const Graph& g) {
  return std::all_of(g.ops().begin(), g.ops().end(),
                     [&](const Op& op) { return is_ring_operator(g, op); }) &&
         std::all_of(g.bodies().begin(), g.bodies().end(), all_ring) &&
         std::all_of(g.tensors().begin(), g.tensors().end(),
                     [](const Tensor& t) { return t.type.dtype != DType::Bool; });
}

Graph lift(const Graph& g) {
  Graph out =
      g.level() == Level::Block ? Graph::block(g.grid(), g.loops()) : Graph(g.name(), g.level());
  auto real = [](Type t) {
    t.dtype = DType::F64;
    return t;
  };
  for (const Op& op : g.ops()) {  // ids stay the same
    if (op.kind == OpKind::Input) {
      out.add_input(real(g.type(op.result())), g.tensor(op.result()).name);
      continue;
    }
    if (op.body.valid()) {
      out.add_graph_op(op.kind, op.inputs, lift(g.body(op)));
      continue;
    }
    Attrs attrs = op.attrs;
    if (auto* a = std::get_if<ConstAttrs>(&attrs)) a->type = real(a->type);
    if (auto* a = std::get_if<IotaAttrs>(&attrs)) a->type = real(a->type);
    if (auto* a = std::get_if<SaveAttrs>(&attrs)) a->type = real(a->type);
    out.add_op(op.kind, op.inputs, attrs);
  }
  out.set_outputs(g.outputs());
  return out;
}

// Families alternate: uniform over the whole range, small, and edges.
IntegerTest run(const Graph& spec, const Graph& candidate, uint64_t seed) {
  IntegerTest result;
  const char* families[] = {"normal", "ties", "zeros", "large"};
  const std::vector<IntRange> ranges = integer_ranges(
      spec, candidate, seed % 4 == 1 ? IntRange{-3, 3} : IntRange{INT64_MIN, INT64_MAX});
  const std::vector<NDArray> inputs = make_inputs(spec, families[seed % 4], seed, ranges);
  const std::vector<NDArray> s = eval(spec, inputs), c = eval(candidate, inputs);
  FieldDraw d;
  d.field = "exact";
  d.seed = seed;
  for (size_t k = 0; k < s.size(); k++) {
    d.elements += int64_t(s[k].ints.size());
    for (size_t i = 0; i < s[k].ints.size() && !result.counterexample; i++) {
      if (s[k].ints[i] == c[k].ints[i]) continue;
      Counterexample x;
      x.kind = Difference::Value;
      x.what = "the programs compute different integers";
      x.inputs = concrete(spec, inputs);
      x.output = int(k);
      x.position = position_of(s[k].shape, int64_t(i));
      x.spec = double(s[k].ints[i]);
      x.candidate = double(c[k].ints[i]);
      result.counterexample = std::move(x);
    }
  }
  result.draws.push_back(d);
  return result;
}

}  // namespace

bool is_integer_program(const Graph& g) {
  return std::none_of(g.tensors().begin(), g.tensors().end(),
                      [](const Tensor& t) { return is_float(t.type.dtype); }) &&
         std::all_of(g.bodies().begin(), g.bodies().end(), is_integer_program);
}

std::optional<Graph> lifted_to_field(const Graph& g) {
  if (!all_ring(g)) return std::nullopt;
  return lift(g);
}

IntegerTest test_integers(const Graph& spec, const Graph& candidate, uint64_t seed, int draws,
                          const VerifyOptions& options) {
  IntegerTest all;
  for (int i = 0; i < draws; i++) {
    if (options.cancel != nullptr && options.cancel->load()) {
      all.cancelled = true;
      return all;
    }
    const uint64_t s = (Rng(seed).split(uint64_t(i))() & ~uint64_t(3)) | uint64_t(i % 4);
    IntegerTest one = run(spec, candidate, s);
    all.draws.push_back(one.draws[0]);
    if (one.counterexample) {
      all.counterexample = std::move(one.counterexample);
      return all;
    }
  }
  return all;
}

IntegerTest replay_integers(const Graph& spec, const Graph& candidate, const FieldDraw& draw) {
  return run(spec, candidate, draw.seed);
}

}  // namespace tessera
