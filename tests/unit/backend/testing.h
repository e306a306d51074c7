// Helpers of the back end's tests: a cache of its own, and a run of compiled code against the
// interpreter on one instruction set.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "backend/check.h"
#include "backend/cpu/module.h"
#include "ir/text.h"

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

}  // namespace tessera
