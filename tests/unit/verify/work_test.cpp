// What is said of a program before it is run: how coarse its roundings are.
#include <gtest/gtest.h>

#include "ir/text.h"
#include "verify/work.h"

namespace tessera {
namespace {

DType coarsest(const std::string& text) {
  return coarsest_rounding(parse("graph g {\n" + text + "}")).at(0);
}

TEST(CoarsestRounding, IsThatOfTheCoarsestArithmeticOnTheWay) {
  EXPECT_EQ(coarsest("x = input : f32[4]\ny = cast x {dtype=f64}\nz = exp y\nreturn z\n"),
            DType::F64);
  EXPECT_EQ(coarsest("x = input : f32[4]\ny = exp x\nz = cast y {dtype=f64}\nreturn z\n"),
            DType::F32);
  EXPECT_EQ(coarsest("x = input : f64[4]\nh = cast x {dtype=bf16}\ny = cast h {dtype=f32}\n"
                     "z = mul y, y\nreturn z\n"),
            DType::BF16);
  EXPECT_EQ(coarsest("x = input : bf16[4,2]\ny = transpose x {perm=[1,0]}\n"
                     "z = cast y {dtype=f32}\nw = neg z\nreturn w\n"),
            DType::F32);
}

TEST(CoarsestRounding, OfKernelsIsThatOfTheirBodies) {
  const auto with = [](const std::string& body) {
    return coarsest("x = input : f32[8,4]\ns = kernel x grid[x=2] {\nx = input : f32[8,4]\n"
                    "a = iter x {imap={x:0}}\n" +
                    body +
                    "o = save c {omap={x:0}} : f64[8,4]\nreturn o\n} : f64[8,4]\nreturn s\n");
  };
  EXPECT_EQ(with("b = cast a {dtype=f64}\nc = exp b\n"), DType::F64);
  EXPECT_EQ(with("b = exp a\nc = cast b {dtype=f64}\n"), DType::F32);
}

}  // namespace
}  // namespace tessera
