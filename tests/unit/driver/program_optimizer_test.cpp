#include "driver/program_optimizer.h"

#include <gtest/gtest.h>

#include "driver/linear_parts.h"
#include "driver/own_cache.h"
#include "ir/text.h"
#include "ir/validate.h"

namespace tessera {
namespace {

// Two layers of a film: 3-D convolutions are computed directly, images by Winograd's transforms.
// What is between them has no order, so that few draws prove it.
// Windows along frames alone (as R(2+1)D has them), which have transforms as windows of images.
const char* kFilm = R"(graph film {
  x = input : f32[1,32,12,16,16]
  w = input {weight=true} : f32[32,32,3,1,1]
  v = input {weight=true} : f32[32,32,3,1,1]
  u = input {weight=true} : f32[32,1,1,1]
  a = conv x, w {low=[1,0,0], high=[1,0,0]}
  b = add a, u
  c = neg b
  d = conv c, v {low=[1,0,0], high=[1,0,0]}
  e = neg d
  return e
})";

std::vector<size_t> counts(const std::vector<Part>& parts) {
  std::vector<size_t> n;
  for (const Part& p : parts) n.push_back(p.ops.size());
  return n;
}

TEST(LinearParts, CutsWhereOperatorsAreElementByElement) {
  const std::vector<Part> parts = linear_parts(parse(kFilm));
  ASSERT_EQ(parts.size(), 2u);
  for (const Part& p : parts) {
    EXPECT_NO_THROW(validate(p.graph));
    EXPECT_EQ(p.graph.producer(p.graph.outputs()[0]).kind, OpKind::Conv);
    EXPECT_TRUE(p.graph.is_weight(p.graph.inputs()[1]));
  }
}

TEST(LinearParts, SiblingsAreAlsoOneSubprogram) {
  const Graph g = parse(R"(graph g {
    x = input : f32[1,16,8,8]
    w = input {weight=true} : f32[4,16,1,1]
    v = input {weight=true} : f32[8,16,1,1]
    u = input {weight=true} : f32[8,16,3,3]
    p = input : f32[8,16,1,1]
    a = conv x, w
    b = conv x, v
    c = conv x, u {low=[1,1], high=[1,1]}
    d = conv x, p
    r = relu a
    return r, b, c, d
  })");
  // Four alone, the two whose weights have one window, and the three whose results are alike; what
  // is no weight has other values in every call.
  std::vector<size_t> n = counts(linear_parts(g));
  std::sort(n.begin(), n.end());
  EXPECT_EQ(n, (std::vector<size_t>{1, 1, 1, 1, 2, 3}));
  n = counts(linear_parts(g, 4, 2));  // and all pairs of the three
  std::sort(n.begin(), n.end());
  EXPECT_EQ(n, (std::vector<size_t>{1, 1, 1, 1, 2, 2, 2, 3}));
}

TEST(LinearParts, ChainsStayWholeAndConvex) {
  // y·A·B is one subprogram; where somebody else reads the middle, two.
  const Graph one = parse(R"(graph g {
    y = input : f32[8,8]
    a = input {weight=true} : f32[8,8]
    b = input {weight=true} : f32[8,8]
    m = matmul y, a
    t = transpose m {perm=[1,0]}
    n = matmul t, b
    s = transpose n {perm=[1,0]}
    return s })");
  EXPECT_EQ(counts(linear_parts(one)), (std::vector<size_t>{3}));
  EXPECT_EQ(counts(linear_parts(one, 4, 1)), (std::vector<size_t>{1, 3, 1}));
  const Graph two = parse(R"(graph g {
    y = input : f32[8,8]
    a = input {weight=true} : f32[8,8]
    m = matmul y, a
    e = exp m
    n = matmul m, e
    return n })");
  EXPECT_EQ(counts(linear_parts(two)), (std::vector<size_t>{1, 1}));
}

TEST(LinearParts, ScalesBetweenOperatorsBelongToThem) {
  const Graph g = parse(R"(graph g {
    x = input : f32[1,8,6,6]
    w = input {weight=true} : f32[8,8,1,1]
    n = const {value=9} : f32[]
    s = pool_sum x {size=[3,3], low=[1,1], high=[1,1]}
    m = div s, n
    y = conv m, w
    t = pool_sum y {size=[2,2], strides=[2,2]}
    o = div t, n
    return o })");
  // The average, the convolution that reads it, the constant, and what is summed after it; and the
  // convolution with each of its neighbours.
  const std::vector<Part> parts = linear_parts(g);
  for (const Part& p : parts) EXPECT_NO_THROW(validate(p.graph));
  std::vector<size_t> n = counts(parts);
  std::sort(n.begin(), n.end());
  EXPECT_EQ(n, (std::vector<size_t>{2, 4, 5}));
}

class Mutated : public OwnCache {
 protected:
  void SetUp() override {
    OwnCache::SetUp();
    options_.threads = 1;
    // One step of the engine, and no other engines: what is tested is what becomes of it.
    options_.disable = {"mugraph", "synth", "mutate:rearrange", "mutate:matmul", "mutate:bundles"};
  }
  OptimizeOptions options_ = test_options();
};

TEST_F(Mutated, FilmsBecomeImagesInEveryLayer) {
  const Graph film = parse(kFilm);
  const std::function<void(const Progress&)> nothing;
  Session session(options_, nothing, nullptr, nullptr);
  ProgramOptimizer optimizer(session, film, false);
  optimizer.propose(20, 20);
  ASSERT_EQ(session.report.subprograms.size(), 1u);  // both layers are equal
  const SubprogramReport& told = session.report.subprograms[0];
  EXPECT_EQ(told.times, 2);
  EXPECT_GT(told.alternatives.size(), 0u);
  EXPECT_GT(told.rounds, 1);  // mutants of mutants
  ASSERT_TRUE(optimizer.offers()) << told.verdict;
  const auto chosen = optimizer.choose({}, {});
  ASSERT_TRUE(chosen.has_value()) << told.verdict;
  EXPECT_NO_THROW(validate(*chosen));
  EXPECT_EQ(told.chosen, 2);
  for (const Op& op : chosen->ops())
    if (op.kind == OpKind::Conv) {
      EXPECT_EQ(chosen->type(op.result()).shape.size(), 4u) << print(*chosen);
    }
  EXPECT_LT(session.report.cover->expected_s, session.report.cover->original_s);
  Verifier verifier(film, session.verify_options());
  Outcome o;
  o.graph = *chosen;
  EXPECT_TRUE(session.prove(verifier, o).has_value()) << o.why << "\n" << print(*chosen);
  // In its place every mutant has copies around it, so that each is a region of its own.
  const auto by_places = session.prove(verifier, o, &optimizer.in_place());
  ASSERT_TRUE(by_places.has_value()) << o.why << "\n" << print(optimizer.in_place());
  EXPECT_FALSE(by_places->certificate().between.empty());
  VerifyOptions at_leisure = session.verify_options();
  at_leisure.cancel = nullptr;
  const Recheck again = recheck(by_places->certificate(), film, *chosen, at_leisure);
  EXPECT_TRUE(again.ok) << again.what;
  const auto is_proven = [](const auto& a) { return a.proven; };
  EXPECT_TRUE(std::none_of(told.alternatives.begin(), told.alternatives.end(), is_proven));
  optimizer.accept();
  EXPECT_TRUE(std::any_of(told.alternatives.begin(), told.alternatives.end(), is_proven));
}

TEST_F(Mutated, IsSwitchedOffByName) {
  OptimizeOptions o = options_;
  o.disable.insert("mutate");
  o.budget_seconds = 5;
  const OptimizeResult off = optimize(parse(R"(graph g {
    x = input : f32[1,4,8,8]
    w = input {weight=true} : f32[4,4,3,3]
    y = conv x, w
    return y })"),
                                      o);
  EXPECT_TRUE(off.report.subprograms.empty());
  EXPECT_FALSE(off.report.cover.has_value());
}

TEST_F(Mutated, SaysSoWhereNothingGains) {
  const Graph product = parse(R"(graph g {
    x = input : f32[16,16]
    w = input {weight=true} : f32[16,16]
    m = matmul x, w
    r = relu m
    return r })");
  const std::function<void(const Progress&)> nothing;
  Session session(options_, nothing, nullptr, nullptr);
  ProgramOptimizer optimizer(session, product);
  EXPECT_TRUE(optimizer.propose(5, 5));
  EXPECT_FALSE(optimizer.offers());
  EXPECT_FALSE(optimizer.choose({}, {}).has_value());
  ASSERT_EQ(session.report.subprograms.size(), 1u);
  EXPECT_EQ(session.report.subprograms[0].verdict.substr(0, 12), "not searched");
}

}  // namespace
}  // namespace tessera
