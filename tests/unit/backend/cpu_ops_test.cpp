// Every operator at kernel level, compiled for every instruction set this machine has, against the
// interpreter, over odd shapes and all dtypes.
#include <gtest/gtest.h>

#include <tuple>

#include "backend/measure.h"
#include "backend/testing.h"
#include "base/error.h"
#include "ir/text.h"
#include "ir/window.h"
#include "verify/inputs.h"

namespace tessera {
namespace {

std::vector<DType> dtypes_of(OpKind kind) {
  std::vector<DType> result;
  for (int i = 0; i < kNumDTypes; ++i) {
    const DType dtype = static_cast<DType>(i);
    // Inference says which dtypes an operator takes.
    Graph g;
    try {
      const OpInfo& op = info(kind);
      std::vector<TensorId> inputs;
      const bool condition = kind == OpKind::Where;
      for (int k = 0; k < op.min_arity; ++k) {
        inputs.push_back(g.add_input({condition && k == 0 ? DType::Bool : dtype, {2, 2}}));
      }
      Attrs attrs = op.default_attrs;
      if (auto* pow = std::get_if<PowAttrs>(&attrs)) pow->exponent = 2;
      if (auto* reduce = std::get_if<ReduceAttrs>(&attrs)) reduce->axes = {0};
      g.add(kind, inputs, attrs);
      result.push_back(dtype);
    } catch (const std::exception&) {
    }
  }
  return result;
}

// One graph with many outputs: the operator on each list of operand shapes in each dtype.
class OpCase {
 public:
  void op(OpKind kind, DType dtype, const std::vector<Shape>& shapes, Attrs attrs = NoAttrs{}) {
    std::vector<TensorId> inputs;
    for (size_t i = 0; i < shapes.size(); ++i) {
      DType d = dtype;
      if (kind == OpKind::Where && i == 0) d = DType::Bool;
      if (kind == OpKind::Gather && i == 1) d = DType::I64;
      inputs.push_back(graph_.add_input({d, shapes[i]}));
    }
    graph_.add_output(graph_.add(kind, inputs, attrs));
  }
  void check(bool all_isas = true) {
    if (!all_isas) return expect_right(graph_, best_isa());
    for (CpuIsa isa : runnable_isas()) expect_right(graph_, isa);
  }
  Graph& graph() { return graph_; }

 private:
  Graph graph_;
};

TEST(CpuOps, Pointwise) {
  for (OpKind kind : all_op_kinds()) {
    if (!has(kind, algebra::Pointwise) || kind == OpKind::Cast || kind == OpKind::Pow) continue;
    SCOPED_TRACE(name(kind));
    const std::vector<DType> dtypes = dtypes_of(kind);
    ASSERT_FALSE(dtypes.empty());
    OpCase c, floats;  // all dtypes on the widest instruction set, f32 and f64 on all
    for (DType dtype : dtypes) {
      const int arity = info(kind).min_arity;
      c.op(kind, dtype, std::vector<Shape>(static_cast<size_t>(arity), {3, 67}));
      if (dtype == DType::F32 || dtype == DType::F64)
        floats.op(kind, dtype, std::vector<Shape>(static_cast<size_t>(arity), {71}));
      if (arity == 1) continue;
      std::vector<Shape> shapes = {{5, 1, 33}, {7, 1}, {1}};
      shapes.resize(static_cast<size_t>(arity));
      c.op(kind, dtype, shapes);
    }
    c.check(false);
    if (!floats.graph().outputs().empty()) floats.check();
  }
}

TEST(CpuOps, LargeTensorsAreCutIntoUnits) {
  OpCase c;
  c.op(OpKind::Exp, DType::F32, {{100003}});
  c.op(OpKind::Add, DType::F32, {{3, 20011}, {20011}});
  c.op(OpKind::Mul, DType::F64, {{301, 1, 103}, {301, 5, 1}});
  c.op(OpKind::Transpose, DType::F32, {{311, 97}}, PermAttrs{{1, 0}});
  c.op(OpKind::Transpose, DType::I32, {{3, 64, 24}}, PermAttrs{{0, 2, 1}});
  c.op(OpKind::Transpose, DType::F32, {{2, 9, 8, 1111}}, PermAttrs{{0, 1, 3, 2}});
  c.check();
}

TEST(CpuOps, Powers) {
  OpCase c;
  for (Rational e :
       {Rational(0), Rational(1), Rational(2), Rational(3), Rational(7), Rational(-1), Rational(-2),
        Rational(-3), Rational(12), Rational(-9), Rational::ratio(1, 2), Rational::ratio(-1, 2),
        Rational::ratio(1, 3), Rational::ratio(5, 2), Rational::ratio(-7, 3)}) {
    for (DType dtype : {DType::F32, DType::F64, DType::BF16})
      c.op(OpKind::Pow, dtype, {{41}}, PowAttrs{e});
    if (e.is_integer() && !e.negative()) {
      for (DType dtype : {DType::I8, DType::U8, DType::I32, DType::I64})
        c.op(OpKind::Pow, dtype, {{41}}, PowAttrs{e});
    }
  }
  c.check();
}

TEST(CpuOps, CastsBetweenAllDtypes) {
  OpCase c;
  for (int from = 0; from < kNumDTypes; ++from) {
    for (int to = 0; to < kNumDTypes; ++to) {
      c.op(OpKind::Cast, static_cast<DType>(from), {{77}}, CastAttrs{static_cast<DType>(to)});
    }
  }
  c.check();
}

TEST(CpuOps, Reductions) {
  for (OpKind kind : {OpKind::Sum, OpKind::Mean, OpKind::ReduceMax, OpKind::ReduceMin}) {
    SCOPED_TRACE(name(kind));
    OpCase c;
    for (DType dtype : dtypes_of(kind)) {
      if (dtype == DType::U8 || dtype == DType::I64) continue;  // as i8 and i32
      c.op(kind, dtype, {{5, 67}}, ReduceAttrs{{1}, true});
      c.op(kind, dtype, {{37, 19}}, ReduceAttrs{{0}, false});
      c.op(kind, dtype, {{3, 5, 7, 2}}, ReduceAttrs{{1, 3}, true});
      c.op(kind, dtype, {{3, 5, 7}}, ReduceAttrs{{0, 1, 2}, false});
    }
    c.op(kind, DType::F32, {{700, 129}}, ReduceAttrs{{1}, false});
    c.op(kind, DType::F32, {{129, 1300}}, ReduceAttrs{{0}, false});
    c.op(kind, DType::F32, {{3, 70001}}, ReduceAttrs{{1}, false});
    c.op(kind, DType::F32, {{50001, 7}}, ReduceAttrs{{0}, false});
    c.op(kind, DType::F32, {{1, 9, 1}}, ReduceAttrs{{0, 2}, false});
    c.check();
  }
}

TEST(CpuOps, Cumsum) {
  OpCase c;
  for (DType dtype : dtypes_of(OpKind::Cumsum)) {
    for (int axis : {0, 1, 2}) c.op(OpKind::Cumsum, dtype, {{5, 7, 11}}, AxisAttrs{axis});
  }
  c.op(OpKind::Cumsum, DType::F32, {{3, 9001}}, AxisAttrs{1});
  c.op(OpKind::Cumsum, DType::F32, {{31, 1001}}, AxisAttrs{0});
  c.check();
}

TEST(CpuOps, ProductsOfManyShapes) {
  for (int64_t m : {1, 2, 5, 8, 17}) {
    OpCase c;
    for (int64_t n : {1, 3, 33, 100}) {
      for (int64_t k : {1, 130}) c.op(OpKind::Matmul, DType::F32, {{m, k}, {k, n}});
    }
    c.check();
  }
  OpCase c;
  for (DType dtype : dtypes_of(OpKind::Matmul)) {
    c.op(OpKind::Matmul, dtype, {{13, 21}, {21, 39}});
    c.op(OpKind::Matmul, dtype, {{3, 6, 5}, {3, 5, 35}});
    c.op(OpKind::Matmul, dtype, {{2, 3, 4, 5}, {5, 17}});
    c.op(OpKind::Matmul, dtype, {{4, 5}, {2, 3, 5, 9}});
    c.op(OpKind::Matmul, dtype, {{3, 1, 4, 5}, {1, 2, 5, 40}});
  }
  c.check();
  OpCase large;
  large.op(OpKind::Matmul, DType::F32, {{300, 515}, {515, 301}});
  large.op(OpKind::Matmul, DType::F32, {{3, 60001}, {60001, 20}});  // long sums stay accurate
  large.op(OpKind::Matmul, DType::F64, {{16, 300}, {300, 1000}});
  large.op(OpKind::Matmul, DType::BF16, {{16, 300}, {300, 500}});
  large.check();
}

// Blocks of rows and columns that divide nothing: right operands that lie far apart are packed in
// parts, last strips are copied, last tiles are cut by halves.
TEST(CpuOps, ProductsWhoseBlocksAreUnequal) {
  for (const auto& [m, k, n] : {std::tuple<int64_t, int64_t, int64_t>{1093, 70, 265},
                                {997, 131, 324},
                                {449, 300, 709},
                                {193, 97, 1003},
                                {1000, 64, 70},
                                {2003, 49, 61}}) {
    OpCase c;
    c.op(OpKind::Matmul, DType::F32, {{m, k}, {k, n}});
    c.check(false);
  }
  OpCase wide;
  wide.op(OpKind::Matmul, DType::F64, {{389, 120}, {120, 157}});
  wide.op(OpKind::Matmul, DType::BF16, {{389, 121}, {121, 157}});
  wide.op(OpKind::Matmul, DType::F32, {{2, 389, 60}, {2, 60, 157}});
  wide.check(false);
}

TEST(CpuOps, ConcatMatmul) {
  OpCase c;
  for (DType dtype : {DType::F32, DType::F64, DType::F16, DType::I32}) {
    c.op(OpKind::ConcatMatmul, dtype, {{6, 8}, {6, 5}, {8, 40}, {5, 40}});
    c.op(OpKind::ConcatMatmul, dtype, {{2, 6, 8}, {2, 6, 5}, {2, 8, 3}, {2, 5, 3}});
  }
  c.check();
}

TEST(CpuOps, DataMovement) {
  for (int i = 0; i < kNumDTypes; ++i) {
    const DType d = static_cast<DType>(i);
    OpCase c;
    c.op(OpKind::Transpose, d, {{3, 5, 7}}, PermAttrs{{2, 0, 1}});
    c.op(OpKind::Reshape, d, {{6, 10}}, ShapeAttrs{{4, 15}});
    c.op(OpKind::Broadcast, d, {{5, 1}}, ShapeAttrs{{3, 5, 9}});
    c.op(OpKind::Unsqueeze, d, {{5, 6}}, AxesAttrs{{0, 2}});
    c.op(OpKind::Squeeze, d, {{1, 5, 1}}, AxesAttrs{{0, 2}});
    c.op(OpKind::Repeat, d, {{3, 1, 5}}, RepeatAttrs{{2, 4, 3}});
    c.op(OpKind::Concat, d, {{3, 5}, {3, 1}, {3, 17}}, AxisAttrs{1});
    c.op(OpKind::Concat, d, {{3, 5}, {4, 5}}, AxisAttrs{0});
    c.op(OpKind::Stack, d, {{3, 5}, {3, 5}, {3, 5}}, AxisAttrs{1});
    c.op(OpKind::Slice, d, {{9, 20}}, SliceAttrs{{1, 3}, {8, 20}, {3, 2}});
    c.op(OpKind::Gather, d, {{4, 20}, {3, 2}}, AxisAttrs{1});
    c.op(OpKind::Gather, d, {{20, 4}, {7}}, AxisAttrs{0});
    c.op(OpKind::Pad, d, {{3, 20}}, PadAttrs{{1, 0}, {0, 5}, 1});
    c.op(OpKind::Triu, d, {{2, 7, 9}}, DiagonalAttrs{1});
    c.op(OpKind::Tril, d, {{9, 7}}, DiagonalAttrs{-2});
    if (d != DType::Bool)
      c.graph().add_output(c.graph().add(OpKind::Iota, {}, IotaAttrs{1, {d, {3, 9}}}));
    c.graph().add_output(c.graph().add_const(1, {d, {2, 5}}));
    c.check(d == DType::F32);
  }
}

// Runs of at least some elements are copied, by rows or by stretches of long rows.
TEST(CpuOps, RunsAreConcatenatedByCopying) {
  const auto copied = [](DType d, std::vector<Shape> shapes, int axis) {
    OpCase c;
    c.op(OpKind::Concat, d, std::move(shapes), AxisAttrs{axis});
    c.check(d == DType::F32);
    return emit_source(c.graph(), best_isa()).find("(i - ") != std::string::npos;
  };
  EXPECT_TRUE(copied(DType::F32, {{3, 5, 40}, {3, 5, 1}, {3, 5, 17}}, 2));
  EXPECT_TRUE(copied(DType::F32, {{3, 40, 7}, {3, 1, 7}, {3, 2, 7}}, 1));
  EXPECT_TRUE(copied(DType::F32, {{70, 300}, {70, 213}}, 1));
  EXPECT_TRUE(copied(DType::F32, {{2, 30000}, {2, 9001}, {2, 3}}, 1));
  EXPECT_TRUE(copied(DType::BF16, {{40000}, {1000}, {7}}, 0));
  EXPECT_TRUE(copied(DType::Bool, {{3, 9}, {3, 40}}, 1));
  EXPECT_FALSE(copied(DType::F32, {{50, 5}, {50, 1}}, 1));
  EXPECT_FALSE(copied(DType::F32, {{2, 3, 1}, {2, 3, 2}}, 2));
}

// Runs of axes that change places are turned by tiles: pixels and channels, both ways, alone and
// behind a batch, in pieces and with rests. Others, short ones and bytes are not.
TEST(CpuOps, RunsOfAxesAreTurnedByTiles) {
  const auto turned = [](DType d, const Shape& shape, std::vector<int> perm) {
    OpCase c;
    c.op(OpKind::Transpose, d, {shape}, PermAttrs{std::move(perm)});
    c.check(d == DType::F32);
    return emit_source(c.graph(), best_isa()).find("t_transpose<") != std::string::npos;
  };
  EXPECT_TRUE(turned(DType::F32, {2, 19, 9, 31}, {0, 2, 3, 1}));
  EXPECT_TRUE(turned(DType::F32, {2, 9, 31, 19}, {0, 3, 1, 2}));
  EXPECT_TRUE(turned(DType::I32, {1, 11, 5, 7}, {0, 2, 3, 1}));
  EXPECT_TRUE(turned(DType::F32, {3, 4, 9000}, {2, 0, 1}));
  EXPECT_TRUE(turned(DType::F32, {9000, 3, 7}, {1, 2, 0}));
  EXPECT_TRUE(turned(DType::F32, {2, 3, 10, 20}, {0, 1, 3, 2}));
  EXPECT_FALSE(turned(DType::F32, {2, 3, 9, 31}, {0, 2, 3, 1}));
  EXPECT_FALSE(turned(DType::F32, {9, 10, 11}, {2, 1, 0}));
  EXPECT_FALSE(turned(DType::F32, {9, 10, 11}, {1, 0, 2}));
  EXPECT_TRUE(turned(DType::F64, {2, 19, 9, 31}, {0, 2, 3, 1}));
  EXPECT_TRUE(turned(DType::BF16, {2, 19, 9, 31}, {0, 2, 3, 1}));
  EXPECT_TRUE(turned(DType::F16, {3, 4, 900}, {2, 0, 1}));
  EXPECT_TRUE(turned(DType::I64, {11, 70}, {1, 0}));
  EXPECT_FALSE(turned(DType::Bool, {2, 19, 9, 31}, {0, 2, 3, 1}));
}

// Every combination meets another path: whole tiles and rests, planes read in place and staged,
// residues of strides, groups of one channel, lines shorter than a vector.
TEST(CpuOps, Convolutions) {
  const std::vector<std::tuple<Shape, Shape, ConvAttrs>> convolutions = {
      {{1, 3, 16, 16}, {8, 3, 1, 1}, {}},
      {{2, 5, 9, 11}, {10, 5, 3, 3}, {{}, {}, {1, 1}, {1, 1}}},
      {{1, 4, 9, 14}, {6, 2, 3, 2}, {{2, 3}, {1, 2}, {1, 0}, {2, 3}, 2}},
      {{1, 6, 20}, {6, 1, 5}, {{1}, {3}, {6}, {6}, 6}},
      {{3, 2, 7}, {17, 2, 7}, {}},
      {{1, 2, 5, 6, 7}, {3, 2, 3, 2, 3}, {{2, 1, 2}, {1, 2, 1}, {1, 1, 0}, {0, 2, 1}}},
      {{1, 33, 40, 40}, {9, 33, 3, 3}, {{2, 2}, {}, {1, 1}, {1, 1}}},
  };
  const std::vector<std::tuple<Shape, Shape, ConvAttrs>> transposed = {
      {{1, 3, 6, 7}, {3, 4, 3, 3}, {{2, 2}, {}, {1, 1}, {0, 1}}},
      {{2, 4, 5}, {4, 3, 4}, {{3}, {2}, {0}, {-2}, 2}},
      {{1, 2, 3, 4, 3}, {2, 9, 2, 3, 2}, {{1, 2, 2}, {2, 1, 1}, {3, 0, 1}, {0, 0, 0}}},
  };
  for (DType d : {DType::F32, DType::F64, DType::BF16, DType::F16, DType::I32, DType::I64,
                  DType::I8, DType::U8}) {
    SCOPED_TRACE(name(d));
    OpCase c;
    for (const auto& [x, w, a] : convolutions) c.op(OpKind::Conv, d, {x, w}, a);
    for (const auto& [x, w, a] : transposed) c.op(OpKind::ConvTranspose, d, {x, w}, a);
    c.check(d == DType::F32);
  }
}

TEST(CpuOps, Pooling) {
  for (DType d :
       {DType::F32, DType::F64, DType::BF16, DType::I32, DType::I64, DType::I8, DType::U8}) {
    SCOPED_TRACE(name(d));
    OpCase c;
    for (OpKind kind : {OpKind::PoolSum, OpKind::PoolMax}) {
      c.op(kind, d, {{2, 3, 9, 20}}, WindowAttrs{{3, 3}, {2, 2}, {1, 1}, {1, 1}, {1, 1}});
      c.op(kind, d, {{4, 33}}, WindowAttrs{{4}, {1}, {5}, {3}, {9}});
      c.op(kind, d, {{1, 2, 5, 6, 7}}, WindowAttrs{{2, 3, 2}, {1, 2, 3}, {2, 1, 1}, {}, {0, 1, 0}});
      c.op(kind, d, {{3, 7, 7}}, WindowAttrs{{7, 7}, {}, {}, {}, {}});
    }
    c.check(d == DType::F32);
  }
}

TEST(CpuOps, EveryKernelOperatorIsCovered) {
  // Those above, and those that have no code of their own.
  for (OpKind kind : all_op_kinds()) {
    if (!allowed_at(kind, Level::Kernel)) continue;
    const bool known = has(kind, algebra::Pointwise) || has(kind, algebra::Movement) ||
                       kind == OpKind::Input || kind == OpKind::Const || kind == OpKind::Iota ||
                       kind == OpKind::Sum || kind == OpKind::Mean || kind == OpKind::ReduceMax ||
                       kind == OpKind::ReduceMin || kind == OpKind::Cumsum ||
                       kind == OpKind::Matmul || kind == OpKind::ConcatMatmul ||
                       is_windowed(kind) || kind == OpKind::Opaque || kind == OpKind::Kernel;
    EXPECT_TRUE(known) << name(kind);
  }
}

TEST(CpuOps, OutputsThatAreInputsOrRepeated) {
  OpCase c;
  const TensorId x = c.graph().add_input({DType::F32, {4, 5}});
  const TensorId y = c.graph().add(OpKind::Exp, {x});
  const TensorId z = c.graph().add(OpKind::Reshape, {y}, ShapeAttrs{{20}});
  for (TensorId t : {x, y, y, z}) c.graph().add_output(t);
  c.check();
}

TEST(CpuOps, OpaqueIsRefusedByName) {
  Graph g;
  const TensorId x = g.add_input({DType::F32, {4}});
  g.add_output(g.add(OpKind::Opaque, {x}, OpaqueAttrs{"onnx.Foo", "0", {{DType::F32, {4}}}}));
  try {
    emit_source(g, CpuIsa::Generic);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::Unsupported);
    EXPECT_NE(e.message().find("onnx.Foo"), std::string::npos);
  }
}

// The loops must really be vector code: scalar code takes some 2 ns per element, vectors 0.2 or
// less.
TEST(CpuOps, ElementwiseLoopsAreVectorised) {
  if (best_isa() == CpuIsa::Generic)
    GTEST_SKIP() << "this machine has no vectors that code is made for";
  Graph g;
  const int64_t n = 16384;
  g.add_output(g.add(OpKind::Exp, {g.add_input({DType::F32, {n}})}));
  KernelPool pool(1);
  ModuleOptions options;
  options.pool = &pool;
  const auto module = Module::compile(g, test_cache(), options);
  std::vector<float> x(static_cast<size_t>(n), 0.5f), y(static_cast<size_t>(n));
  const void* in[] = {x.data()};
  void* out[] = {y.data()};
  const std::vector<Timing> t = measure({{"exp", [&](int) { module->run(in, out); }}});
  EXPECT_LT(t[0].min_s / static_cast<double>(n), 0.8e-9);
}

// Where a difference cancels to nothing its root keeps half of the digits, and which half depends
// on the order of the sums.
TEST(CpuOps, RootsOfWhatCancels) {
  const Graph distances = parse(R"(graph g {
  X = input : f32[66,3]
  T = transpose X {perm=[1,0]} : f32[3,66]
  p = matmul X, T : f32[66,66]
  q = sqr X : f32[66,3]
  n = sum q {axes=[1], keepdims=true} : f32[66,1]
  m = transpose n {perm=[1,0]} : f32[1,66]
  a = add n, m : f32[66,66]
  b = add p, p : f32[66,66]
  c = sub a, b : f32[66,66]
  d = relu c : f32[66,66]
  r = sqrt d : f32[66,66]
  return r
}
)");
  const Graph deviation = parse(R"(graph g {
  X = input : f32[4097]
  m = mean X {axes=[0], keepdims=true} : f32[1]
  c = sub X, m : f32[4097]
  q = sqr c : f32[4097]
  v = mean q {axes=[0]} : f32[]
  r = sqrt v : f32[]
  return r
}
)");
  for (const Graph* g : {&distances, &deviation})
    for (CpuIsa isa : runnable_isas()) expect_right(*g, isa);
}

// The tester is tested: a program that differs must not pass.
// Values that are read twice by what is read twice: each is looked at once, not 2^40 times.
TEST(CpuOps, LongChainsOfSharedValues) {
  const auto chain = [](const std::string& shape, const std::string& step) {
    std::string text = "graph g {\n  x = input : f32[" + shape + "]\n  t0 = sqr x\n";
    for (int i = 0; i < 40; ++i)
      for (const char c : step + "\n")
        text += c == '@' ? std::to_string(i) : c == '#' ? std::to_string(i + 1) : std::string(1, c);
    return parse(text + "  return t40\n}\n");
  };
  for (const std::string& shape :
       {std::string("50,40"), std::string("60,1000"), std::string("400,600")}) {
    expect_right(chain(shape, "  b@ = lt x, t@\n  u@ = neg t@\n  t# = where b@, t@, u@"),
                 best_isa());
    expect_right(chain(shape, "  u@ = add t@, x\n  v@ = sqr t@\n  w@ = add v@, v@\n"
                              "  t# = div w@, v@"),
                 best_isa());
    expect_right(chain(shape, "  m@ = reduce_max t@ {axes=[1], keepdims=true}\n  u@ = sub t@, m@\n"
                              "  e@ = exp u@\n  t# = max e@, t@"),
                 best_isa());
  }
}

// Compilers would take it that x * x is not negative and that x + 2 is more than x.
TEST(CpuOps, IntegersWrapAround) {
  for (const char* type : {"i32", "i64"}) {
    const std::string of = std::string(" : ") + type;
    expect_right(parse("graph g {\n  x = input" + of + R"([40,33]
  c = const {value=2})" +
                       of + R"([]
  z = const {value=0})" +
                       of + R"([]
  a = add x, c
  b = min x, a
  d = sqr x
  e = max d, z
  f = mul x, c
  h = lt f, x
  n = neg x
  m = abs n
  k = min m, z
  r = relu x
  s = sum r {axes=[1]}
  t = min s, z
  return b, e, h, k, t
})"),
                 best_isa());
  }
}

TEST(CpuOps, CheckRefusesWrongCode) {
  Graph right, wrong;
  for (Graph* g : {&right, &wrong}) {
    const TensorId x = g->add_input({DType::F32, {33}});
    const TensorId y = g->add(OpKind::Sigmoid, {x});
    g->add_output(g == &right ? y
                              : g->add(OpKind::Mul, {y, g->add_const(Rational::ratio(10001, 10000),
                                                                     {DType::F32, {}})}));
  }
  const auto module = Module::compile(wrong, test_cache());
  CheckReport report;
  EXPECT_FALSE(check_compiled(
      right, [&](auto in, auto out) { module->run(in, out); }, {}, &report));
  EXPECT_FALSE(report.passed);
  EXPECT_GT(report.worst, 1);
}

// NaN is no index: what the program does with it cannot be compared, all else can.
TEST(CpuOps, ChecksWhereTheProgramIsDefined) {
  const Graph g = parse(R"(graph picks {
    x = input : f32[64]
    t = input : f32[4]
    zero = const {value=0} : f32[]
    three = const {value=3} : f32[]
    a = max x, zero
    b = min a, three
    i = cast b {dtype=i64}
    y = gather t, i {axis=0}
    return y
  })");
  const auto module = Module::compile(g, test_cache());
  CheckReport report;
  EXPECT_TRUE(check_compiled(
      g, [&](auto in, auto out) { module->run(in, out); }, {}, &report));
  EXPECT_GT(report.families, 1);
  EXPECT_LT(report.families, int(input_families().size()));
  const Graph never = parse(R"(graph never {
    t = input : f32[4]
    i = const {value=9} : i64[2]
    y = gather t, i {axis=0}
    return y
  })");
  EXPECT_THROW(check_compiled(never, [](auto, auto) {}), Error);
}

}  // namespace
}  // namespace tessera
