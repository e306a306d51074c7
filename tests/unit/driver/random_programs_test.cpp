// Random programs through search, code generation and execution, against the interpreter. Many
// programs are compiled as one: a translation unit costs more than the kernels in it.
// TESSERA_RANDOM_PROGRAMS says how many (continuous integration runs 2,000), TESSERA_RANDOM_SEED
// where to start.
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "backend/block_programs.h"
#include "backend/check.h"
#include "backend/cpu/module.h"
#include "backend/emulated.h"
#include "base/error.h"
#include "base/rng.h"
#include "driver/optimize.h"
#include "ir/text.h"
#include "ir/window.h"
#include "verify/bench/random_program.h"
#include "verify/filter.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

uint64_t environment_number(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text ? std::strtoull(text, nullptr, 10) : otherwise;
}

// Where compiled code leaves the interpreter; empty if nowhere.
std::string mismatch(const Graph& g, Cache& cache, uint64_t seed) {
  const auto module = Module::compile(g, cache);
  CheckOptions options;
  options.seed = seed;
  CheckReport report;
  if (check_compiled(
          g, [&](auto in, auto out) { module->run(in, out); }, options, &report))
    return "";
  return report.what;
}

std::string tiny_target_file() {
  const std::string path =
      (std::filesystem::temp_directory_path() / "tessera-tiny-XXXXXX").string();
  std::string file = path;
  const int fd = mkstemp(file.data());
  const std::string text =
      "target tiny\nkind cpu\ncores 2\nvector_bytes 16\nlaunch 200ns\nblock 1ns\niteration "
      "1ns\nlevel dram capacity 16G bandwidth 10G\nlevel l1 capacity 256 bandwidth 100G per_core\n"
      "matmul f32 100G\npointwise f32 10G\n";
  EXPECT_EQ(write(fd, text.data(), text.size()), ssize_t(text.size()));
  close(fd);
  const std::string named = file + ".target";
  std::filesystem::rename(file, named);
  return named;
}

struct FoundProgram {
  Graph program, candidate;
  uint64_t seed;
};

// Programs of every sort: element types, fused kernels, sizes that nothing divides.
FoundProgram random_found(uint64_t seed) {
  RandomProgramOptions options;
  const uint64_t sort = mix64(seed);
  options.kernel_chance = sort % 3 == 0 ? 0.8 : 0.2;
  options.max_extent = sort % 5 == 0 ? 37 : 9;
  options.dtype = sort % 16 == 1 ? DType::F64 : sort % 16 == 2 ? DType::BF16 : DType::F32;
  FoundProgram f{random_program(seed, options), Graph(), seed};
  f.candidate = f.program;
  OptimizeOptions search_options;
  search_options.threads = 1;
  search_options.budget_seconds = 20;  // steps end the search, not the clock
  // Sometimes a machine with so little memory that kernels need loops, and several passes.
  static const std::string tiny = tiny_target_file();
  if (sort % 4 == 3) search_options.target = tiny;
  const SearchOutcome found = search(f.program, search_options);
  if (!found.candidates.empty()) {
    const size_t n = std::min<size_t>(found.candidates.size(), 4);
    f.candidate = found.candidates[size_t(sort >> 8) % n].graph;
  }
  return f;
}

struct AsCuda {
  int tried = 0, compared = 0;
};

// The same candidates as CUDA, in the emulator: how many were tried and compared.
AsCuda expect_right_as_cuda(const std::vector<FoundProgram>& batch) {
  AsCuda count;
  const auto outcome = [&](const Graph& g) -> std::string {
    CheckOptions options;
    options.seed = batch[0].seed;
    options.max_work = 1e5;  // the most telling inputs only
    try {
      return emulated_fault(g, "sm_80", options);
    } catch (const Error& e) {
      return e.kind() == ErrorKind::Unsupported ? "unsupported" : e.what();
    }
  };
  count.tried += int(batch.size());
  Graph all("together");
  for (const FoundProgram& f : batch) append(all, f.candidate);
  if (batch.empty() || outcome(all).empty()) {
    count.compared = int(batch.size());
    return count;
  }
  for (const FoundProgram& f : batch) {
    const std::string own = outcome(f.candidate);
    if (own == "unsupported") continue;
    count.compared++;
    EXPECT_TRUE(own.empty()) << own << "seed " << f.seed << "\n"
                             << print(f.program) << print(f.candidate);
  }
  return count;
}

TEST(RandomPrograms, CompiledCandidatesAgreeWithTheInterpreter) {
  const uint64_t count = environment_number("TESSERA_RANDOM_PROGRAMS", 100);
  const uint64_t start = environment_number("TESSERA_RANDOM_SEED", 1);
  constexpr size_t kTogether = 32;
  std::string pattern = "/tmp/tessera-test-XXXXXX";
  const std::string directory = mkdtemp(pattern.data());
  Cache cache({directory, {}});
  // Of the first ones CUDA is made as well.
  const uint64_t as_cuda = std::min(count, environment_number("TESSERA_RANDOM_CUDA_PROGRAMS", 48));
  AsCuda cuda;
  std::vector<FoundProgram> batch;
  int rewritten = 0, passes = 0, unsupported = 0, undecided = 0, compared = 0;
  auto flush = [&] {
    if (!batch.empty() && batch[0].seed < start + as_cuda) {
      const AsCuda more = expect_right_as_cuda(batch);
      cuda.tried += more.tried;
      cuda.compared += more.compared;
    }
    Graph all("together");
    for (const FoundProgram& f : batch) append(all, f.candidate);
    std::string what;
    try {
      what = batch.empty() ? "" : mismatch(all, cache, batch[0].seed);
      compared += int(batch.size());
    } catch (const Error& e) {
      what = e.what();
    }
    // One by one, to name the program that is to blame.
    if (!what.empty())
      for (const FoundProgram& f : batch) {
        try {
          const std::string own = mismatch(f.candidate, cache, batch[0].seed);
          EXPECT_TRUE(own.empty()) << own << "seed " << f.seed << "\n"
                                   << print(f.program) << print(f.candidate);
        } catch (const Error& e) {
          ASSERT_EQ(e.kind(), ErrorKind::Unsupported) << e.what() << print(f.candidate);
          unsupported++;
        }
      }
    batch.clear();
  };
  for (uint64_t seed = start; seed < start + count && !HasFatalFailure(); seed++) {
    FoundProgram f = random_found(seed);
    if (!(f.candidate == f.program)) {
      rewritten++;
      for (const Graph& b : f.candidate.bodies()) passes += b.loops().size() > 1;
      // The field cannot decide some true equalities (max(8x) = 8 max(x)); the driver drops those.
      if (!filter(f.program, f.candidate, seed)) {
        VerifyOptions options;
        options.seed = seed;
        ASSERT_FALSE(verify(f.program, f.candidate, options).refuted())
            << "seed " << seed << "\n"
            << print(f.program) << print(f.candidate);
        undecided++;
      }
    }
    batch.push_back(std::move(f));
    if (batch.size() == kTogether) flush();
  }
  flush();
  std::filesystem::remove_all(directory);
  std::printf("%d compared, %d of them rewritten, %d kernels in several passes, %d undecided, "
              "%d unsupported, %d of %d emulated as CUDA\n",
              compared, rewritten, passes, undecided, unsupported, cuda.compared, cuda.tried);
  EXPECT_GE(cuda.compared, cuda.tried - cuda.tried / 10);
  EXPECT_GE(passes, int(count / 50));
  EXPECT_GT(rewritten, int(count / 4));
  EXPECT_LT(undecided, int(count / 20) + 1);
  EXPECT_LT(unsupported, int(count / 10) + 1);
}

}  // namespace
}  // namespace tessera
