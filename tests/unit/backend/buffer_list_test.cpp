#include "backend/cpu/buffer_list.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <limits>
#include <thread>
#include <vector>

namespace tessera {
namespace {

TEST(BufferList, GivesTheYoungestOfItsSizeAgain) {
  BufferList list;
  void* a = list.take(160'000);
  void* b = list.take(160'000);
  void* small = list.take(5'000);
  EXPECT_NE(a, b);
  for (void* p : {a, b, small}) EXPECT_EQ(reinterpret_cast<uintptr_t>(p) % 64, 0u);
  list.give_back(a);
  list.give_back(b);
  list.give_back(small);
  EXPECT_EQ(list.take(160'000), b);
  EXPECT_EQ(list.take(159'990), a);  // of the same class
  void* c = list.take(160'000);
  EXPECT_NE(c, a);
  EXPECT_NE(c, small);
  for (void* p : {a, b, c}) list.give_back(p);
}

TEST(BufferList, HoldsWhatIsAskedFor) {
  BufferList list;
  for (size_t bytes : {size_t{0}, size_t{1}, size_t{511}, size_t{513}, size_t{4097}, size_t{65537},
                       (size_t{2} << 20) + 1}) {
    char* p = static_cast<char*>(list.take(bytes));
    ASSERT_NE(p, nullptr);
    EXPECT_GE(BufferList::capacity(p), bytes);
    EXPECT_LE(BufferList::capacity(p), std::max<size_t>(512, bytes + bytes / 4));
    std::memset(p, 1, bytes);
    list.give_back(p);
  }
  EXPECT_EQ(list.take(std::numeric_limits<size_t>::max() - 10), nullptr);
}

TEST(BufferList, KeepsLittle) {
  BufferList list;
  std::vector<void*> many;
  for (size_t i = 0; i < 3 * BufferList::kMostBuffers; ++i) many.push_back(list.take(1024));
  for (void* p : many) list.give_back(p);
  EXPECT_EQ(list.kept_bytes(), BufferList::kMostBuffers * 1024);
  many.resize(4);
  for (void*& p : many) p = list.take(BufferList::kMostBytes / 2);
  for (void* p : many) list.give_back(p);
  EXPECT_LE(list.kept_bytes(), BufferList::kMostBytes);
  list.give_back(list.take(2 * BufferList::kMostBytes));  // too large to be kept
  EXPECT_LE(list.kept_bytes(), BufferList::kMostBytes);
  list.give_back(nullptr);
}

TEST(BufferList, ThreadsNeverShareABuffer) {
  BufferList list;
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 5'000; ++i) {
        const size_t bytes = size_t{512} << (i % 3);
        auto* p = static_cast<unsigned char*>(list.take(bytes));
        std::memset(p, t, bytes);
        for (size_t k = 0; k < bytes; ++k) wrong += p[k] != t;
        list.give_back(p);
      }
    });
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace tessera
