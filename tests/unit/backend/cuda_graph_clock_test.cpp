// Timing by captured graphs, on the stand-in for the driver.
#include "backend/cuda/graph_clock.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "base/error.h"
#include "places.h"
#include "stand_in.h"

namespace tessera {
namespace {

constexpr int64_t kBytes = 1 << 20;

class CudaGraphClockTest : public ::testing::Test {
 protected:
  void SetUp() override {
    void* library = dlopen(stand_in_cuda(), RTLD_NOW);
    ASSERT_NE(library, nullptr) << dlerror();
    const auto find = [&](auto& f, const char* name) {
      f = reinterpret_cast<std::remove_reference_t<decltype(f)>>(dlsym(library, name));
      ASSERT_NE(f, nullptr) << name;
    };
    find(reset_, "stand_in_reset");
    find(fail_, "stand_in_fail");
    find(calls_, "stand_in_calls");
    reset_(1, 9, 0, 64 << 20, 100 << 10);
    CudaDriver::use_library(stand_in_cuda());
  }
  void TearDown() override { CudaDriver::use_library(""); }

  void (*reset_)(int, int, int, int64_t, int64_t) = nullptr;
  void (*fail_)(const char*, int, int) = nullptr;
  int (*calls_)(const char*) = nullptr;
};

TEST_F(CudaGraphClockTest, CapturesOnceAndLaunchesForEachSample) {
  const auto context = CudaContext::of(0);
  const DeviceMemory a(context, kBytes, "a test"), b(context, kBytes, "a test");
  CudaGraphClock clock(context);
  const CudaApi& api = context->driver().api();
  std::vector<int> asked;
  const auto sample = clock.timed(
      [&](int repeat) {
        asked.push_back(repeat);
        api.copy_on_device(a.address(), b.address(), size_t(kBytes), clock.stream());
      },
      3);
  EXPECT_EQ(asked, (std::vector<int>{0, 1, 2, 0, 1, 2}));  // as it is, and into the graph
  const int before = calls_("cuGraphLaunch");
  for (int i = 0; i < 4; ++i) EXPECT_GT(sample(), 0);
  EXPECT_EQ(calls_("cuGraphLaunch"), before + 4);
  EXPECT_EQ(asked.size(), 6u);
}

TEST_F(CudaGraphClockTest, MeasuresOnTheDevice) {
  const auto context = CudaContext::of(0);
  const DeviceMemory a(context, 16 * kBytes, "a test"), b(context, 16 * kBytes, "a test");
  CudaGraphClock clock(context);
  const CudaApi& api = context->driver().api();
  auto copies = [&](const char* name, int64_t bytes) {
    return Contestant{name, [&, bytes](int) {
                        api.copy_on_device(a.address(), b.address(), size_t(bytes), clock.stream());
                      }};
  };
  DeviceMeasureOptions o;
  o.min_round_s = 0;
  const auto t = measure_on_device({copies("all", 16 * kBytes), copies("little", 16)}, clock, o);
  ASSERT_EQ(t.size(), 2u);
  EXPECT_GT(t[1].speedup, 1.5);  // a millionth of the work
}

TEST_F(CudaGraphClockTest, LeavesCapturesOfOthersAlone) {
  const auto context = CudaContext::of(0);
  const CudaContext::Current current(*context);
  const CudaApi& api = context->driver().api();
  CudaStream other = nullptr;
  ASSERT_EQ(api.stream_create(&other, 1), 0);
  ASSERT_EQ(api.begin_capture(other, 0), 0);  // 0: watches what all threads do
  CudaGraphClock clock(context);
  EXPECT_GE(clock.timed([](int) {}, 1)(), 0);
  CudaHandle graph = nullptr;
  EXPECT_EQ(api.end_capture(other, &graph), 0);
  api.graph_destroy(graph);
}

TEST_F(CudaGraphClockTest, FailuresLeaveTheStreamFit) {
  const auto context = CudaContext::of(0);
  CudaGraphClock clock(context);
  int calls = 0;
  EXPECT_THROW(clock.timed(
                   [&](int) {
                     if (++calls > 1) throw std::runtime_error("while it is captured");
                   },
                   1),
               std::runtime_error);
  fail_("cuGraphInstantiateWithFlags", 1, cuda_error::kOutOfMemory);
  EXPECT_THROW(clock.timed([](int) {}, 1), Error);
  EXPECT_GE(clock.timed([](int) {}, 1)(), 0);
}

}  // namespace
}  // namespace tessera
