// The filter of a search: cheap, never a proof, and it has to notice common mistakes.
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "ir/text.h"
#include "places.h"
#include "verify/filter.h"

namespace tessera {
namespace {

std::string corpus(const std::string& name) {
  std::stringstream text;
  text << std::ifstream(source_dir() + "/tests/corpus/" + name + ".ug").rdbuf();
  return text.str();
}

std::string replaced_once(std::string text, const std::string& from, const std::string& to) {
  size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(Filter, SampledBlocksTellRightFromWrong) {
  const std::string fused = corpus("rmsnorm_linear_fused");
  const Filter filter(parse(corpus("rmsnorm_linear")));
  EXPECT_TRUE(filter.may_equal(parse(fused)));
  for (auto [from, to] : {std::pair{"value=1/1024", "value=1/1000"},
                          {"d = div a, r", "d = mul a, r"},
                          {"r = sqrt m", "r = rsqrt m"},
                          {"x2 = sqr x\n", "x2 = sqr xg\n"},
                          {"p = matmul xg, w", "p = matmul x, w"}})
    EXPECT_FALSE(filter.may_equal(parse(replaced_once(fused, from, to)))) << to;
}

TEST(Filter, LooksAroundUnknownFunctions) {
  const auto twice = [](const std::string& given, const std::string& result) {
    return parse("graph g { x = input : f32[6]\n two = const {value=2} : f32[6]\n h = " + given +
                 "\n y = opaque h {function=\"f\", payload=\"1\"} : f32[6]\n z = " + result +
                 "\n return z }");
  };
  const Filter filter(twice("add x, x", "add y, y"));
  EXPECT_TRUE(filter.may_equal(twice("mul x, two", "mul y, two")));
  EXPECT_FALSE(filter.may_equal(twice("mul x, x", "mul y, two")));
  EXPECT_FALSE(filter.may_equal(twice("mul x, two", "mul y, x")));
}

}  // namespace
}  // namespace tessera
