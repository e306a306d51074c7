// What a program leaves to its process: opaque operators, operators of PyTorch and products of
// oneDNN that patterns call, and the guards `layout` and `align`.
#include "backend/host_calls.h"

#include <gtest/gtest.h>

#include <unistd.h>

#include <cmath>
#include <cstring>

#include "backend/body_check.h"
#include "backend/cpu/onednn.h"
#include "backend/testing.h"
#include "base/error.h"
#include "counting.h"
#include "places.h"
#include "search/patterns/instantiate.h"
#include "search/patterns/patterns.h"

namespace tessera {
namespace {

// Twice the first operand, and its elements' number.
constexpr const char* kOpaque = R"(graph g {
  x = input : f32[4,5]
  h = exp x
  v, n = opaque h {function="test.Twice", payload="p1"} : f32[4,5], i64[1]
  u, m = opaque v {function="test.Twice", payload="p1"} : f32[4,5], i64[1]
  y = neg u
  return y, n
})";

class Hosts : public testing::Test {
 protected:
  void TearDown() override {
    set_host("test", {});
    set_host("torch", {});
  }
  // Computes everything as `run` does.
  void host(const std::string& name, HostFunction run, const std::string& problem = "") {
    set_host(name, {[name] { return name + " 1.0"; },
                    [problem](const std::string&) { return problem; }, std::move(run)});
  }
  int calls_ = 0;
};

TEST_F(Hosts, ComputeOpaqueOperators) {
  host("test", [&](const HostStep& step, void* const* arguments, int threads) {
    ++calls_;
    EXPECT_EQ(step.text, "test.Twice p1");
    EXPECT_GE(threads, 1);
    const float* const in = static_cast<const float*>(arguments[0]);
    for (int i = 0; i < 20; ++i) static_cast<float*>(arguments[1])[i] = 2 * in[i];
    *static_cast<int64_t*>(arguments[2]) = 20;
  });
  const Graph g = parse(kOpaque);
  const auto module = Module::compile(g, test_cache());
  std::vector<float> x(20, 0.5f), y(20);
  int64_t n = 0;
  const void* in[] = {x.data()};
  void* out[] = {y.data(), &n};
  module->run(in, out);
  EXPECT_EQ(calls_, 2);
  EXPECT_NEAR(y[7], -4 * std::exp(0.5f), 1e-5);
  EXPECT_EQ(n, 20);
  EXPECT_EQ(module->host_steps().size(), 2u);
  // Code around them is checked whatever they compute, and without them.
  const auto run = [&](auto a, auto b) { module->run(a, b); };
  CheckReport report;
  EXPECT_TRUE(check_compiled(g, run, {}, &report).has_value()) << report.what;
  EXPECT_EQ(calls_, 2);
  std::string other = kOpaque;
  other.replace(other.find("opaque v"), 8, "opaque h");
  EXPECT_FALSE(check_compiled(parse(other), run, {}, &report).has_value());
  other = kOpaque;
  other.replace(other.find("neg u"), 5, "neg v");
  EXPECT_FALSE(check_compiled(parse(other), run, {}, &report).has_value());
  // A file would lack them.
  EXPECT_THROW(emit_source(g, best_isa()), Error);
}

TEST_F(Hosts, WhatNobodyComputesIsRefusedByName) {
  try {
    (void)Module::compile(parse(kOpaque), test_cache());
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::Unsupported);
    EXPECT_TRUE(has(e.message(), "test.Twice")) << e.message();
  }
}

TEST_F(Hosts, AnErrorLeavesTheProgramWell) {
  bool fails = true;
  host("test", [&](const HostStep&, void* const* arguments, int) {
    if (fails) throw Error(ErrorKind::BadInput, "it does not like this");
    std::memset(arguments[1], 0, 80);
  });
  const auto module = Module::compile(parse(kOpaque), test_cache());
  std::vector<float> x(20), y(20, 1.f);
  int64_t n = 0;
  const void* in[] = {x.data()};
  void* out[] = {y.data(), &n};
  EXPECT_THROW(module->run(in, out), Error);
  fails = false;
  module->run(in, out);
  EXPECT_EQ(y[3], 0.f);
}

// --- calls of patterns --------------------------------------------------------------------------

const char* const kNorm = R"(pattern norm
  def {
    x = input : f32[M,N]
    eps = input : f32[]
    q = sqr x
    m = mean q {axes=[1], keepdims=true}
    e = add m, eps
    r = rsqrt e
    y = mul x, r
    return y
  }
  numbers eps
  prologue x
  epilogue
)";
const char* const kRegion = R"(graph g {
  x = input : f32[6,40]
  g = input : f32[40]
  s = input : f32[6,40]
  h = add x, s
  q = sqr h
  m = mean q {axes=[1], keepdims=true}
  c = const {value=0.001} : f32[]
  e = add m, c
  r = rsqrt e
  y = mul h, r
  z = mul y, g
  return z
})";
const char* const kHostLinear = R"(pattern linear
  def {
    x = input : f32[M,K]
    w = input : f32[K,N]
    b = input : f32[N]
    p = matmul x, w
    s = add p, b
    y = relu s
    return y
  }
)";
const char* const kProduct = R"(graph g {
  x = input : f32[13,24]
  w = input {weight=true} : f32[24,40]
  b = input {weight=true} : f32[40]
  p = matmul x, w
  s = add p, b
  y = relu s
  return y
})";

class Calls : public Hosts {
 protected:
  Calls() : cache_({folder_.path() + "/cache", {}}) {}

  BodyRecord check(const std::string& text, int sizes = 2) {
    BodyCheckOptions options;
    options.sizes = sizes;
    return check_body(patterns::parse_pattern(text, "t.pattern"), 0, cache_, options);
  }
  static std::string malformed(const std::string& text) {
    try {
      (void)patterns::parse_pattern(text, "t.pattern");
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  }
  // The program with the pattern in it; `why_` where it is not used.
  Graph used(const std::string& text, const std::string& program) {
    std::vector<patterns::Pattern> all = {patterns::parse_pattern(text, "t.pattern")};
    mark_unusable(all, cache_, false, best_isa());
    Context context;
    const Target target = default_cpu_target();
    context.target = &target;
    PatternsOptions options;
    options.warehouse = &all;
    options.verify = true;
    CollectingSink sink;
    const SearchReport report =
        Patterns(options).run(Subprogram{parse(program)}, context, {}, sink);
    why_.clear();
    for (const std::string& line : report.refused) why_ += line + "\n";
    return sink.candidates.empty() ? Graph() : sink.candidates[0].graph;
  }
  // RMS norm, as PyTorch would.
  void torch() {
    host("torch", [&](const HostStep& step, void* const* arguments, int) {
      ++calls_;
      text_ = step.text;
      const auto rows = step.operands[0].shape[0].extent, n = step.operands[0].shape[1].extent;
      const float* x = static_cast<const float*>(arguments[0]);
      float* y = static_cast<float*>(arguments[1]);
      for (int64_t i = 0; i < rows; ++i) {
        double sum = 0;
        for (int64_t j = 0; j < n; ++j) sum += double(x[i * n + j]) * double(x[i * n + j]);
        const double r = 1 / std::sqrt(sum / double(n) + eps_);
        for (int64_t j = 0; j < n; ++j) y[i * n + j] = float(double(x[i * n + j]) * r);
      }
    });
  }
  double eps_ = 0.125;  // as checks have it
  std::string text_, why_;
  TemporaryDirectory folder_;
  Cache cache_;
};

TEST_F(Calls, OfPyTorchAreCheckedAndUsed) {
  const std::string text =
      kNorm + std::string("  when dtype in f32\n  call torch mine.norm(x, [N], eps=eps)\n");
  EXPECT_THROW(check(text), Error);  // nobody has PyTorch
  EXPECT_TRUE(has((used(text, kRegion), why_), "PyTorch, which is not here")) << why_;
  torch();
  EXPECT_TRUE(has((used(text, kRegion), why_), "has not been checked here")) << why_;
  const BodyRecord r = check(text);
  EXPECT_EQ(r.state, BodyRecord::State::Checked) << r.what;
  EXPECT_TRUE(has(r.machine, "torch 1.0"));
  // What fills the holes stays outside.
  const Graph g = used(text, kRegion);
  ASSERT_GT(g.ops().size(), 0u) << why_;
  EXPECT_TRUE(has(print(g), "kernel"));
  eps_ = 0.001;
  calls_ = 0;
  const auto module = Module::compile(g, cache_);
  CheckReport report;
  EXPECT_TRUE(check_compiled(
      g, [&](auto a, auto b) { module->run(a, b); }, {}, &report))
      << report.what;
  EXPECT_GT(calls_, 0);
  EXPECT_EQ(text_, "{\"op\": \"mine.norm\", \"args\": [{\"operand\": 0}, [40]], \"kwargs\": "
                   "{\"eps\": 0.001}}");
  // Where the operator is not known, what it means is computed; so it is without PyTorch.
  for (bool there : {true, false}) {
    calls_ = 0;
    if (there)
      host(
          "torch", [&](const HostStep&, void* const*, int) { ++calls_; }, "no such operator");
    else
      set_host("torch", {});
    const auto plain = Module::compile(g, cache_);
    EXPECT_TRUE(check_compiled(g, [&](auto a, auto b) { plain->run(a, b); }).has_value());
    EXPECT_EQ(calls_, 0);
    EXPECT_TRUE(plain->host_steps().empty());
  }
}

TEST_F(Calls, ThatAreWrongAreRefused) {
  const std::string text =
      kNorm + std::string("  when dtype in f32\n  call torch mine.norm(x, eps=eps)\n");
  torch();
  eps_ = 0.25;
  EXPECT_TRUE(has(check(text).what, "its result is not what the def says"));
  host("torch", [&](const HostStep&, void* const*, int) {
    throw Error(ErrorKind::BadInput, "torch's mine.norm failed: nothing but f16");
  });
  EXPECT_TRUE(has(check(text).what, "nothing but f16"));
  host("torch", [&](const HostStep& step, void* const* arguments, int) {
    std::memset(arguments[0], 0, size_t(step.operands[0].bytes()));
  });
  const BodyRecord r = check(text);
  EXPECT_EQ(r.state, BodyRecord::State::Refused);
  EXPECT_TRUE(has((used(text, kRegion), why_), "was refused by a check")) << why_;
}

TEST_F(Calls, AreWrittenInAClosedGrammar) {
  for (const char* call :
       {"mine.norm", "mine.norm.int", "mine.norm(x)", "mine.norm(x, [N, [1, M]], \"a b\", eps)",
        "mine.norm(eps=eps, how=\"tanh\", n=-1, e=1.5e-3, on=true, off=none, x=x)",
        "mine.norm(0, 10, 0.5, flag=false)"}) {
    const std::string text = kNorm + std::string("  call torch ") + call + " when N >= 2\n";
    const patterns::Pattern p = patterns::parse_pattern(text, "t.pattern");
    const std::string printed = print(p);
    EXPECT_EQ(print(patterns::parse_pattern(printed, "t.pattern")), printed);
    EXPECT_TRUE(has(printed, "call torch mine.norm")) << printed;
  }
  const auto told = [&](const std::string& call) {
    return malformed(kNorm + std::string("  call torch ") + call + "\n");
  };
  EXPECT_TRUE(has(told("gelu"), "t.pattern:15:14: expected the operator's name")) << told("gelu");
  EXPECT_TRUE(has(told("torch.nn.functional.gelu"), "as torch.ops has them"));
  EXPECT_TRUE(has(told("a.b(open(x))"), "expected ',' or ')'"));
  EXPECT_TRUE(has(told("a.b(x.data)"), "expected ',' or ')'"));
  EXPECT_TRUE(has(told("a.b(x, z)"), "'z' is neither a symbol of the def nor a tuned name"));
  EXPECT_TRUE(has(told("a.b(k=1, x)"), "by position behind one by name"));
  EXPECT_TRUE(has(told("a.b(\"x\\n\")"), "without '\\'"));
  EXPECT_TRUE(has(told("a.b(007)"), "this is no number"));
  EXPECT_TRUE(has(told("a.b(1.)"), "this is no number"));
  for (const char* number : {"-", "1e", "01.5", "1e-", "1e4000", "12a", "--1", "1-", "1.5.2"})
    EXPECT_TRUE(has(told(std::string("a.b(") + number + ")"), "this is no number")) << number;
  EXPECT_TRUE(has(told("a.b([[[1]]])"), "a list in a list in a list"));
  EXPECT_TRUE(has(told("a.b(x"), "expected ',' or ')'"));
  const std::string two =
      "pattern p\n  def {\n    x = input : f32[M]\n    z = input : f32[M]\n    y = add x, z\n"
      "    return y\n  }\n  call torch a.b(x)\n";
  EXPECT_TRUE(has(malformed(two), "does not say what 'z' is for"));
  EXPECT_TRUE(has(malformed("pattern p\n  def {\n    x. = input : f32[M]\n    y = neg x.\n"
                            "    return y\n  }\n  call torch a.b\n"),
                  "a call cannot name 'x.': it has a dot"));
}

TEST_F(Calls, OfOneDnn) {
  if (std::getenv("TESSERA_ONEDNN") == nullptr) use_onednn(stand_in_dnnl());
  ASSERT_EQ(onednn().problem, "");
  const std::string text = kHostLinear + std::string("  call onednn when M >= 2\n");
  EXPECT_EQ(print(patterns::parse_pattern(text, "t.pattern")), text);
  const BodyRecord r = check(text);
  EXPECT_EQ(r.state, BodyRecord::State::Checked) << r.what;
  EXPECT_EQ(r.what, "element types f32");
  // Weights are laid out once, other operands are read as they lie.
  for (const bool weight : {true, false}) {
    std::string program = kProduct;
    if (!weight) program.replace(program.find(" {weight=true}"), 14, "");
    const Graph g = used(text, program);
    ASSERT_GT(g.ops().size(), 0u) << why_;
    KernelPool pool(3);  // slices of 5, 5 and 3 rows
    ModuleOptions options;
    options.pool = &pool;
    const auto module = Module::compile(g, cache_, options);
    EXPECT_TRUE(has(module->source(), "computed by oneDNN"));
    EXPECT_EQ(module->weights().size(), weight ? 1u : 0u);
    CheckReport report;
    EXPECT_TRUE(check_compiled(
        g, [&](auto a, auto b) { module->run(a, b); }, {}, &report))
        << report.what;
  }
  // What it has no way for is said.
  const std::string sum = "pattern p\n  def {\n    x = input : f32[M,K]\n    w = input : f32[K,N]\n"
                          "    p = matmul x, w\n    y = sum p {axes=[1]}\n    return y\n  }\n"
                          "  call onednn\n";
  EXPECT_TRUE(has(check(sum).what, "sum cannot follow its product")) << check(sum).what;
  use_onednn("/nowhere/libdnnl.so");
  EXPECT_TRUE(has((used(text, kProduct), why_), "needs oneDNN, which is not here")) << why_;
  use_onednn("");
}

// --- guards -------------------------------------------------------------------------------------

const char* const kKernel = R"(  kernel grid[x=M] {
    t = iter x {imap={x:0}}
    u = iter w
    c = iter b
    p = matmul t, u
    s = add p, c
    r = relu s
    y = save r {omap={x:0}} : f32[M,N]
    return y
  }
)";
std::string turned(const std::string& perm, const std::string& shape) {
  std::string text = kProduct;
  const std::string w = "w = input {weight=true} : f32[24,40]";
  return text.replace(text.find(w), w.size(),
                      "stored = input : f32[" + shape + "]\n  w = transpose stored {perm=[" + perm +
                          "]}");
}

TEST_F(Calls, GuardsOnLayout) {
  const std::string rows = kHostLinear + std::string("  when layout w rows\n") + kKernel;
  const std::string columns =
      kHostLinear + std::string(kKernel).insert(8, " when layout w transposed");
  for (const std::string& text : {rows, columns}) {
    const std::string printed = print(patterns::parse_pattern(text, "t.pattern"));
    EXPECT_EQ(print(patterns::parse_pattern(printed, "t.pattern")), printed);
  }
  const std::string swapped = turned("1,0", "40,24");
  EXPECT_GT(used(rows, kProduct).ops().size(), 0u) << why_;
  EXPECT_EQ(used(rows, swapped).ops().size(), 0u);
  EXPECT_TRUE(has(why_, "'layout w rows' does not hold: w is a transpose of what is stored "
                        "('stored')"))
      << why_;
  EXPECT_GT(used(columns, swapped).ops().size(), 0u) << why_;
  EXPECT_EQ(used(columns, kProduct).ops().size(), 0u);
  EXPECT_TRUE(has(why_, "'layout w transposed' does not hold: w lies row by row ('w')")) << why_;
  const auto told = [&](const std::string& when) {
    return malformed(kHostLinear + std::string("  when ") + when + "\n" + kKernel);
  };
  EXPECT_TRUE(has(told("layout v rows"), "the def has no input 'v'"));
  EXPECT_TRUE(has(told("layout w blocked"), "there are rows and transposed"));
  EXPECT_TRUE(has(told("layout b transposed"), "'b' has only one axis"));
}

TEST_F(Calls, GuardsOnAlignment) {
  const std::string text = kHostLinear + std::string("  when align w 32, align x 32\n") + kKernel;
  const std::string printed = print(patterns::parse_pattern(text, "t.pattern"));
  EXPECT_TRUE(has(printed, "when align w 32, align x 32")) << printed;
  EXPECT_GT(used(text, kProduct).ops().size(), 0u) << why_;  // 24 and 40 elements
  std::string odd = kProduct;
  while (has(odd, "24")) odd.replace(odd.find("24"), 2, "20");
  EXPECT_EQ(used(text, odd).ops().size(), 0u);
  EXPECT_TRUE(has(why_, "'align x 32' does not hold for")) << why_;
  EXPECT_TRUE(has(why_, "a row of x has 80 bytes")) << why_;
  const auto told = [&](const std::string& when) {
    return malformed(kHostLinear + std::string("  when ") + when + "\n" + kKernel);
  };
  EXPECT_TRUE(has(told("align x 24"), "expected a number of bytes: 2, 4, 8, 16, 32 or 64"));
  EXPECT_TRUE(has(told("align x 128"), "where arrays of programs begin"));
  EXPECT_TRUE(has(malformed(kNorm + std::string("  when align eps 4\n  call torch a.b\n")),
                  "'eps' is a number, which has no rows"));
}

// Callers' arrays that begin anywhere are copied to where the guard wants them, and back.
TEST_F(Calls, CallersArraysAreAligned) {
  int odd = 0;
  const auto norm = [&] {
    torch();
    const auto run = find_host("torch");
    host("torch", [&odd, run](const HostStep& step, void* const* arguments, int threads) {
      odd += reinterpret_cast<uintptr_t>(arguments[0]) % 64 != 0;
      run->run(step, arguments, threads);
    });
  };
  norm();
  const std::string call = "  when dtype in f32\n  call torch mine.norm(x, eps=eps)";
  std::string plain = kRegion;  // the norm of an input
  plain.replace(plain.find("h = add x, s"), 12, "h = reshape x {shape=[6,40]}");
  while (has(plain, "[6,40]")) plain.replace(plain.find("[6,40]"), 6, "[6,32]");
  while (has(plain, "[40]")) plain.replace(plain.find("[40]"), 4, "[32]");
  for (const bool guarded : {true, false}) {
    const std::string text = kNorm + call + (guarded ? " when align x 64\n" : "\n");
    eps_ = 0.125;
    ASSERT_EQ(check(text).state, BodyRecord::State::Checked);
    const Graph g = used(text, plain);
    ASSERT_GT(g.ops().size(), 0u) << why_;
    eps_ = 0.001;
    const auto module = Module::compile(g, cache_);
    AlignedBuffer x(6 * 32 * 4 + 64), s(6 * 32 * 4), w(32 * 4), y(6 * 32 * 4);
    float* const at = static_cast<float*>(x.data()) + 3;
    for (int i = 0; i < 6 * 32; ++i) at[i] = float(i % 7);
    for (int i = 0; i < 32; ++i) static_cast<float*>(w.data())[i] = 1;
    const void* in[] = {at, w.data(), s.data()};
    void* out[] = {y.data()};
    odd = 0;
    module->run(in, out);
    EXPECT_EQ(odd, guarded ? 0 : 1);
    double sum = 0;
    for (int i = 0; i < 32; ++i) sum += double(at[i]) * double(at[i]);
    EXPECT_NEAR(static_cast<float*>(y.data())[5], double(at[5]) / std::sqrt(sum / 32 + 0.001),
                1e-5);
  }
}

}  // namespace
}  // namespace tessera
