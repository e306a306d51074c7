// Which kernels a library could run in one call, and which only look like it.
#include "cost/library_call.h"

#include <gtest/gtest.h>

#include "cost/analytical.h"
#include "ir/text.h"
#include "places.h"

namespace tessera {
namespace {

// Of the last operator.
std::string call(const std::string& text) {
  const Graph g = parse("graph g {\n" + text + "}");
  const auto c = library_call(g, OpId(uint32_t(g.ops().size() - 1)));
  return c ? c->str() : "none";
}

const std::string kCallInputs = "X = input : f16[16,4096]\nW = input : f16[4096,4096]\n";

// A kernel of X and W whose blocks take `x` and `w`, and end with `end`.
std::string kernel(const std::string& grid, const std::string& x, const std::string& w,
                   const std::string& end, const std::string& more = "") {
  return kCallInputs + (more.empty() ? "" : "B = input : f16" + more + "\n") + "O = kernel X, W" +
         (more.empty() ? "" : ", B") + " " + grid +
         " {\n X = input : f16[16,4096]\n W = input : f16[4096,4096]\n" +
         (more.empty() ? "" : " B = input : f16" + more + "\n") + " x = iter X {" + x +
         "}\n w = iter W {" + w + "}\n p = matmul x, w\n" + end + "\n return o\n}\nreturn O\n";
}

const std::string kSave = " o = save a {omap={x:1}} : f16[16,4096]";

TEST(LibraryCall, PlainProducts) {
  EXPECT_EQ(call(kCallInputs + "O = matmul X, W\nreturn O\n"), "matmul f16 1x16x4096x4096");
  EXPECT_EQ(call("A = input : f32[8,2,3]\nB = input : f32[8,3,5]\nO = matmul A, B\nreturn O\n"),
            "matmul f32 8x2x5x3");
  EXPECT_EQ(call("A = input : f32[8,2,3]\nB = input : f32[3,5]\nO = matmul A, B\nreturn O\n"),
            "matmul f32 8x2x5x3");
  // One operand for some of the batches: two strides.
  EXPECT_EQ(call("A = input : f32[4,8,2,3]\nB = input : f32[8,3,5]\nO = matmul A, B\nreturn O\n"),
            "none");
  EXPECT_EQ(call("A = input : f64[2,3]\nB = input : f64[3,5]\nO = matmul A, B\nreturn O\n"),
            "matmul f64 1x2x5x3");
  EXPECT_EQ(call("A = input : i32[2,3]\nB = input : i32[3,5]\nO = matmul A, B\nreturn O\n"),
            "none");
  EXPECT_EQ(call(kCallInputs + "O = exp X\nreturn O\n"), "none");
}

TEST(LibraryCall, KernelsThatAreOneProduct) {
  const std::string x = "fmap={i:1}", w = "imap={x:1}, fmap={i:0}";
  const std::string acc = " a = accum p {loops=[0]}\n";
  EXPECT_EQ(call(kernel("grid[x=8] loops[i=4]", x, w, acc + kSave)), "matmul f16 1x16x4096x4096");
  EXPECT_EQ(call(kernel("grid[x=8]", "", "imap={x:1}", " o = save p {omap={x:1}} : f16[16,4096]")),
            "matmul f16 1x16x4096x4096");
  // Rows and columns in the grid.
  EXPECT_EQ(
      call(kernel("grid[x=2, y=8] loops[i=4]", "imap={x:0}, fmap={i:1}", "imap={y:1}, fmap={i:0}",
                  acc + " o = save a {omap={x:0, y:1}} : f16[16,4096]")),
      "matmul f16 1x16x4096x4096");
  // A bias and an activation after the sum.
  const std::string after = " b = iter B {imap={x:0}}\n c = add a, b\n r = relu c\n"
                            " o = save r {omap={x:1}} : f16[16,4096]";
  EXPECT_EQ(call(kernel("grid[x=8] loops[i=4]", x, w, acc + after, "[4096]")),
            "matmul f16 1x16x4096x4096 bias relu");
}

TEST(LibraryCall, KernelsThatAreNot) {
  const std::string x = "fmap={i:1}", w = "imap={x:1}, fmap={i:0}";
  const std::string acc = " a = accum p {loops=[0]}\n";
  // Something else besides.
  EXPECT_EQ(call(kernel("grid[x=8] loops[i=4]", x, w,
                        acc + " e = exp a\n o = save e {omap={x:1}} : f16[16,4096]")),
            "none");
  // A residual is no bias.
  EXPECT_EQ(call(kernel("grid[x=8] loops[i=4]", x, w,
                        acc + " b = iter B {imap={x:1}}\n c = add a, b\n"
                              " o = save c {omap={x:1}} : f16[16,4096]",
                        "[16,4096]")),
            "none");
  // Parts of the contraction stay apart (split-K).
  EXPECT_EQ(call(kernel("grid[x=8, y=2]", "imap={y:1}", "imap={x:1, y:0}",
                        " u = unsqueeze p {axes=[0]}\n"
                        " o = save u {omap={x:2, y:0}} : f16[2,16,4096]")),
            "none");
  // The largest of the products, not their sum.
  EXPECT_EQ(
      call(kernel("grid[x=8] loops[i=4]", x, w, " a = accum p {kind=max, loops=[0]}\n" + kSave)),
      "none");
}

// Of the last operator, with operators before it.
std::string region(const std::string& text) {
  const Graph g = parse("graph g {\n" + text + "}");
  const auto all = library_regions(g, OpId(uint32_t(g.ops().size() - 1)), use_counts(g));
  if (all.empty()) return "none";
  std::string parts;
  for (OpId p : all[0].parts) parts += " " + std::to_string(p.index);
  const Graph program = call_program(g, OpId(uint32_t(g.ops().size() - 1)), all[0]);
  EXPECT_EQ(program.inputs().size(), all[0].reads.size());
  return all[0].str() + ":" + parts;
}

TEST(LibraryCall, RegionsOfAttention) {
  const auto attention = [](const std::string& dtype, const std::string& more = "",
                            const std::string& outputs = "O") {
    return "Q = input : " + dtype + "[3,12,16]\nK = input : " + dtype +
           "[3,16,20]\nV = input : " + dtype + "[3,20,16]\ns = matmul Q, K\n" + more +
           "m = reduce_max s {axes=[2], keepdims=true}\nc = sub s, m\ne = exp c\n"
           "d = sum e {axes=[2], keepdims=true}\np = div e, d\nO = matmul p, V\nreturn " +
           outputs + "\n";
  };
  EXPECT_EQ(region(attention("bf16")), "attention bf16 3x1x12x20x16 keys in columns: 3 4 5 6 7 8");
  EXPECT_EQ(region(attention("f32")), "none");
  EXPECT_EQ(region(attention("f16", "", "O, d")), "none");
  EXPECT_EQ(region(attention("f16", "x = exp s\n", "O, x")), "none");
  // The maximum is not subtracted; the sum comes after the second product.
  const std::string plain = "Q = input : f16[12,16]\nK = input : f16[20,16]\n"
                            "V = input : f16[20,8]\nkt = transpose K {perm=[1,0]}\n"
                            "s = matmul Q, kt\ne = exp s\nd = sum e {axes=[1], keepdims=true}\n";
  EXPECT_EQ(region(plain + "u = matmul e, V\nO = div u, d\nreturn O\n"),
            "attention f16 1x1x12x20x16 values 8: 3 4 5 6 7");
  EXPECT_EQ(region(plain + "u = matmul e, V\nO = div u, u\nreturn O\n"), "none");
  // Sums along the other axis are no softmax.
  EXPECT_EQ(region("Q = input : f16[16,16]\nK = input : f16[16,16]\nV = input : f16[16,16]\n"
                   "s = matmul Q, K\ne = exp s\nd = sum e {axes=[0], keepdims=true}\n"
                   "p = div e, d\nO = matmul p, V\nreturn O\n"),
            "none");
  // In f32 between products, as frameworks do it.
  EXPECT_EQ(region("Q = input : f16[12,16]\nK = input : f16[16,20]\nV = input : f16[20,8]\n"
                   "s = matmul Q, K\nz = cast s {dtype=f32}\ne = exp z\n"
                   "d = sum e {axes=[1], keepdims=true}\np = div e, d\nh = cast p {dtype=f16}\n"
                   "O = matmul h, V\nreturn O\n"),
            "attention f16 1x1x12x20x16 values 8 keys in columns: 3 4 5 6 7 8");
}

TEST(LibraryCall, RegionsOfChains) {
  EXPECT_EQ(region(kCallInputs +
                   "B = input : f16[4096]\np = matmul X, W\na = add p, B\nr = relu a\n"
                   "return r\n"),
            "matmul f16 1x16x4096x4096 bias relu: 3 4");
  // A sum with another array is no bias.
  EXPECT_EQ(
      region(kCallInputs + "B = input : f16[16,4096]\np = matmul X, W\na = add p, B\nreturn a\n"),
      "none");
  EXPECT_EQ(region(kCallInputs + "p = matmul X, W\na = add p, p\nreturn a\n"), "none");
}

TEST(LibraryCall, IsTakenWhereItIsCheaper) {
  const AnalyticalModel model(find_target("h200", source_dir() + "/targets"));
  auto library = [&](const std::string& text) {
    const auto kernels = model.kernels(parse("graph g {\n" + text + "}"));
    EXPECT_EQ(kernels.size(), 1u);
    return kernels.front().call.has_value();
  };
  // Well tiled for few rows: no call reaches this bandwidth. One block alone: any call is faster.
  const std::string acc = " a = accum p {loops=[0]}\n";
  EXPECT_FALSE(library(
      kernel("grid[x=128] loops[i=32]", "fmap={i:1}", "imap={x:1}, fmap={i:0}", acc + kSave)));
  EXPECT_TRUE(library(
      kernel("grid[x=1] loops[i=32]", "fmap={i:1}", "imap={x:1}, fmap={i:0}", acc + kSave)));
  // A plain operator has no tiles of its own.
  EXPECT_TRUE(library(kCallInputs + "O = matmul X, W\nreturn O\n"));
}

}  // namespace
}  // namespace tessera
