// Generated kernels in the terms of the block plan, planned and replayed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "backend/block_programs.h"
#include "backend/described.h"
#include "base/error.h"
#include "ir/text.h"
#include "ir/validate.h"
#include "places.h"
#include "plan/block_check.h"

namespace tessera {
namespace {

const std::filesystem::path kSources = source_dir();

std::vector<Graph> described_programs() {
  std::vector<Graph> out;
  for (const char* folder : {"examples", "tests/corpus"}) {
    for (const auto& entry : std::filesystem::directory_iterator(kSources / folder)) {
      if (entry.path().extension() != ".ug") continue;
      std::ifstream file(entry.path());
      std::stringstream text;
      text << file.rdbuf();
      out.push_back(parse(text.str(), entry.path().filename().string()));
    }
  }
  for (const std::string& text :
       {rms_norm_linear(16, 128, 64, 2, 2, "f16"), rms_norm_linear(5, 100, 77, 3, 7),
        attention({2, 16, 16, 64, 32, 1, 2, true, "f16"}),
        attention({1, 5, 40, 70, 24, 1, 3, false, "bf16"}), attention({1, 5, 7, 37, 3, 1, 3})})
    out.push_back(parse(text));
  return out;
}

TEST(CudaDescribe, KernelsOfAllProgramsArePlannedAndReplayed) {
  const Target target = find_target("h200", (kSources / "targets").string());
  const CudaArch arch = parse_arch("sm_80");
  const BlockLimits limits = block_limits(arch, target);
  int kernels = 0;
  for (const Graph& g : described_programs()) {
    for (const DescribedBlock& d : describe_cuda(g, arch, target)) {
      ++kernels;
      std::string fault;
      BlockPlan p;
      try {
        p = plan_block(d.block, limits);
        fault = block_fault(d.block, limits, p);
      } catch (const Error& e) {
        fault = e.message();
      }
      EXPECT_EQ(fault, "") << g.name() << "\n" << text(p, d.block);
    }
  }
  EXPECT_GT(kernels, 50);
}

}  // namespace
}  // namespace tessera
