// Generated kernels in the terms of the block plan, planned and replayed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "backend/block_programs.h"
#include "backend/cuda/describe.h"
#include "base/error.h"
#include "ir/text.h"
#include "ir/validate.h"
#include "places.h"
#include "plan/block_check.h"

namespace tessera {
namespace {

const std::filesystem::path kRoot = source_dir();

std::vector<Graph> programs() {
  std::vector<Graph> out;
  for (const char* folder : {"examples", "tests/corpus"}) {
    for (const auto& entry : std::filesystem::directory_iterator(kRoot / folder)) {
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

// With TESSERA_SHOW_PLANS=FOLDER of programs: the table of docs/plan.md, one row per program, each
// decision switched off in turn. Sums over kernels of one block's whole life; KB of the largest.
TEST(CudaDescribe, TableOfDecisions) {
  const char* folder = std::getenv("TESSERA_SHOW_PLANS");
  if (folder == nullptr) GTEST_SKIP() << "set TESSERA_SHOW_PLANS to a folder of .ug files";
  const Target target = find_target("h200", (kRoot / "targets").string());
  const CudaArch arch = parse_arch("sm_80");
  const BlockLimits limits = block_limits(arch, target);
  const std::vector<std::pair<const char*, void (*)(BlockPlanOptions&)>> ways = {
      {"all", [](BlockPlanOptions&) {}},
      {"layout", [](BlockPlanOptions& o) { o.layout = false; }},
      {"schedule", [](BlockPlanOptions& o) { o.schedule = false; }},
      {"memory", [](BlockPlanOptions& o) { o.memory = false; }},
      {"stages", [](BlockPlanOptions& o) { o.stages = false; }}};
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (entry.path().extension() == ".ug") files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  for (const auto& path : files) {
    std::ifstream file(path);
    std::stringstream text;
    text << file.rdbuf();
    std::vector<DescribedBlock> kernels;
    try {
      kernels = describe_cuda(parse(text.str(), path.string()), arch, target);
    } catch (const Error& e) {
      std::printf("| %s | %s |\n", path.stem().c_str(), e.message().c_str());
      continue;
    }
    std::printf("| %s | %zu", path.stem().c_str(), kernels.size());
    for (const auto& [name, off] : ways) {
      BlockPlanOptions o;
      off(o);
      int64_t conflicts = 0, wavefronts = 0, barriers = 0, bytes = 0;
      int refused = 0;
      for (const DescribedBlock& d : kernels) {
        try {
          const BlockPlan p = plan_block(d.block, limits, o);
          conflicts += p.conflicts, wavefronts += p.wavefronts, barriers += p.barriers;
          bytes = std::max(bytes, p.shared_bytes);
        } catch (const Error&) {
          ++refused;
        }
      }
      std::printf(" | %lld of %lld, %lld, %.1f%s", (long long)conflicts, (long long)wavefronts,
                  (long long)barriers, double(bytes) / 1024, refused ? " (some refused)" : "");
    }
    std::printf(" |\n");
    std::fflush(stdout);
  }
}

TEST(CudaDescribe, KernelsOfAllProgramsArePlannedAndReplayed) {
  const Target target = find_target("h200", (kRoot / "targets").string());
  const CudaArch arch = parse_arch("sm_80");
  const BlockLimits limits = block_limits(arch, target);
  int kernels = 0;
  for (const Graph& g : programs()) {
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
