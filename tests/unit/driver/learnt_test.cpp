// What searches found is found again by its meaning, and what they did not find is not searched
// again.
#include "driver/learnt.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "backend/cache.h"
#include "base/entries.h"
#include "base/folder.h"
#include "driver/own_cache.h"
#include "ir/text.h"
#include "search/patterns/pattern.h"

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

class LearntKernelsTest : public OwnCache {
 protected:
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
  ASSERT_EQ(files(".entry").size(), 1u);
  const std::string path = files(".entry")[0], text = *read_file(path);
  std::string other = text;
  other[text.find("seconds ") + 8] = '9';  // seconds
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
    std::ofstream(folder + "/" + std::to_string(i) + ".entry") << "old";
  learnt().remember(parse(kSoftmax), nullptr, 2, true, "");
  EXPECT_EQ(files(".entry").size(), kMostLearnt);
  EXPECT_TRUE(learnt().recall(parse(kSoftmax), 1)) << "the newest stays";
}

// The whole way: one program is searched, its twin is not; with the pattern its record goes.
TEST_F(LearntKernelsTest, AnotherProgramTakesTheKernelWithoutASearch) {
  OptimizeOptions o = test_options(20);
  o.disable = {"plan:fuse"};  // so that there is something to find: fused, it is one kernel
  const OptimizeResult first = optimize(parse(kSoftmax), o);
  ASSERT_TRUE(first.improved());
  ASSERT_GT(first.report.searches.at(0).values, 0);
  ASSERT_EQ(files(".pattern").size(), 1u);
  const OptimizeResult second = optimize(parse(kTwin), o);
  EXPECT_EQ(second.report.searches.at(0).values, 0);
  EXPECT_NE(second.report.searches.at(0).detail.find("pattern learnt-"), std::string::npos);
  EXPECT_TRUE(second.improved());
  EXPECT_TRUE(second.certificate());
  std::filesystem::remove(files(".pattern")[0]);
  EXPECT_FALSE(learnt(o).recall(parse(kTwin), 1));
}

// Runs `work` in a process of its own.
template <class Work> pid_t in_process(const Work& work) {
  const pid_t child = fork();
  if (child != 0) return child;
  work();
  _exit(0);
}

// What one process writes, another removes and a third reads: whole or not at all.
TEST_F(LearntKernelsTest, ProcessesShareTheFolder) {
  const Graph program = parse(kSoftmax);
  // The kernel of a search, short of one: what is learnt need not be fast.
  const Graph found = parse(kTwin);
  const std::string folder = learnt_folder(cache());
  constexpr int kRounds = 60;
  const auto learns = [&](int64_t first) {
    for (int i = 0; i < kRounds; i++)
      learnt().remember(program, i % 2 ? &found : nullptr, double(first + i), true, "a test");
  };
  std::vector<pid_t> children = {in_process([&] { learns(1); }), in_process([&] { learns(1000); }),
                                 in_process([&] {
                                   for (int i = 0; i < 40 * kRounds; i++) {
                                     for (const char* kind : {".entry", ".pattern"})
                                       for (const std::string& f : files(kind)) unlink(f.c_str());
                                     usleep(200);
                                   }
                                 })};
  int read = 0;
  while (!children.empty()) {
    for (const std::string& file : files(".entry"))
      if (const auto text = read_file(file)) {
        ASSERT_TRUE(readable_entry(*text)) << *text;
        read++;
      }
    for (const std::string& file : files(".pattern"))
      if (const auto text = read_file(file)) {
        ASSERT_NO_THROW(patterns::parse_pattern(*text, file));
      }
    if (const auto known = learnt().recall(program, 1)) {
      EXPECT_FALSE(known->note.empty());
    }
    std::erase_if(children, [](pid_t child) {
      int status = 0;
      if (waitpid(child, &status, WNOHANG) != child) return false;
      EXPECT_EQ(status, 0);
      return true;
    });
  }
  EXPECT_GT(read, 0);
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    EXPECT_TRUE(entry.path().extension() == ".entry" || entry.path().extension() == ".pattern")
        << "left behind: " << entry.path();
  learnt().remember(program, &found, 5000, true, "the last");
  ASSERT_TRUE(learnt().recall(program, 1));
  EXPECT_TRUE(learnt().recall(program, 1)->graph);
}

}  // namespace
}  // namespace tessera
