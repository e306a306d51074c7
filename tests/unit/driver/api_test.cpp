// The public API, by its own header. Its names are the core's, too, which precompiled headers bring
// along here: hence `api::`.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "tessera/tessera.h"

namespace {

using tessera::api::DType;
using tessera::api::ErrorKind;
using tessera::api::Function;
using tessera::api::Graph;
using tessera::api::Options;
using tessera::api::Type;
using tessera::api::Verdict;

// Code comes out of a proved and checked result alone: nothing else makes a Function.
static_assert(!std::is_default_constructible_v<Function>);
static_assert(!std::is_constructible_v<Function, std::nullptr_t>);
static_assert(
    !std::is_constructible_v<Function, std::shared_ptr<const tessera::api::FunctionImpl>>);
static_assert(!std::is_constructible_v<Function, Graph>);
static_assert(!std::is_default_constructible_v<tessera::api::Certificate>);
static_assert(tessera::api::dtype_of(static_cast<const bool*>(nullptr)) == DType::Bool);

Graph program(const std::string& result, const std::string& type = "f32[2,3]") {
  return Graph::parse("graph g {\n  x = input : " + type + "\n  w = input {weight=true} : " + type +
                          "\n  n = neg x\n  y = " + result + "\n  return y\n}\n",
                      "g.ug");
}

Options quick() {
  Options options;
  options.budget_seconds = 20;
  options.threads = 2;
  options.use_cache = false;
  return options;
}

// The kind and text of what `f` throws.
template <class F> std::pair<ErrorKind, std::string> error_of(F f) {
  try {
    f();
  } catch (const tessera::api::Error& e) {
    return {e.kind, e.what()};
  }
  return {ErrorKind::Internal, "nothing was thrown"};
}

TEST(PublicApi, ProgramsAreReadAndPrinted) {
  const Graph g = program("add x, w");
  EXPECT_EQ(Graph::parse(g.text()).text(), g.text());
  EXPECT_EQ(g.inputs(), (std::vector<Type>{{DType::F32, {2, 3}}, {DType::F32, {2, 3}}}));
  const Graph any = program("add x, w", "f64[N,3]");
  EXPECT_EQ(any.outputs()[0], (Type{DType::F64, {0, 3}}));
  EXPECT_EQ(any.with_sizes({{"N", 5}}).outputs()[0], (Type{DType::F64, {5, 3}}));
}

TEST(PublicApi, ErrorsTellTheirPlace) {
  try {
    Graph::parse("graph g {\n  x = nothing\n}\n", "wrong.ug");
    FAIL() << "it is malformed";
  } catch (const tessera::api::Error& e) {
    EXPECT_EQ(e.kind, ErrorKind::BadInput);
    EXPECT_EQ(e.file, "wrong.ug");
    EXPECT_EQ(e.line, 2);
    EXPECT_GT(e.column, 0);
    EXPECT_EQ(std::string(e.what()).find("wrong.ug:2:"), 0u) << e.what();
    EXPECT_NE(std::string(e.what()).find(e.message), std::string::npos);
  }
}

TEST(PublicApi, VerdictsHaveEvidence) {
  const Verdict equal = verify(program("add x, x"), program("sub x, n"), quick());
  ASSERT_TRUE(equal.equal()) << equal.text();
  const auto certificate = tessera::api::Certificate::parse(equal.certificate().text());
  EXPECT_TRUE(certificate.proved());
  EXPECT_LE(certificate.error_log2(), -40);
  EXPECT_EQ(certificate.recheck(program("add x, x"), program("sub x, n")), "");
  EXPECT_NE(certificate.recheck(program("add x, x"), program("sub w, n")), "");
  const Verdict refuted = verify(program("add x, x"), program("mul x, x"), quick());
  EXPECT_TRUE(refuted.refuted());
  EXPECT_EQ(refuted.text().find("refuted"), 0u) << refuted.text();
  EXPECT_EQ(error_of([&] { refuted.certificate(); }).first, ErrorKind::Usage);
  Options wrong = quick();
  wrong.level = "exactly";
  EXPECT_EQ(error_of([&] { verify(program("add x, x"), program("add x, x"), wrong); }).first,
            ErrorKind::Usage);
}

TEST(PublicApi, FunctionsRunOnArraysOfTheCallers) {
  Options options = quick();
  int told = 0;
  options.progress = [&](const std::string& stage, double best) {
    told += stage != "" && best >= 1;
  };
  const auto result = optimize(program("add x, w"), options);
  EXPECT_GT(told, 0);
  const Function f = result.function();
  std::vector<float> x = {1, 2, 3, 4, 5, 6}, w(6, 10), y(6), exact(6);
  f.run({{x, {2, 3}}, {w, {2, 3}}}, {{y, {2, 3}}});
  result.graph().interpret({{x, {2, 3}}, {w, {2, 3}}}, {{exact, {2, 3}}});
  EXPECT_EQ(y, exact);
  EXPECT_EQ(y[5], 16);
  const auto weights = f.prepare({{x, {2, 3}}, {w, {2, 3}}});
  x[0] = 7;
  f.run({{x, {2, 3}}, {w, {2, 3}}}, {{y, {2, 3}}}, &weights);
  EXPECT_EQ(y[0], 17);
  EXPECT_FALSE(f.source().empty());
  EXPECT_EQ(result.improved() ? result.certificate().proved() : true, true);
  // Weights of another function.
  const Function other = optimize(program("mul x, w"), quick()).function();
  EXPECT_EQ(error_of([&] {
              other.run({{x, {2, 3}}, {w, {2, 3}}}, {{y, {2, 3}}}, &weights);
            }).first,
            ErrorKind::Usage);
}

TEST(PublicApi, ArraysThatDoNotFitAreRefused) {
  const Graph g = program("add x, w");
  std::vector<float> x(6), y(6);
  std::vector<double> wide(6);
  const auto said = [&](auto f) {
    const auto [kind, what] = error_of(f);
    EXPECT_EQ(kind, ErrorKind::BadInput) << what;
    return what;
  };
  EXPECT_EQ(said([&] {
              g.interpret({{x, {2, 3}}}, {{y, {2, 3}}});
            }),
            "1 inputs were given; give 2");
  EXPECT_EQ(said([&] {
              g.interpret({{x, {2, 3}}, {wide, {2, 3}}}, {{y, {2, 3}}});
            }),
            "input 1 is f64[2,3]; give f32[2,3]");
  EXPECT_EQ(said([&] {
              g.interpret({{x, {2, 3}}, {x, {2, 3}}}, {{y, {3, 2}}});
            }),
            "output 0 is f32[3,2]; give f32[2,3]");
  EXPECT_EQ(said([&] {
              g.interpret({{x, {2, 4}}, {x, {2, 3}}}, {{y, {2, 3}}});
            }),
            "6 elements were given for a shape of 8");
  EXPECT_EQ(said([&] {
              g.interpret({{nullptr, {DType::F32, {2, 3}}}, {x, {2, 3}}}, {{y, {2, 3}}});
            }),
            "input 0 is a null pointer");
  EXPECT_EQ(said([&] {
              g.interpret({{x.data(), {DType(77), {2, 3}}}, {x, {2, 3}}}, {{y, {2, 3}}});
            }),
            "input 0 has no known dtype");
  EXPECT_EQ(said([&] {
              tessera::require_elements(0, {int64_t{1} << 32, int64_t{1} << 32});
            }),
            "0 elements were given for a shape of more than there can be");
  const Graph any = program("add x, w", "f64[N,3]");
  EXPECT_EQ(said([&] { any.with_sizes({{"Q", 4}}); }), "the program has no size Q");
  EXPECT_EQ(said([&] { any.with_sizes({{"N", 4}, {"N", 5}}); }), "N is given twice");
}

TEST(PublicApi, OptionsThatMeanNothingAreRefused) {
  const Graph g = program("add x, w");
  const auto kind = [&](auto change) {
    Options o;
    change(o);
    return std::pair(error_of([&] { verify(g, g, o); }).first,
                     error_of([&] { optimize(g, o); }).first);
  };
  const std::pair usage(ErrorKind::Usage, ErrorKind::Usage);
  EXPECT_EQ(kind([](Options& o) { o.threads = 100000; }), usage);
  EXPECT_EQ(kind([](Options& o) { o.budget_seconds = -1; }), usage);
  EXPECT_EQ(kind([](Options& o) { o.budget_seconds = NAN; }), usage);
  EXPECT_EQ(kind([](Options& o) { o.rule_folders = {"/there/is/none"}; }).first,
            ErrorKind::NotFound);
  EXPECT_EQ(kind([](Options& o) { o.target = "h100"; }).second, ErrorKind::Usage);
}

}  // namespace
