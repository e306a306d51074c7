#include "plan/plan.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/rng.h"
#include "ir/text.h"
#include "plan/plain_plan.h"

namespace tessera {
namespace {

TEST(Memory, BuffersThatNeverMeetShare) {
  const MemoryPlan p = plan_memory({{"a", 100, 0, 1}, {"b", 100, 2, 3}, {"c", 50, 1, 2}});
  EXPECT_EQ(p.lower_bound, 192);
  EXPECT_EQ(p.bytes, 192);
  EXPECT_TRUE(p.optimal());
}

// Smallest arena by trying every order of placement at every lowest offset.
int64_t brute_force(const std::vector<MemoryRequest>& requests) {
  std::vector<size_t> order(requests.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  int64_t best = INT64_MAX;
  do {
    std::vector<int64_t> at(requests.size(), -1);
    int64_t top = 0;
    for (size_t i : order) {
      const int64_t size = (requests[i].bytes + 63) / 64 * 64;
      for (int64_t o = 0;; o += 64) {
        bool fits = true;
        for (size_t j = 0; j < at.size(); ++j) {
          if (at[j] < 0 || requests[i].death < requests[j].birth ||
              requests[j].death < requests[i].birth)
            continue;
          const int64_t other = (requests[j].bytes + 63) / 64 * 64;
          fits = fits && (o + size <= at[j] || at[j] + other <= o);
        }
        if (!fits) continue;
        at[i] = o;
        top = std::max(top, o + size);
        break;
      }
    }
    best = std::min(best, top);
  } while (std::next_permutation(order.begin(), order.end()));
  return best;
}

TEST(Memory, CloseToBruteForce) {
  Rng rng(7);
  int64_t bytes = 0, least = 0;
  for (int trial = 0; trial < 200; ++trial) {
    std::vector<MemoryRequest> requests;
    for (int i = 0; i < 6; ++i) {
      const int birth = static_cast<int>(rng.below(8));
      requests.push_back({"b", 64 * static_cast<int64_t>(1 + rng.below(5)), birth,
                          birth + static_cast<int>(rng.below(4))});
    }
    const MemoryPlan p = plan_memory(requests);
    const int64_t best = brute_force(requests);
    EXPECT_GE(best, p.lower_bound);
    EXPECT_GE(p.bytes, best);
    bytes += p.bytes;
    least += best;
  }
  EXPECT_LT(static_cast<double>(bytes), 1.01 * static_cast<double>(least));
}

TEST(Memory, LargeProblemsStayValidAndClose) {
  Rng rng(3);
  std::vector<MemoryRequest> requests;
  for (int i = 0; i < 300; ++i) {
    const int birth = static_cast<int>(rng.below(500));
    requests.push_back({"b" + std::to_string(i), static_cast<int64_t>(1 + rng.below(100000)), birth,
                        birth + static_cast<int>(rng.below(40))});
  }
  const MemoryPlan p = plan_memory(requests);  // checks itself for overlaps
  EXPECT_LT(static_cast<double>(p.bytes), 1.3 * static_cast<double>(p.lower_bound));
}

TEST(MemoryDeath, OverlapsAreFound) {
  const std::vector<MemoryRequest> requests = {{"a", 100, 0, 2}, {"b", 100, 1, 3}};
  MemoryPlan p = plan_memory(requests);
  p.offsets[1] = p.offsets[0];
  EXPECT_DEATH(check_memory_plan(requests, p), "overlaps");
}

// Two wide intermediates whose order decides whether they are alive together.
const char* const kWide = R"(graph g {
  X = input : f32[8,1000]
  a = exp X : f32[8,1000]
  b = sqr X : f32[8,1000]
  c = neg X : f32[8,1000]
  p = sum a {axes=[1]} : f32[8]
  q = sum b {axes=[1]} : f32[8]
  r = sum c {axes=[1]} : f32[8]
  s = add p, q : f32[8]
  t = add s, r : f32[8]
  return t
}
)";

TEST(Plan, PlacesAliasesAndConstants) {
  const Graph g = parse(R"(graph g {
  X = input : f32[6,4]
  c = const {value=2} : f32[]
  d = const {value=3} : f32[4,5]
  e = exp X : f32[6,4]
  r = reshape e {shape=[24]} : f32[24]
  m = mul r, c : f32[24]
  n = reshape m {shape=[6,4]} : f32[6,4]
  y = matmul n, d : f32[6,5]
  u = neg X : f32[6,4]
  return y, y, X
}
)");
  const Plan p = plan_kernel_graph(g);
  EXPECT_EQ(p.tasks.size(), 3u);  // exp, mul, matmul: reshapes only rename, u is dead
  EXPECT_EQ(p.copies.size(), 2u);
  EXPECT_EQ(p.arena.bytes, 128);  // m lies where e was, 96 bytes rounded up
  EXPECT_EQ(p.in_place, 1);
  EXPECT_NE(p.str(g).find("tensor r f32[24] is e"), std::string::npos);
  EXPECT_NE(p.str(g).find("constant"), std::string::npos);
}

// A constant that is a result is written to the caller's array at each call: what follows from it
// is not there once per set of weights.
TEST(Plan, ConstantResultsAreNoWeights) {
  const Graph g = parse(R"(graph g {
  W = input {weight=true} : f32[3,16]
  c = const {value=0} : f32[4,3,16]
  s = slice c {starts=[0,0,0], stops=[1,3,16], steps=[1,1,1]} : f32[1,3,16]
  r = reshape s {shape=[3,16]} : f32[3,16]
  y = add W, r : f32[3,16]
  return c, y
}
)");
  PlanOptions options;
  options.weights = true;
  const Plan p = plan_kernel_graph(g, options);  // checks itself
  for (const Task& t : p.tasks) EXPECT_FALSE(t.once) << p.str(g);
}

// What the caller gets under other names is made in the caller's array; what several results share,
// or what is nobody's work, is copied.
TEST(Plan, ResultsUnderOtherNamesAreMadeInPlace) {
  const Graph g = parse(R"(graph g {
  X = input : f32[6,4]
  e = exp X : f32[6,4]
  r = reshape e {shape=[24]} : f32[24]
  s = reshape r {shape=[3,8]} : f32[3,8]
  n = neg X : f32[6,4]
  t = reshape n {shape=[24]} : f32[24]
  u = reshape n {shape=[4,6]} : f32[4,6]
  v = reshape X {shape=[24]} : f32[24]
  return s, t, u, v
}
)");
  const Plan p = plan_kernel_graph(g);        // checks itself
  EXPECT_EQ(p.tasks.size(), 4u) << p.str(g);  // exp, neg, t or u, v
  EXPECT_EQ(p.arena.bytes, 0);
  EXPECT_NE(p.str(g).find("tensor e f32[6,4] output 0"), std::string::npos) << p.str(g);
}

}  // namespace
}  // namespace tessera
