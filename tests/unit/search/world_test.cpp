#include "search/synth/world.h"

#include <gtest/gtest.h>

#include <cstring>
#include <deque>

#include "eval/eval.h"
#include "ir/text.h"
#include "search/synth/discrete_log.h"
#include "search/synth/inputs.h"
#include "search/synth/spec.h"
#include "search/synth/trials.h"

namespace tessera::synth {
namespace {

// Programs whose extents are the sizes that the first draw gives their dimensions, in order of
// appearance: 3, 2, 4, 5, 3.
const char* const kPrograms[] = {
    R"(graph g {
  A = input : f64[3,2]
  B = input : f64[2,4]
  v = input : f64[2]
  c = matmul A, B
  d = add A, v
  e = mul d, d
  f = sum e {axes=[1]}
  m = mean c {axes=[0]}
  n = mean c {axes=[0,1]}
  r = div c, m
  s = sub r, n
  return s, f, e
})",
    R"(graph g {
  A = input : f64[3,2]
  T = transpose A {perm=[1,0]}
  P = matmul A, T
  q = reshape P {shape=[9]}
  d = slice q {starts=[0], stops=[9], steps=[4]}
  u = triu P {k=0}
  l = tril P {k=-1}
  w = add u, l
  a = unsqueeze A {axes=[0,3]}
  b = squeeze a {axes=[0]}
  return d, w, b, u
})",
    R"(graph g {
  A = input : f64[3,2]
  B = input : f64[3,2]
  x = exp A
  y = sqr B
  z = sqrt y
  s = add x, z
  p = pow s {exponent=-3}
  h = pow y {exponent=3/2}
  t = sub p, h
  n = neg t
  return n, x
})",
    R"(graph g {
  A = input : f64[3,2,4]
  B = input : f64[4,4]
  C = matmul A, B
  s = sum C {axes=[1]}
  b = broadcast s {shape=[3,3,4]}
  return C, s, b
})",
};

FieldArray first_draw(const World& world, const Sample& s) {
  FieldArray a;
  a.dtype = s.dims.dtype;
  a.field = FieldSize::Bits31;
  for (int i = 0; i < s.dims.rank; ++i)
    a.shape.push_back(world.dims().sizes[s.dims.axis[size_t(i)]][0]);
  const size_t bytes = size_t(a.size()) * sizeof(uint32_t);
  a.components[0] = Buffer(bytes);
  std::memcpy(a.components[0].as<uint32_t>(), s.p, bytes);
  a.components[1] = Buffer(bytes);
  std::memset(a.components[1].as<uint32_t>(), 0, bytes);
  if (s.q) std::memcpy(a.components[1].as<uint32_t>(), s.q, bytes);
  return a;
}

NDArray first_reals(const World& world, const Sample& s) {
  std::vector<int64_t> shape;
  for (int i = 0; i < s.dims.rank; ++i)
    shape.push_back(world.dims().sizes[s.dims.axis[size_t(i)]][0]);
  NDArray a;
  a.dtype = DType::F64;
  a.shape = shape;
  a.reals.assign(s.x, s.x + world.dims().count(s.dims, 0));
  return a;
}

TEST(SynthWorld, AgreesWithTheInterpreterInTheFieldAndOverTheReals) {
  for (const char* text : kPrograms) {
    const Graph g = tessera::parse(text);
    const std::optional<Spec> spec = parse(g);
    ASSERT_TRUE(spec) << text;
    World world(spec->table, spec->with_q, 3);
    for (const Rational& c : spec->constants) world.constant(c);
    SampleStore store;
    const auto values = evaluate(world, *spec, store);
    ASSERT_TRUE(values) << text;
    std::vector<FieldArray> in;
    std::vector<NDArray> reals;
    for (size_t i = 0; i < g.inputs().size(); ++i) {
      in.push_back(first_draw(world, (*values)[i]));
      ASSERT_EQ(in.back().shape, extents(g.type(g.inputs()[i]).shape)) << text;
      reals.push_back(first_reals(world, (*values)[i]));
    }
    const FieldResult expected = eval_field(g, world.model(), in);
    ASSERT_TRUE(expected.ok()) << expected.unsupported;
    const std::vector<NDArray> real = eval(g, reals);
    for (size_t o = 0; o < g.outputs().size(); ++o) {
      const Sample& s = (*values)[spec->outputs[o]];
      const FieldArray& e = expected.outputs[o];
      ASSERT_EQ(e.size(), world.dims().count(s.dims, 0)) << text;
      for (int64_t i = 0; i < e.size(); ++i) {
        EXPECT_EQ(e.flag(i), FieldArray::Defined);
        EXPECT_EQ(uint32_t(e.word(0, i)), s.p[i]) << text << " output " << o << " element " << i;
        EXPECT_NEAR(real[o].reals[size_t(i)], s.x[i], 1e-9 * std::abs(s.x[i]) + 1e-12);
      }
    }
  }
}

TEST(SynthWorld, LogarithmsInvertPowers) {
  const FieldModel model(FieldSize::Bits31, 0x73796e7468);
  const auto& chain = model.tables().get<uint32_t>();
  for (const uint32_t e : {0u, 1u, 77u, 1u << 20, 123456789u, chain.modulus[1].p - 1}) {
    const uint32_t x = chain.exp[0].power(chain.modulus[0], e);
    EXPECT_EQ(discrete_log(chain, x), e);
    EXPECT_EQ(discrete_log(chain, chain.modulus[0].neg(x)), std::nullopt) << "−1 is no square";
  }
  EXPECT_EQ(discrete_log(chain, 0), std::nullopt);
}

// A world of one matrix dimension pair, and helpers to compute in it.
struct Small {
  Small() : world(table(), true, 5) {}
  static DimTable table() {
    DimTable t;
    t.extents = {1, 30, 20};
    t.sizes = {{1, 1}, {3, 2}, {2, 3}};
    return t;
  }
  Sample input(std::initializer_list<DimId> axes, uint64_t key, bool positive = false) {
    Dims d;
    for (DimId a : axes) d.push(a);
    kept.push_back(world.draw(d, key, positive));
    return world.sample(d, kept.back());
  }
  Sample constant(const Rational& value) {
    Node n;
    n.form = Form::Const;
    n.attr = world.constant(value);
    return store.keep(*world.eval(n, nullptr));
  }
  std::optional<Sample> pointwise(OpKind kind, const Sample& a, const Sample* b = nullptr) {
    Node n;
    n.form = Form::Pointwise;
    n.kind = kind;
    n.arity = b ? 2 : 1;
    const Sample* args[] = {&a, b};
    const auto r = world.eval(n, args);
    return r ? std::optional(store.keep(*r)) : r;
  }
  World world;
  SampleStore store;
  std::deque<Numbers> kept;
};

TEST(SynthWorld, LawsOfExpAndLogHold) {
  Small s;
  const Sample a = s.input({1, 2}, 1, true), b = s.input({1, 2}, 2, true);
  const Sample la = *s.pointwise(OpKind::Log, a), lb = *s.pointwise(OpKind::Log, b);
  EXPECT_EQ(s.pointwise(OpKind::Exp, la)->hash, a.hash);
  const Sample difference = *s.pointwise(OpKind::Sub, la, &lb);
  EXPECT_EQ(s.pointwise(OpKind::Exp, difference)->hash, s.pointwise(OpKind::Div, a, &b)->hash);
  EXPECT_NE(s.pointwise(OpKind::Exp, difference)->hash, s.pointwise(OpKind::Mul, a, &b)->hash);
  EXPECT_FALSE(s.pointwise(OpKind::Log, *s.pointwise(OpKind::Neg, a))) << "of negative numbers";
}

TEST(SynthWorld, ComparisonsAreOfRealNumbers) {
  Small s;
  const Sample a = s.input({1, 2}, 1), b = s.input({1, 2}, 2);
  const Sample most = *s.pointwise(OpKind::Max, a, &b), least = *s.pointwise(OpKind::Min, a, &b);
  EXPECT_EQ(most.hash, s.pointwise(OpKind::Max, b, &a)->hash);
  EXPECT_EQ(s.pointwise(OpKind::Add, most, &least)->hash, s.pointwise(OpKind::Add, a, &b)->hash);
  const Sample size = *s.pointwise(OpKind::Abs, a);
  EXPECT_EQ(s.pointwise(OpKind::Mul, size, &size)->hash, s.pointwise(OpKind::Sqr, a)->hash);
  EXPECT_NE(size.hash, a.hash);
}

TEST(SynthWorld, RatiosNumbersAndShapesAreSeen) {
  Small s;
  const Sample a = s.input({1, 2}, 1), row = s.input({2}, 2);
  const Sample third = s.constant(Rational::ratio(-2, 3));
  const Sample scaled = *s.pointwise(OpKind::Mul, a, &third);
  EXPECT_EQ(s.world.ratio(scaled, a), Rational::ratio(-2, 3));
  EXPECT_EQ(s.world.ratio(a, *s.pointwise(OpKind::Sqr, a)), std::nullopt);
  EXPECT_EQ(s.world.number(*s.pointwise(OpKind::Div, scaled, &scaled)), Rational(1));
  EXPECT_EQ(s.world.number(a), std::nullopt);
  // (a + row) − a varies along the second axis only.
  const Sample sum = *s.pointwise(OpKind::Add, a, &row);
  const Sample back = *s.pointwise(OpKind::Sub, sum, &a);
  EXPECT_EQ(back.dims.rank, 2);
  EXPECT_EQ(s.world.shrunk(back).hash, row.hash);
  EXPECT_EQ(s.world.shrunk(a).hash, a.hash);
}

TEST(SynthWorld, DivisionByZeroHasNoValue) {
  Small s;
  const Sample a = s.input({1, 2}, 1);
  const Sample zero = *s.pointwise(OpKind::Sub, a, &a);
  EXPECT_FALSE(s.pointwise(OpKind::Div, a, &zero));
}

// A program's e-graph, and where trials find a way wrong that was added by hand.
ValueId found_wrong(const char* text, ValueId (*add)(EGraph&, const std::vector<ValueId>&)) {
  const Graph g = tessera::parse(text);
  const std::optional<Spec> spec = parse(g);
  World world(spec->table, spec->with_q, 3);
  for (const Rational& c : spec->constants) world.constant(c);
  SampleStore store;
  const auto values = evaluate(world, *spec, store);
  const Rates rates;
  EGraph graph(world, rates);
  std::vector<ValueId> id;
  for (ValueId v = 0; v < spec->nodes.size(); ++v) {
    Node n = spec->nodes[v];
    for (int i = 0; i < n.arity; ++i) n.arg[size_t(i)] = id[n.arg[size_t(i)]];
    id.push_back(graph.add(n, (*values)[v]));
  }
  const Trials trials(*spec, world, id, 5);
  std::vector<ValueId> outputs;
  for (ValueId v : spec->outputs) outputs.push_back(id[v]);
  Choice choice(graph.size(), 0);
  EXPECT_EQ(trials.wrong(graph, choice, graph.order(choice, outputs)), kNone) << text;
  const ValueId at = add(graph, id);
  choice.resize(graph.size(), 0);
  choice[at] = uint32_t(graph[at].nodes.size() - 1);
  const ValueId wrong = trials.wrong(graph, choice, graph.order(choice, {at}));
  return wrong == kNone ? kNone : wrong == at ? 0 : 1;
}

TEST(SynthTrials, OtherBranchesAndZerosTellProgramsApart) {
  constexpr char kBranches[] =
      "graph g {\n  x = input : f32[30]\n  r = relu x\n  a = abs x\n  return r, a\n}";
  EXPECT_EQ(found_wrong(kBranches,
                        [](EGraph& g, const std::vector<ValueId>& id) {
                          Node abs;
                          abs.form = Form::Pointwise;
                          abs.kind = OpKind::Abs;
                          abs.arity = 1;
                          abs.arg[0] = id[0];
                          EXPECT_TRUE(g.add_way(id[1], abs));  // relu x = |x|
                          return id[1];
                        }),
            0u);
  constexpr char kZeros[] =
      "graph g {\n  x = input : f32[30]\n  y = input : f32[30]\n  d = add x, y\n  a = mul x, y\n"
      "  b = mul y, y\n  p = add a, b\n  return d, p\n}";
  EXPECT_EQ(found_wrong(kZeros,
                        [](EGraph& g, const std::vector<ValueId>& id) {
                          Node quotient = g[id[5]].nodes[0];
                          quotient.kind = OpKind::Div;
                          quotient.arg = {id[5], id[1], kNone};
                          EXPECT_TRUE(g.add_way(id[2], quotient));  // x + y = (x + y) y / y
                          return id[2];
                        }),
            0u);
}

TEST(SynthTrials, RightWaysPass) {
  constexpr char kSum[] =
      "graph g {\n  x = input : f32[30]\n  y = input : f32[30]\n  s = add x, y\n  return s\n}";
  EXPECT_EQ(found_wrong(kSum,
                        [](EGraph& g, const std::vector<ValueId>& id) {
                          Node add = g[id[2]].nodes[0];
                          std::swap(add.arg[0], add.arg[1]);
                          EXPECT_TRUE(g.add_way(id[2], add));
                          return id[2];
                        }),
            kNone);
}

}  // namespace
}  // namespace tessera::synth
