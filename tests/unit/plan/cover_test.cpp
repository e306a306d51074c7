#include "plan/cover.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "base/rng.h"

namespace tessera {
namespace {

CoverOptions built_in() {
  CoverOptions o;
  o.highs = false;
  return o;
}

// The least cost of any set of kernels that runs, by trying all.
double by_force(const CoverProblem& p) {
  double best = 1e30;
  for (unsigned set = 0; set < (1u << p.kernels.size()); set++) {
    std::vector<bool> there(p.values, false);
    for (const size_t v : p.given) there[v] = true;
    double seconds = 0;
    std::vector<size_t> left;
    for (size_t k = 0; k < p.kernels.size(); k++)
      if (set & (1u << k)) {
        left.push_back(k);
        seconds += p.kernels[k].seconds;
      }
    for (bool moved = true; moved;) {
      moved = false;
      for (auto it = left.begin(); it != left.end(); ++it) {
        const auto& k = p.kernels[*it];
        if (!std::all_of(k.inputs.begin(), k.inputs.end(), [&](size_t v) { return there[v]; }))
          continue;
        for (const size_t v : k.outputs) there[v] = true;
        left.erase(it);
        moved = true;
        break;
      }
    }
    if (left.empty() &&
        std::all_of(p.wanted.begin(), p.wanted.end(), [&](size_t v) { return there[v]; }))
      best = std::min(best, seconds);
  }
  return best;
}

TEST(Cover, RearrangementsBetweenTwoKernelsCancel) {
  // 0 → 1 → 2 as written for 10 each; rearranged (values 3, 4, 5) for 4 each, copies cost 5.
  CoverProblem p;
  p.values = 6;
  p.given = {0};
  p.wanted = {2};
  p.kernels = {{{0}, {1}, 10}, {{1}, {2}, 10}, {{3}, {4}, 4}, {{4}, {5}, 4}};
  for (const size_t v : {0, 1, 2}) {
    p.kernels.push_back({{v}, {v + 3}, 5, true});
    p.kernels.push_back({{v + 3}, {v}, 5, true});
  }
  const Cover c = choose_cover(p, {0, 1}, built_in());
  EXPECT_DOUBLE_EQ(c.seconds, 18);  // one kernel alone would cost 10 + 4 + 10
  EXPECT_TRUE(c.proved);
  EXPECT_EQ(c.kernels.size(), 4u);
  EXPECT_EQ(c.kernels[1], 2u);  // in an order that runs
}

TEST(Cover, WhatAllSolutionsComputeCutsTheProblem) {
  CoverProblem p;
  p.values = 5;
  p.given = {0};
  p.wanted = {4};
  for (size_t v = 0; v < 4; v++)
    for (const double s : {3.0, 2.0}) p.kernels.push_back({{v}, {v + 1}, s});
  const Cover c = choose_cover(p, {0, 2, 4, 6}, built_in());
  EXPECT_DOUBLE_EQ(c.seconds, 8);
  EXPECT_EQ(c.pieces, 4u);
  EXPECT_EQ(c.kernels, (std::vector<size_t>{1, 3, 5, 7}));
}

TEST(Cover, AValueMayBeComputedTwice) {
  // Two fused kernels that both compute value 1 inside cost less than storing it.
  CoverProblem p;
  p.values = 4;
  p.given = {0};
  p.wanted = {2, 3};
  p.kernels = {{{0}, {1}, 2}, {{1}, {2}, 3}, {{1}, {3}, 3}, {{0}, {2}, 3}, {{0}, {3}, 3}};
  const Cover c = choose_cover(p, {0, 1, 2}, built_in());
  EXPECT_DOUBLE_EQ(c.seconds, 6);
  EXPECT_EQ(c.kernels, (std::vector<size_t>{3, 4}));
}

TEST(Cover, NoValueIsComputedFromItself) {
  // 1 from 2 and 2 from 1 cost nothing, and lead nowhere.
  CoverProblem p;
  p.values = 4;
  p.given = {0};
  p.wanted = {3};
  p.kernels = {{{0}, {1}, 5}, {{1}, {2}, 0}, {{2}, {1}, 0}, {{1, 2}, {3}, 1}};
  const Cover c = choose_cover(p, {0, 1, 3}, built_in());
  EXPECT_DOUBLE_EQ(c.seconds, 6);
  EXPECT_TRUE(c.proved);
  EXPECT_THROW(choose_cover(p, {1, 3}, built_in()), Error);
}

TEST(Cover, IsTheLeastOfAll) {
  for (uint64_t seed = 0; seed < 60; seed++) {
    Rng rng(seed);
    CoverProblem p;
    p.values = 7;
    p.given = {0};
    p.wanted = {5, 6};
    std::vector<size_t> known;
    for (size_t v = 1; v < p.values; v++) {  // one kernel for each, as a program has them
      known.push_back(p.kernels.size());
      p.kernels.push_back({{rng.below(v)}, {v}, double(1 + rng.below(9))});
    }
    for (int i = 0; i < 6; i++) {
      CoverKernel k;
      k.inputs = {rng.below(p.values)};
      if (rng.below(2)) k.inputs.push_back(rng.below(p.values));
      k.outputs = {1 + rng.below(p.values - 1)};
      if (rng.below(2)) k.outputs.push_back(1 + rng.below(p.values - 1));
      k.seconds = double(rng.below(12));
      p.kernels.push_back(k);
    }
    const Cover c = choose_cover(p, known, built_in());
    EXPECT_TRUE(c.proved) << seed;
    EXPECT_DOUBLE_EQ(c.seconds, by_force(p)) << seed;
    if (highs_version()) {
      EXPECT_DOUBLE_EQ(choose_cover(p, known).seconds, c.seconds) << seed;
    }
  }
}

}  // namespace
}  // namespace tessera
