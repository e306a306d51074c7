#include "base/interruption.h"

#include <gtest/gtest.h>

#include <type_traits>

#include "base/process.h"
#include "base/thread_pool.h"

namespace tessera {
namespace {

static_assert(!std::is_base_of_v<std::exception, Interrupted>,
              "handlers of errors must not see it");

void work() {
  for (int i = 0; i < 100; i++) interruption_point();
}

TEST(Interruption, EndsTheScopeThatIsOver) {
  EXPECT_NO_THROW(work());
  std::atomic<bool> flag{false};
  {
    const Interruptible scope(&flag);
    EXPECT_NO_THROW(work());
    flag = true;
    EXPECT_THROW(work(), Interrupted);
    EXPECT_TRUE(scope.ended());
  }
  EXPECT_NO_THROW(work());
  const Interruptible spent(nullptr, 0);
  EXPECT_THROW(work(), Interrupted);
}

TEST(Interruption, ScopesWithinOthersEndWithThem) {
  std::atomic<bool> outer_flag{false}, inner_flag{false};
  const Interruptible outer(&outer_flag);
  {
    const Interruptible inner(&inner_flag);
    inner_flag = true;
    EXPECT_THROW(work(), Interrupted);
    EXPECT_FALSE(outer.ended());
  }
  EXPECT_NO_THROW(work());
  outer_flag = true;
  const Interruptible inner(nullptr, 1000);
  EXPECT_THROW(work(), Interrupted);
}

TEST(Interruption, ThreadsOfALoopBelongToItsScope) {
  ThreadPool pool(4);
  std::atomic<bool> flag{false};
  std::atomic<int> done{0};
  const Interruptible scope(&flag);
  const auto loop = [&] {
    pool.parallel_for(64, 1, [&](int64_t, int64_t) {
      flag = true;
      work();
      done++;
    });
  };
  EXPECT_THROW(loop(), Interrupted);
  EXPECT_EQ(done, 0);
}

// A guard against hanging: the child would sleep for an hour.
TEST(Interruption, ChildrenAreKilled) {
  const auto sleep = find_executable("sleep");
  ASSERT_TRUE(sleep);
  const Interruptible scope(nullptr, 0.05);
  EXPECT_THROW(run_process({*sleep, "3600"}, 3600), Interrupted);
}

}  // namespace
}  // namespace tessera
