#include "cost/fit.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/rng.h"
#include "cost/analytical.h"
#include "ir/text.h"
#include "places.h"

namespace tessera {
namespace {

GpuTimes kernel(double chain, double memory, double compute) {
  GpuTimes t;
  t.launch = 1.3e-6;
  t.first_load = 0.7e-6;
  t.chain = chain;
  t.memory = memory;
  t.compute = compute;
  t.seconds = t.scaled({});
  return t;
}

// Kernels in which each term decides now and then.
std::vector<MeasuredKernels> rows(const Scales& truth, double noise, uint64_t seed) {
  Rng rng(seed);
  std::vector<MeasuredKernels> out;
  for (int i = 0; i < 60; ++i) {
    MeasuredKernels r;
    const int n = 1 + int(rng.below(3));
    for (int k = 0; k < n; ++k) {
      auto us = [&] { return 1e-6 * std::exp2(6 * rng.unit() - 1); };
      r.kernels.push_back(kernel(us(), us(), us()));
    }
    r.seconds = r.modelled(truth) * (1 + noise * (2 * rng.unit() - 1));
    out.push_back(std::move(r));
  }
  return out;
}

TEST(Fit, RowsAreKeptAsText) {
  const auto all = rows({}, 0.1, 7);
  const auto back = read_rows(print_rows(all));
  EXPECT_TRUE(read_rows(print_rows(all) + "nonsense").empty());
  ASSERT_EQ(back.size(), all.size());
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_NEAR(back[i].seconds, all[i].seconds, 1e-8 * all[i].seconds);
    const Scales other{1.1, 0.9, 1.3, 0.7};
    EXPECT_NEAR(back[i].modelled(other), all[i].modelled(other), 1e-8 * all[i].modelled(other));
  }
}

TEST(Fit, KernelsOfAProgramAreThoseOfTheModel) {
  const Target target = find_target("h100", source_dir() + "/targets");
  const Graph g =
      parse("graph g {\nX = input : f16[16,4096]\nW = input : f16[4096,4096]\nP = matmul X, W\n"
            "O = exp P\nreturn O\n}");
  Target scaled = target;
  scaled.scale.memory = 3;  // does not show: fits begin without
  const auto kernels = modelled_kernels(g, scaled, [](const LibraryCall&) { return true; });
  ASSERT_EQ(kernels.size(), 2u);
  MeasuredKernels row{kernels, 1};
  EXPECT_NEAR(row.modelled({}), AnalyticalModel(target).cost(g).seconds, 1e-12);
  // By a kernel of one's own, the product is another row.
  const auto own = modelled_kernels(g, target, [](const LibraryCall&) { return false; });
  EXPECT_NE(own[0].seconds, kernels[0].seconds);
  EXPECT_EQ(own[1].seconds, kernels[1].seconds);
}

TEST(Fit, FindsTheFactorsThatMadeTheMeasurements) {
  const Scales truth{1.6, 0.7, 1.3, 2.1};
  const Fit exact = fit_scales(rows(truth, 0, 1));
  EXPECT_NEAR(exact.scales.launch, 1.6, 0.05);
  EXPECT_NEAR(exact.scales.latency, 0.7, 0.02);
  EXPECT_NEAR(exact.scales.memory, 1.3, 0.02);
  EXPECT_NEAR(exact.scales.compute, 2.1, 0.02);
  EXPECT_LT(exact.error, 0.01);
  EXPECT_GT(exact.error_before, 0.2);
  EXPECT_GT(exact.rank, 0.999);
  EXPECT_GT(exact.rank, exact.rank_before);
  const Fit noisy = fit_scales(rows(truth, 0.1, 2));
  EXPECT_NEAR(noisy.scales.memory, 1.3, 0.15);
  EXPECT_LT(noisy.error, 0.08);
  EXPECT_EQ(noisy.rows, 60);
}

TEST(Fit, LeavesAloneWhatNothingDependsOn) {
  std::vector<MeasuredKernels> out;
  for (double m : {20e-6, 40e-6, 80e-6}) {
    MeasuredKernels r;
    r.kernels.push_back(kernel(0, m, 0));
    r.seconds = r.modelled({1, 1, 1.2, 1});
    out.push_back(r);
  }
  const Fit f = fit_scales(out);
  EXPECT_NEAR(f.scales.memory, 1.2, 0.02);
  EXPECT_NEAR(f.scales.compute, 1, 1e-6);
}

TEST(Fit, BadRowsAreLeftOut) {
  std::vector<MeasuredKernels> r = rows({}, 0, 3);
  r[0].seconds = 0;
  r[1].seconds = NAN;
  r[2].seconds = INFINITY;
  r[3].kernels.clear();
  const Fit f = fit_scales(r);
  EXPECT_EQ(f.rows, 56);
  EXPECT_LT(f.error, 1e-6);
  EXPECT_EQ(fit_scales({}).rows, 0);
  EXPECT_EQ(fit_scales({}).scales.memory, 1);
}

TEST(Fit, FactorsStayWithinReason) {
  std::vector<MeasuredKernels> r = rows({}, 0, 4);
  for (MeasuredKernels& m : r) m.seconds *= 1000;
  const Fit f = fit_scales(r);
  for (double s : {f.scales.launch, f.scales.latency, f.scales.memory, f.scales.compute}) {
    EXPECT_GE(s, 0.2);
    EXPECT_LE(s, 5);
  }
}

TEST(RankCorrelation, IsSpearmans) {
  const std::vector<double> a{1, 2, 3, 4, 5};
  EXPECT_NEAR(rank_correlation(a, std::vector<double>{10, 20, 30, 40, 1000}), 1, 1e-12);
  EXPECT_NEAR(rank_correlation(a, std::vector<double>{5, 4, 3, 2, 1}), -1, 1e-12);
  // 1 - 6·Σd²/(n(n²-1)) with d = 0 1 1 0 0
  EXPECT_NEAR(rank_correlation(a, std::vector<double>{1, 3, 2, 4, 5}), 0.9, 1e-12);
  // Ties share ranks 1 and 2: 0.5·…
  EXPECT_NEAR(rank_correlation(std::vector<double>{1, 2, 2, 3}, std::vector<double>{1, 2, 3, 4}),
              4.5 / std::sqrt(4.5 * 5), 1e-12);
  EXPECT_EQ(rank_correlation(std::vector<double>{1, 1}, std::vector<double>{1, 2}), 0);
  EXPECT_EQ(rank_correlation(std::vector<double>{1}, std::vector<double>{1}), 0);
}

}  // namespace
}  // namespace tessera
