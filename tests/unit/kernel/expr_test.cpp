#include "kernel/expr.h"

#include <gtest/gtest.h>

#include <functional>

#include "base/rng.h"

namespace tessera {
namespace {

const Expr i = Expr::variable("i", {0, 7}, 0), j = Expr::variable("j", {0, 3}, 1),
           extent = Expr::variable("n", {1, 12});

TEST(Expr, IsLinearInItsAtoms) {
  EXPECT_EQ((i * 4 + j - i * 4).text(), "j");
  EXPECT_EQ((i + 3 + i * 2 - 5).text(), "i * 3 - 2");
  EXPECT_EQ((Expr(2) - i).text(), "2 - i");
  EXPECT_EQ((i * 0 + 7).constant(), 7);
  EXPECT_EQ((i * extent).text(), "i * n");
  EXPECT_EQ(((i + 1) * (extent / 2)).text(), "(i + 1) * (n / 2)");
}

TEST(Expr, DividesWhatDivides) {
  EXPECT_EQ(((i * 4 + j) / 4).text(), "i");
  EXPECT_EQ(((i * 4 + j) % 4).text(), "j");
  EXPECT_EQ(((i * 8 + j) / 4).text(), "i * 2");
  EXPECT_EQ((i / 8).constant(), 0);
  EXPECT_EQ((i % 8).text(), "i");
  EXPECT_EQ((i % 3).text(), "i % 3");
  EXPECT_EQ(((i + j) / 3).text(), "(i + j) / 3");
  EXPECT_EQ((i / 2 / 2).text(), "i / 2 / 2");
}

TEST(Expr, KnowsRangesAndLoops) {
  EXPECT_EQ((i - j).range().least, -3);
  EXPECT_EQ((i - j).range().most, 7);
  EXPECT_EQ((i - j).level(), 1);
  EXPECT_EQ(extent.level(), -1);
  EXPECT_EQ(least(i, 7).text(), "i");
  EXPECT_EQ(least(i, 5).text(), "(i < 5 ? i : 5)");
  EXPECT_EQ(greatest(i - 2, 0).range().least, 0);
  EXPECT_EQ((i + j).within(4).range().most, 3);
  EXPECT_EQ(((i + j).within(4) * 2).text(), "(i + j) * 2");
}

TEST(Conditions, ThatAlwaysHoldVanish) {
  EXPECT_TRUE((i < Expr(8)).always());
  EXPECT_EQ((i < extent).text(), "i < n");
  EXPECT_EQ((i < extent && j < Expr(9) && i < extent).text(), "i < n");
  EXPECT_EQ((i < extent && j < extent).text(), "i < n && j < n");
}

// Values of expressions, computed beside them.
struct Both {
  Expr e;
  std::function<int64_t(int64_t, int64_t)> value;
};

// Of the C that expressions are printed in.
class Reader {
 public:
  Reader(const std::string& text, int64_t x, int64_t y) : t_(text), x_(x), y_(y) {}
  int64_t read() { return choice(); }

 private:
  bool take(const std::string& s) {
    if (t_.compare(at_, s.size(), s) != 0) return false;
    at_ += s.size();
    return true;
  }
  int64_t choice() {
    const int64_t a = sum();
    if (!take(" < ")) return a;
    const int64_t b = sum();
    EXPECT_TRUE(take(" ? "));
    const int64_t yes = sum();
    EXPECT_TRUE(take(" : "));
    const int64_t no = sum();
    return a < b ? yes : no;
  }
  int64_t sum() {
    int64_t v = term();
    while (true) {
      if (take(" + "))
        v += term();
      else if (take(" - "))
        v -= term();
      else
        return v;
    }
  }
  int64_t term() {
    int64_t v = factor();
    while (true) {
      if (take(" * "))
        v *= factor();
      else if (take(" / "))
        v /= factor();
      else if (take(" % "))
        v %= factor();
      else
        return v;
    }
  }
  int64_t factor() {
    if (take("-")) return -factor();
    if (take("(")) {
      const int64_t v = choice();
      EXPECT_TRUE(take(")"));
      return v;
    }
    if (take("x")) return x_;
    if (take("y")) return y_;
    size_t end = 0;
    const int64_t v = std::stoll(t_.substr(at_), &end);
    at_ += end;
    return v;
  }
  const std::string& t_;
  size_t at_ = 0;
  int64_t x_, y_;
};

TEST(Expr, RandomOnesMeanWhatTheyAreMadeOf) {
  Rng rng(5);
  for (int round = 0; round < 3000; ++round) {
    std::vector<Both> all = {{Expr::variable("x", {0, 11}), [](int64_t x, int64_t) { return x; }},
                             {Expr::variable("y", {2, 6}), [](int64_t, int64_t y) { return y; }}};
    for (int step = 0; step < 6; ++step) {
      const Both a = all[rng.below(all.size())], b = all[rng.below(all.size())];
      const int64_t c = int64_t(rng.below(6)) + 1;
      const bool divides = a.e.range().least >= 0;
      switch (rng.below(8)) {
      case 0:
        all.push_back({a.e + b.e, [=](auto x, auto y) { return a.value(x, y) + b.value(x, y); }});
        break;
      case 1:
        all.push_back({a.e - b.e, [=](auto x, auto y) { return a.value(x, y) - b.value(x, y); }});
        break;
      case 2: all.push_back({a.e * c, [=](auto x, auto y) { return a.value(x, y) * c; }}); break;
      case 3:
        all.push_back({a.e + (c - 3), [=](auto x, auto y) { return a.value(x, y) + c - 3; }});
        break;
      case 4:
        if (divides) all.push_back({a.e / c, [=](auto x, auto y) { return a.value(x, y) / c; }});
        break;
      case 5:
        if (divides) all.push_back({a.e % c, [=](auto x, auto y) { return a.value(x, y) % c; }});
        break;
      case 6:
        all.push_back({least(a.e, b.e),
                       [=](auto x, auto y) { return std::min(a.value(x, y), b.value(x, y)); }});
        break;
      default:
        all.push_back({greatest(a.e, b.e),
                       [=](auto x, auto y) { return std::max(a.value(x, y), b.value(x, y)); }});
      }
    }
    for (const Both& both : all)
      for (int64_t x : {0, 5, 11})
        for (int64_t y : {2, 3, 6}) {
          const int64_t v = both.value(x, y);
          const std::string text = both.e.text();
          ASSERT_EQ(Reader(text, x, y).read(), v) << text << " at " << x << ", " << y;
          ASSERT_GE(v, both.e.range().least) << text;
          ASSERT_LE(v, both.e.range().most) << text;
        }
  }
}

}  // namespace
}  // namespace tessera
