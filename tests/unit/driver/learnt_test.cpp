// What searches found is found again by its meaning, and what they did not find is not searched
// again.
#include "driver/learnt.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/folder.h"
#include "ir/text.h"

namespace tessera {
namespace {

const char* kSoftmax = R"(graph a {
  X = input : f32[24,96]
  e = exp X
  s = sum e {axes=[1], keepdims=true}
  y = div e, s
  return y
})";
const char* kTwin = R"(graph b {
  logits = input : f32[24,96]
  e = exp logits
  s = sum e {axes=[1], keepdims=true}
  one = const {value=1} : f32[]
  r = div one, s
  out = mul r, e
  return out
})";

class LearntKernelsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char pattern[] = "/tmp/tessera-test-XXXXXX";
    directory_ = mkdtemp(pattern);
    setenv("TESSERA_CACHE_DIR", directory_.c_str(), 1);
  }
  void TearDown() override {
    unsetenv("TESSERA_CACHE_DIR");
    std::filesystem::remove_all(directory_);
  }
  LearntKernels learnt(const OptimizeOptions& o = {}) {
    return LearntKernels(cache(), o, resolve_target(o));
  }
  Cache& cache() {
    if (!cache_) cache_.emplace();
    return *cache_;
  }
  std::vector<std::string> files(const std::string& extension) {
    return files_of(directory_ + "/learnt", extension);
  }
  std::string directory_;
  std::optional<Cache> cache_;
};

TEST_F(LearntKernelsTest, AFailedSearchIsRememberedByMeaningOptionsAndBudget) {
  const Graph program = parse(kSoftmax);
  learnt().remember(program, nullptr, 2, false, "");
  const auto known = learnt().recall(parse(kTwin), 2);
  ASSERT_TRUE(known);
  EXPECT_FALSE(known->graph);
  EXPECT_NE(known->note.find("nothing faster"), std::string::npos);
  EXPECT_FALSE(learnt().recall(program, 4)) << "more time may find something";
  EXPECT_TRUE(learnt().recall(program, 1));
  OptimizeOptions other;
  other.max_block_ops = 5;
  EXPECT_FALSE(learnt(other).recall(program, 1));
  OptimizeOptions refresh;
  refresh.refresh = true;
  EXPECT_FALSE(learnt(refresh).recall(program, 1));
  OptimizeOptions resume;
  resume.resume = true;
  EXPECT_FALSE(learnt(resume).recall(program, 1)) << "a search that was cut short goes on";
  OptimizeOptions off;
  off.disable = {"learnt"};
  EXPECT_FALSE(learnt(off).recall(program, 1));
  learnt().remember(program, nullptr, 2, true, "");
  EXPECT_TRUE(learnt().recall(program, 400)) << "all of it was searched";
}

TEST_F(LearntKernelsTest, WhatIsDamagedIsAbsent) {
  const Graph program = parse(kSoftmax);
  learnt().remember(program, nullptr, 2, true, "");
  ASSERT_EQ(files(".search").size(), 1u);
  const std::string path = files(".search")[0], text = *read_file(path);
  std::string other = text;
  other[text.find('\n') + 1] = '9';  // seconds
  for (const std::string& damaged :
       {other, text.substr(0, text.size() - 3), std::string("tessera learnt"), std::string(),
        text + "x", std::string("\0\n\xff", 3)}) {
    std::ofstream(path, std::ios::binary) << damaged;
    EXPECT_FALSE(learnt().recall(program, 1)) << damaged;
  }
}

TEST_F(LearntKernelsTest, OldOnesGo) {
  const std::string folder = learnt_folder(cache());
  for (size_t i = 0; i < kMostLearnt + 5; i++)
    std::ofstream(folder + "/" + std::to_string(i) + ".search") << "old";
  learnt().remember(parse(kSoftmax), nullptr, 2, true, "");
  EXPECT_EQ(files(".search").size(), kMostLearnt);
  EXPECT_TRUE(learnt().recall(parse(kSoftmax), 1)) << "the newest stays";
}

// The whole way: one program is searched, its twin is not; with the pattern its record goes.
TEST_F(LearntKernelsTest, AnotherProgramTakesTheKernelWithoutASearch) {
  OptimizeOptions o;
  o.verify_seed = 7;
  o.threads = 2;
  o.budget_seconds = 2;
  const OptimizeResult first = optimize(parse(kSoftmax), o);
  ASSERT_TRUE(first.improved);
  ASSERT_GT(first.report.searches.at(0).values, 0);
  ASSERT_EQ(files(".pattern").size(), 1u);
  const OptimizeResult second = optimize(parse(kTwin), o);
  EXPECT_EQ(second.report.searches.at(0).values, 0);
  EXPECT_NE(second.report.searches.at(0).detail.find("pattern learnt-"), std::string::npos);
  EXPECT_TRUE(second.improved);
  EXPECT_TRUE(second.certificate);
  std::filesystem::remove(files(".pattern")[0]);
  EXPECT_FALSE(learnt(o).recall(parse(kTwin), 1));
}

}  // namespace
}  // namespace tessera
