// Bodies that a person wrote: right ones are checked and then used, wrong ones are refused with a
// reason, and what is not checked is never compiled into a program.
#include "backend/body_check.h"

#include <gtest/gtest.h>

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "backend/cpu/module.h"
#include "backend/written.h"
#include "base/error.h"
#include "counting.h"
#include "emulated.h"
#include "ir/text.h"
#include "places.h"
#include "search/patterns/check.h"
#include "search/patterns/instantiate.h"
#include "search/patterns/patterns.h"
#include "search/patterns/warehouse.h"
#include "verify/funnel.h"

namespace tessera {
namespace {

using patterns::Pattern;

const char* const kDef = R"(pattern norm
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
  when dtype in f32
)";

const char* const kCpu = R"(  code cpu for m = M {
    float s = 0;
    for (long j = 0; j < N; j++) s += load(x, m, j) * load(x, m, j);
    const float r = 1 / sqrt(s / N + eps);
    for (long j = 0; j < N; j++) store(y, m, j, load(x, m, j) * r);
  }
)";

const char* const kCuda = R"(  code cuda for m = M threads 64 {
    shared<float, 64> p;
    float s = 0;
    for (int j = thread; j < N; j += threads) s += load(x, m, j) * load(x, m, j);
    p[thread] = s;
    sync();
    s = 0;
    for (int t = 0; t < threads; t++) s += p[t];
    const float r = 1 / sqrt(s / N + eps);
    for (int j = thread; j < N; j += threads) store(y, m, j, load(x, m, j) * r);
  }
)";

std::string edited(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  if (at == std::string::npos) throw std::runtime_error("no " + from);
  return text.replace(at, from.size(), to);
}

class Bodies : public testing::Test {
 protected:
  Bodies() {
    static int number = 0;
    folder_ = testing::TempDir() + "tessera-bodies-" + std::to_string(getpid()) + "-" +
              std::to_string(number++);
    CacheOptions options;
    options.directory = folder_;
    cache_.emplace(options);
    check_.sizes = 2;
    check_.timeout_s = 5;
    check_.arch = parse_arch("sm_80");
    check_.gpu = gpu();
  }
  ~Bodies() override { std::filesystem::remove_all(folder_); }

  Pattern read(const std::string& code) const {
    return patterns::parse_pattern(kDef + code, "norm.pattern");
  }
  BodyRecord check(const std::string& code) { return check_body(read(code), 0, *cache_, check_); }
  // What a check says of a wrong body.
  std::string refusal(const std::string& code) {
    const BodyRecord r = check(code);
    EXPECT_EQ(r.state, BodyRecord::State::Refused) << code;
    return r.what;
  }
  // What the grammar says.
  std::string malformed(const std::string& code) const {
    try {
      (void)read(code);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  }
  // The pattern's body in the place of a program of one region.
  Graph used(const Pattern& p, const std::string& program, bool cuda = false) {
    std::vector<Pattern> all = {p};
    mark_unusable(all, *cache_, cuda, best_isa());
    const Target target = cuda ? gpu() : default_cpu_target();
    Context context;
    context.target = &target;
    context.threads = 1;
    PatternsOptions options;
    options.warehouse = &all;
    options.verify = true;
    CandidateSink sink;
    const SearchReport report =
        Patterns(options).run(Subprogram{parse(program)}, context, {}, sink);
    for (const Candidate& c : sink.candidates)
      for (const Op& op : c.graph.ops())
        if (written_kernel(c.graph, op)) return c.graph;
    why_ = report.refused.empty() ? "" : report.refused[0];
    return Graph();
  }
  std::string why_;
  std::string folder_;
  std::optional<Cache> cache_;
  BodyCheckOptions check_;
};

// Sums of one warp are right as long as no row is longer than it.
TEST_F(Bodies, LongRowsAreTried) {
  const std::string code = R"(  code cuda for m = M threads 128 {
    float s = 0;
    for (int j = thread; j < N; j += threads) s += load(x, m, j) * load(x, m, j);
    const float r = 1 / sqrt(block_sum(s) / N + eps);
    for (int j = thread; j < N; j += threads) store(y, m, j, load(x, m, j) * r);
  }
)";
  check_.sizes = 1;
  EXPECT_EQ(check(code).state, BodyRecord::State::Checked) << check(code).what;
  const std::string what = refusal(edited(code, "block_sum", "warp_sum"));
  EXPECT_NE(what.find("is not what the def says"), std::string::npos) << what;
  // The first round is right, the second is none.
  EXPECT_NE(refusal(edited(code, "for (int j = thread; j < N; j += threads) store(y, m, j",
                           "const int j = thread; if (j < N) store(y, m, j")),
            "");
}

TEST_F(Bodies, RightOnesAreCheckedByManyRuns) {
  for (const char* code : {kCpu, kCuda}) {
    const BodyRecord r = check(code);
    EXPECT_EQ(r.state, BodyRecord::State::Checked) << r.what;
    EXPECT_GE(r.instances, 4);  // two sizes, with holes and without
    EXPECT_GE(r.runs, 3 * r.instances);
    EXPECT_EQ(r.what, "element types f32");
  }
}

TEST_F(Bodies, ThoseThatShipAreRight) {
  check_.sizes = 1;
  check_.settings = 1;
  int bodies = 0;
  for (const Pattern& p : patterns::load_patterns(source_dir() + "/patterns"))
    for (size_t b = 0; b < p.bodies.size(); b++) {
      if (!p.bodies[b].written()) continue;
      bodies++;
      const BodyRecord r = check_body(p, b, *cache_, check_);
      EXPECT_EQ(r.state, BodyRecord::State::Checked) << p.name << ": " << r.what;
      EXPECT_EQ(r.what, "element types f32 f64 bf16 f16") << p.name;
    }
  EXPECT_GE(bodies, 2);
}

// --- wrong ones ---------------------------------------------------------------------------------

TEST_F(Bodies, OffByOneAtTheTail) {
  EXPECT_TRUE(has(refusal(edited(kCpu, "j < N; j++) store", "j <= N; j++) store")),
                  "line 20: it loads x["));
  const std::string what = refusal(edited(kCpu, "j < N; j++) store", "j < N - 1; j++) store"));
  EXPECT_TRUE(has(what, "it never stores y[0, ")) << what;
  EXPECT_TRUE(
      has(refusal(edited(kCuda, "j < N; j += threads) store", "j <= N; j += threads) store")),
          "outside of its tensor"));
}

TEST_F(Bodies, WrongReduction) {
  const std::string what =
      refusal(edited(kCpu, "for (long j = 0; j < N; j++) s", "for (long j = 1; j < N; j++) s"));
  EXPECT_TRUE(has(what, "its result is not what the def says: ")) << what;
  EXPECT_TRUE(has(what, "M=")) << what;
  EXPECT_TRUE(has(refusal(edited(kCpu, "s / N", "s")), "its result is not what the def says"));
}

TEST_F(Bodies, WrongEpsilon) {
  const std::string what =
      refusal(edited(kCpu, "1 / sqrt(s / N + eps)", "1 / (sqrt(s / N) + eps)"));
  EXPECT_TRUE(has(what, "its result is not what the def says")) << what;
}

TEST_F(Bodies, RaceBetweenThreads) {
  std::string what = refusal(edited(kCuda, "p[thread] = s;", "p[thread] = s; p[0] = s;"));
  EXPECT_TRUE(has(what, "line 20: a race: ")) << what;
  what = refusal(edited(kCuda, "    sync();\n", ""));
  EXPECT_TRUE(has(what, "line 22: ")) << what;
  EXPECT_TRUE(has(what, "a race") || has(what, "a read of what nothing has written")) << what;
}

TEST_F(Bodies, ParallelIterationsThatStoreTheSame) {
  const std::string what = refusal(edited(kCpu, "store(y, m, j,", "store(y, m / 2, j,"));
  EXPECT_TRUE(has(what, "two parallel iterations store y[")) << what;
}

TEST_F(Bodies, WritesOutside) {
  EXPECT_TRUE(has(refusal(edited(kCpu, "store(y, m, j,", "store(y, m, j + 1,")), "it stores y["));
  EXPECT_TRUE(
      has(refusal(edited(kCpu, "float s = 0;", "float s = 0; local<float, 4> a; a[N] = 1;")),
          "line 17: index "));
}

// What only happens without watching: indices are not checked then, pages are.
TEST_F(Bodies, CrashesEndTheChildAlone) {
  EXPECT_TRUE(has(
      refusal(edited(kCpu, "float s = 0;",
                     "long z = 0; for (long i = 0; i < M; i++) z += load(x, m, 0) > 1e37 ? 1 : 0; "
                     "float s = 7 / z;")),
      "divides an integer by zero"));
}

TEST_F(Bodies, LoopsWithoutEnd) {
  check_.timeout_s = 1;
  EXPECT_TRUE(
      has(refusal(edited(kCpu, "j++) store", "j += 0) store")), "it did not end within 1 s"));
  EXPECT_TRUE(has(refusal(edited(kCuda, "t < threads; t++", "t < threads; t += 0")),
                  "it did not end within 1 s"));
}

TEST_F(Bodies, WhatTheCompilerRefusesHasItsLine) {
  const std::string what = refusal(edited(kCpu, "float s = 0;", "float s = 0; s + ;"));
  EXPECT_TRUE(has(what, "the compiler refuses it: line 17:")) << what;
}

// --- the grammar --------------------------------------------------------------------------------

TEST_F(Bodies, NothingElseCanBeSaid) {
  const auto first = [&](const std::string& statement) {
    return malformed(edited(kCpu, "float s = 0;", statement + " float s = 0;"));
  };
  EXPECT_TRUE(has(first("system(1);"), "norm.pattern:17:5: 'system' is neither declared here"));
  for (const char* text : {"#include <stdio.h>\n",
                           "asm(1);",
                           "float* p = 0;",
                           "auto p = 0;",
                           "x[0] = 1;",
                           "goto a;",
                           "float f(float g);",
                           "const float a = \"x\";",
                           "s->a = 1;",
                           "std::abort();",
                           "int a = 0; int b = &a;",
                           "float a[8];",
                           "return;",
                           "new int;",
                           "\\\n",
                           "__builtin_trap();",
                           "b_s = 1;",
                           "h_x(0, 0, 0);",
                           "struct A {};",

                           "float x = 0;",
                           "float sqrt = 0;",
                           "store(x, m, 0, 1);",
                           "load(y, m, 0);",
                           "load(x, m);",
                           "load(eps, m);",
                           "vload(x, m, 0, 1, 2);",
                           "local<float, 100000> a;",
                           "local<float, 0> a;",
                           "float a, b = 0;",
                           "float a = 'b';",
                           "{",
                           ")",
                           "sync();",
                           "float a = 0x10;",
                           "int \xc3\xa9 = 1;",
                           "sqrt + 1;",
                           "throw 1;"}) {
    EXPECT_NE(first(text), "") << text;
  }
  EXPECT_NE(malformed("  code cpu for m = M { }\n"), "");              // stores nothing
  EXPECT_NE(malformed("  code cuda for m = M threads 33 { }\n"), "");  // no whole warps
  EXPECT_NE(malformed("  code gpu for m = M { }\n"), "");
  EXPECT_NE(malformed("  code cpu for x = M { store(y, 0, 0, 1); }\n"), "");
  const std::string raw = "  code cuda raw for m = M threads 32 { store(y, m, 0, 1); ";
  EXPECT_EQ(malformed(raw + "__syncthreads(); float a[4]; float* p = a; }\n"), "");
  for (const char* text :
       {"asm(1); }\n", "printf(1); }\n", "#pragma once\n }\n", "extern int a; }\n"})
    EXPECT_NE(malformed(raw + text), "") << text;
}

// --- use ----------------------------------------------------------------------------------------

const char* const kBodyProgram = R"(graph g {
  X = input : f32[24,40]
  R = input : f32[24,40]
  G = input : f32[40]
  x = add X, R
  q = sqr x
  m = mean q {axes=[1], keepdims=true}
  eps = const {value=0.00001} : f32[]
  e = add m, eps
  r = rsqrt e
  n = mul x, r
  o = const {value=1} : f32[]
  h = add G, o
  g = mul n, h
  y = silu g
  return y
})";

TEST_F(Bodies, OnlyWhatIsCheckedIsUsed) {
  const Pattern p = read(kCpu);
  EXPECT_TRUE(used(p, kBodyProgram).ops().empty());
  EXPECT_TRUE(has(why_, "has not been checked")) << why_;
  ASSERT_EQ(check(kCpu).state, BodyRecord::State::Checked);
  const Graph g = used(p, kBodyProgram);
  ASSERT_EQ(g.outputs().size(), 1u);
  EXPECT_EQ(parse(print(g)), g);
  // A residual before it, a zero-centred gamma and a SiLU behind: all of it is in one kernel.
  EXPECT_EQ(std::count_if(g.ops().begin(), g.ops().end(),
                          [](const Op& op) { return op.kind != OpKind::Input; }),
            1)
      << print(g);
  const auto module = Module::compile(g, *cache_);
  EXPECT_TRUE(has(module->source(), "// The body of pattern norm")) << module->source();
  const auto run = [&](auto in, auto out) { module->run(in, out); };
  EXPECT_TRUE(check_compiled(parse(kBodyProgram), run).has_value());
  ASSERT_EQ(trust_lines(g, *cache_, false, best_isa()).size(), 1u);
  EXPECT_TRUE(has(trust_lines(g, *cache_, false, best_isa())[0], "proved up to body norm ("));
  // Its proof says how far it goes.
  const Verdict v = verify(parse(kBodyProgram), g);
  ASSERT_TRUE(v.equal());
  EXPECT_TRUE(has(v.certificate().str(), "proved up to the body of pattern norm"));

  // One character more is another body: nobody has checked it.
  EXPECT_TRUE(used(read(edited(kCpu, "s = 0;", "s =  0;")), kBodyProgram).ops().empty());
  // A refused one stays refused, with its reason.
  const std::string wrong = edited(kCpu, "s / N", "s");
  (void)refusal(wrong);
  EXPECT_TRUE(used(read(wrong), kBodyProgram).ops().empty());
  EXPECT_TRUE(has(why_, "was refused by a check: its result is not what the def says")) << why_;
}

TEST_F(Bodies, WithoutItsRecordAProgramIsWhatItMeans) {
  ASSERT_EQ(check(kCpu).state, BodyRecord::State::Checked);
  const Graph g = used(read(kCpu), kBodyProgram);
  ASSERT_FALSE(g.ops().empty());
  for (const auto& entry : std::filesystem::directory_iterator(folder_ + "/bodies"))
    std::ofstream(entry.path(), std::ios::app) << "  # more\n";
  const auto module = Module::compile(g, *cache_);
  EXPECT_FALSE(has(module->source(), "body of pattern"));
  const auto run = [&](auto in, auto out) { module->run(in, out); };
  EXPECT_TRUE(check_compiled(parse(kBodyProgram), run).has_value());
  EXPECT_TRUE(has(trust_lines(g, *cache_, false, best_isa())[0], "is not checked here"));
}

// A program that names a checked body for something else does not get its code.
TEST_F(Bodies, TheKernelHasToMeanTheDef) {
  ASSERT_EQ(check(kCpu).state, BodyRecord::State::Checked);
  const Graph g = used(read(kCpu), kBodyProgram);
  ASSERT_FALSE(g.ops().empty());
  WrittenSources sources;
  EXPECT_EQ(with_checked_bodies(g, *cache_, false, best_isa(), {}, sources), g);
  const Graph other = parse(edited(print(g), "mean ", "reduce_max "));
  EXPECT_FALSE(with_checked_bodies(other, *cache_, false, best_isa(), {}, sources) == other);
  const auto module = Module::compile(other, *cache_);
  EXPECT_FALSE(has(module->source(), "body of pattern"));
}

TEST_F(Bodies, CudaInTheEmulator) {
  const Pattern p = read(kCuda);
  EXPECT_TRUE(used(p, kBodyProgram, true).ops().empty());
  ASSERT_EQ(check(kCuda).state, BodyRecord::State::Checked);
  const Graph g = used(p, kBodyProgram, true);
  ASSERT_FALSE(g.ops().empty()) << why_;
  WrittenSources sources;
  ASSERT_EQ(with_checked_bodies(g, *cache_, true, best_isa(), {}, sources), g);
  CudaProgram program = emit_cuda(g, parse_arch("sm_80"), {}, gpu(), {}, {}, sources);
  EXPECT_TRUE(has(program.source, "// The body of pattern norm"));
  const EmulatedProgram emulated(g, std::move(program));
  std::string fault;
  const auto run = [&](auto in, auto out) {
    if (const auto found = emulated.run(in, out)) fault = found->str();
  };
  EXPECT_TRUE(check_compiled(parse(kBodyProgram), run).has_value()) << fault;
}

}  // namespace
}  // namespace tessera
