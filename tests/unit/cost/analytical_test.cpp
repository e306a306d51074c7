#include "cost/analytical.h"

#include <gtest/gtest.h>

#include "cost/cpu_model.h"
#include "ir/text.h"
#include "places.h"

namespace tessera {
namespace {

double seconds(const std::string& text) {
  return AnalyticalModel(default_cpu_target()).cost(parse(text)).seconds;
}

std::string chain(int adds) {
  std::string s = "graph g {\n  X = input : f32[1024,1024]\n";
  std::string last = "X";
  for (int i = 0; i < adds; ++i) {
    std::string t = "a" + std::to_string(i);
    s += "  " + t + " = add " + last + ", X\n";
    last = t;
  }
  return s + "  return " + last + "\n}";
}

TEST(AnalyticalModel, EveryKernelCosts) {
  double one = seconds(chain(1)), two = seconds(chain(2)), four = seconds(chain(4));
  EXPECT_GT(one, default_cpu_target().launch_seconds);
  EXPECT_NEAR(two, 2 * one, 1e-9);
  EXPECT_NEAR(four, 4 * one, 1e-9);
}

TEST(AnalyticalModel, ThreeByThreeWindowsTakeFewerProducts) {
  auto conv = [](const std::string& image, const std::string& weights, const std::string& how) {
    return seconds("graph g { x = input : f32" + image + " w = input : f32" + weights +
                   " y = conv x, w {" + how + "} return y }");
  };
  const std::string image = "[1,64,56,56]", same = "low=[1,1], high=[1,1]";
  const double three = conv(image, "[64,64,3,3]", same);
  EXPECT_GT(conv(image, "[64,64,3,3]", same + ", strides=[2,2]"), 0.25 * three);
  // Nine products per element directly, as eight shorter windows have; transforms save most of
  // them.
  EXPECT_LT(three, 0.7 * conv(image, "[64,64,2,4]", "low=[1,2], high=[0,1]"));
  // Dilation changes nothing; few channels fill no vector.
  EXPECT_NEAR(conv(image, "[64,64,3,3]", "dilations=[2,2], low=[2,2], high=[2,2]"), three,
              0.01 * three);
  EXPECT_GT(conv("[1,63,56,56]", "[64,63,3,3]", same), 1.3 * three);
}

TEST(AnalyticalModel, PricesNoTransformsThatAreSwitchedOff) {
  auto conv = [](Transforms which, const char* how) {
    Target t = default_cpu_target();
    t.transforms = which;
    return AnalyticalModel(t)
        .cost(parse(std::string("graph g { x = input : f32[1,64,56,56] w = input : f32[64,64,3,3] "
                                "y = conv x, w {") +
                    how + "} return y }"))
        .seconds;
  };
  const char *dense = "low=[1,1], high=[1,1]", *dilated = "dilations=[2,2], low=[2,2], high=[2,2]";
  EXPECT_GT(conv(Transforms::None, dense), 1.3 * conv(Transforms::All, dense));
  EXPECT_EQ(conv(Transforms::Common, dense), conv(Transforms::All, dense));
  EXPECT_GT(conv(Transforms::Common, dilated), 1.3 * conv(Transforms::All, dilated));
}

TEST(AnalyticalModel, FusedPointwiseIsCheaperThanSeparateKernels) {
  const char* fused = R"(graph g {
  X = input : f32[1024,1024]
  O = kernel X grid[x=64] {
    X = input : f32[1024,1024]
    x = iter X {imap={x:0}}
    a = add x, x
    b = add a, x
    o = save b {omap={x:0}} : f32[1024,1024]
    return o
  }
  return O
})";
  EXPECT_LT(seconds(fused), 0.7 * seconds(chain(2)));
}

// What a second pass reads again comes from where it stayed: a core's cache for short rows, memory
// for rows that no cache holds.
TEST(AnalyticalModel, ASecondPassReadsFromWhereTheFirstLeftIt) {
  auto passes = [](int64_t rows, int64_t columns, bool twice) {
    const std::string type = "f32[" + std::to_string(rows) + "," + std::to_string(columns) + "]";
    const std::string row = "f32[" + std::to_string(rows) + ",1]";
    const std::string parts = std::to_string(columns / 4096);
    std::string s = "graph g {\n X = input : " + type +
                    "\n O = kernel X grid[x=" + std::to_string(rows) + "] loops[i=" + parts +
                    (twice ? ", j=" + parts : "") + "] {\n X = input : " + type +
                    "\n x = iter X {imap={x:0}, fmap={i:1}}\n s = sum x {axes=[1], "
                    "keepdims=true}\n S = accum s {loops=[0]}\n";
    if (twice)
      s += " y = iter X {imap={x:0}, fmap={j:1}}\n d = sub y, S\n t = sum d {axes=[1], "
           "keepdims=true}\n T = accum t {loops=[1]}\n o = save T {omap={x:0}} : " +
           row;
    else
      s += " o = save S {omap={x:0}} : " + row;
    return seconds(s + "\n return o\n }\n return O\n}");
  };
  const double near = passes(1024, 65536, true) / passes(1024, 65536, false);
  const double far = passes(8, 8 << 20, true) / passes(8, 8 << 20, false);
  EXPECT_GT(near, 1.0);
  EXPECT_LT(near, 1.5);
  EXPECT_GT(far, 1.9);
}

// What a block computes element by element where it is read makes nobody wait: but for operands of
// products, and for what would be computed again and again.
TEST(AnalyticalModel, CountsTheStepsThatTheGeneratorMakes) {
  const auto steps = [](const std::string& body) {
    const Graph g =
        parse("graph g {\n X = input : f32[16,1024]\n W = input : f32[1024,256]\n"
              " O = kernel X, W grid[x=4] loops[i=16] {\n X = input : f32[16,1024]\n"
              " W = input : f32[1024,256]\n x = iter X {fmap={i:1}}\n"
              " w = iter W {imap={x:1}, fmap={i:0}}\n" +
              body + " o = save d {omap={x:1}} : f32[16,256]\n return o\n }\n return O\n}");
    return AnalyticalModel(find_target("h200", source_dir() + "/targets")).kernels(g)[0].work.steps;
  };
  const std::string sum = " p = matmul x, w\n d = accum p\n";
  EXPECT_EQ(steps(sum), 16);
  EXPECT_EQ(steps(" y = exp x\n p = matmul y, w\n d = accum p\n"), 32);  // an operand
  EXPECT_EQ(steps(" y = exp x\n z = transpose y {perm=[1,0]}\n t = transpose z {perm=[1,0]}\n"
                  " p = matmul t, w\n d = accum p\n"),
            32);  // seen through views
  EXPECT_EQ(steps(" p = matmul x, w\n a = accum p\n b = exp a\n d = sqr b\n"), 16);
  // Read by two, it is kept; but not where it is little work.
  EXPECT_EQ(steps(" p = matmul x, w\n a = accum p\n b = exp a\n c = sqr b\n d = add b, c\n"), 17);
  EXPECT_EQ(steps(" p = matmul x, w\n a = accum p\n b = neg a\n c = sqr b\n d = add b, c\n"), 16);
  // So is the root of a row's sum, which every element of the row is divided by.
  const std::string norm = " y = sqr x\n s = sum y {axes=[1], keepdims=true}\n b = accum s\n"
                           " p = matmul x, w\n a = accum p\n";
  EXPECT_EQ(steps(norm + " d = sub a, b\n"), 32);
  EXPECT_EQ(steps(norm + " q = neg b\n r = sqrt q\n d = div a, r\n"), 33);
}

TEST(AnalyticalModel, KnowsWhatCoresAndBlocksDo) {
  auto grid = [](int blocks) {
    return seconds(
        "graph g {\n  X = input : f32[1024,1024]\n  O = kernel X grid[x=" + std::to_string(blocks) +
        "] {\n    X = input : f32[1024,1024]\n    x = iter X {imap={x:0}}\n"
        "    a = exp x\n    o = save a {omap={x:0}} : f32[1024,1024]\n    return o\n  }\n"
        "  return O\n}");
  };
  EXPECT_GT(grid(1), 1.7 * grid(2));  // one core idles
  EXPECT_GT(grid(3), 1.2 * grid(2));  // a second wave for one block
  EXPECT_GT(grid(1024), grid(64));    // every block has a fixed cost
}

TEST(Machine, MatmulNeedsRows) {
  CpuMachine m(default_cpu_target());
  double one = m.matmul(DType::F32, 1, 1, 4096, 1024),
         eight = m.matmul(DType::F32, 1, 8, 4096, 1024),
         sixteen = m.matmul(DType::F32, 1, 16, 4096, 1024);
  EXPECT_GT(eight, 1.5 * one);
  EXPECT_LT(eight, 8 * one);
  EXPECT_LT(sixteen, 2 * eight);
  EXPECT_NEAR(m.matmul(DType::F32, 4, 16, 64, 64), 4 * m.matmul(DType::F32, 1, 16, 64, 64), 1e-7);
  // What does not fill a vector is padded, whichever side the vectors run along.
  EXPECT_GT(m.matmul(DType::F32, 1, 17, 17, 1024), 1.6 * m.matmul(DType::F32, 1, 17, 16, 1024));
}

TEST(Machine, BoundsAreBelowCosts) {
  CpuMachine m(default_cpu_target());
  KernelWork w;
  w.blocks = 8;
  w.block_compute = 3e-6;
  m.add_traffic(w, 1 << 20, 4 << 20, 1 << 20);
  EXPECT_LE(m.bound(8 * 3e-6, m.first_pass(1 << 20, 1 << 20)), m.seconds(w));
}

}  // namespace
}  // namespace tessera
