// Helpers of the back end's tests: a cache of its own, and a run of compiled code against the
// interpreter on one instruction set.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>

#include "backend/check.h"
#include "backend/cpu/module.h"
#include "base/check.h"
#include "ir/text.h"
#include "ir/validate.h"

namespace tessera {

// A fresh private directory, removed at the end.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string pattern = "/tmp/tessera-test-XXXXXX";
    path_ = mkdtemp(pattern.data());
  }
  ~TemporaryDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// `x` rounded to f16 or bf16, as the 16-bit word that modules read and write.
inline uint16_t float_bits16(DType dtype, float x) {
  uint32_t b;
  std::memcpy(&b, &x, 4);
  const uint32_t sign = b >> 16 & 0x8000, a = b & 0x7fffffff;
  if (dtype == DType::BF16) {
    if (a > 0x7f800000) return static_cast<uint16_t>(b >> 16 | 0x40);
    return static_cast<uint16_t>((b + 0x7fff + (b >> 16 & 1)) >> 16);
  }
  CHECK(dtype == DType::F16);
  if (a > 0x7f800000) return static_cast<uint16_t>(sign | 0x7e00);
  if (a >= 0x477ff000) return static_cast<uint16_t>(sign | 0x7c00);
  if (a < 0x38800000) {  // subnormal: multiples of 2^-24
    const float m = std::fabs(x) * 0x1p24f;
    return static_cast<uint16_t>(sign | static_cast<uint32_t>(std::nearbyint(m)));
  }
  return static_cast<uint16_t>(sign | (a - 0x37fff001 + (a >> 13 & 1)) >> 13);
}

// Compiled code of all tests of one run shares a cache, so that sources are compiled once.
inline Cache& test_cache() {
  static TemporaryDirectory directory;
  static Cache cache({directory.path() + "/cache", {}});
  return cache;
}

inline CheckReport run_check(const Graph& graph, CpuIsa isa, KernelPool* pool = nullptr,
                             const PlanOptions& plan = {}) {
  ModuleOptions options;
  options.plan = plan;
  options.isa = isa;
  options.pool = pool;
  const auto module = Module::compile(graph, test_cache(), options);
  CheckReport report;
  CheckOptions check;
  check.normwise = module->normwise();
  check_compiled(
      graph, [&](auto in, auto out) { module->run(in, out); }, check, &report);
  return report;
}

inline void expect_right(const Graph& graph, CpuIsa isa, KernelPool* pool = nullptr) {
  const CheckReport report = run_check(graph, isa, pool);
  EXPECT_TRUE(report.passed) << to_string(isa) << ": " << report.what << "\n" << print(graph);
}

// On every instruction set that this machine has.
inline void expect_right_everywhere(const Graph& graph) {
  validate(graph);
  for (CpuIsa isa : runnable_isas()) expect_right(graph, isa);
}

}  // namespace tessera
