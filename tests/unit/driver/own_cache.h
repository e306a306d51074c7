// Tests of searches: each has a cache of its own, and options that give the same result every time.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "driver/optimize.h"

namespace tessera {

inline OptimizeOptions test_options(double budget_seconds = 30) {
  OptimizeOptions o;
  o.verify_seed = 7;
  o.threads = 2;
  o.budget_seconds = budget_seconds;
  return o;
}

class OwnCache : public ::testing::Test {
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
  std::string directory_;
};

}  // namespace tessera
