#include "backend/cpu/fuse.h"

#include <gtest/gtest.h>

#include "backend/cpu/channels_last.h"
#include "backend/cpu/emit.h"
#include "backend/testing.h"
#include "counting.h"

namespace tessera {
namespace {

// The fused program has so many kernels and so many other operators that do work, and its code
// computes what the interpreter says of the program itself.
void expect_kernels(const std::string& text, int kernels, int others) {
  const Graph g = parse(text);
  const Graph fused = fuse_operators(g, best_isa());
  EXPECT_EQ(count(fused, OpKind::Kernel), kernels) << print(fused);
  int rest = 0;
  for (const Op& op : fused.ops())
    rest += op.kind != OpKind::Kernel && op.kind != OpKind::Input && op.kind != OpKind::Const &&
            op.kind != OpKind::Reshape;
  EXPECT_EQ(rest, others) << print(fused);
  expect_right(g, best_isa());
}

// A bias, an activation whose operand is used twice, and a residual of a product by weights.
TEST(Fuse, ProductsTakeWhatFollows) {
  for (const char* rows : {"1,37", "3,50", "1,1"}) {
    const std::string r = rows;
    const std::string text = "graph g {\n  x = input : f32[" + r +
                             ",40]\n  w = input {weight=true} : f32[40,72]\n"
                             "  b = input {weight=true} : f32[72]\n  z = input : f32[" +
                             r +
                             ",72]\n"
                             "  h = const {value=1/2} : f32[]\n"
                             "  p = matmul x, w : f32[" +
                             r +
                             ",72]\n"
                             "  q = add p, b : f32[" +
                             r +
                             ",72]\n"
                             "  s = mul q, h : f32[" +
                             r +
                             ",72]\n"
                             "  e = erf s : f32[" +
                             r +
                             ",72]\n"
                             "  m = mul q, e : f32[" +
                             r +
                             ",72]\n"
                             "  y = add m, z : f32[" +
                             r + ",72]\n  return y\n}\n";
    expect_kernels(text, 1, 0);
  }
}

// What others see is stored, too: here the sum with the bias is a result of its own.
TEST(Fuse, ResultsAreNotSwallowed) {
  expect_kernels(R"(graph g {
  x = input : f32[30,40]
  w = input {weight=true} : f32[40,72]
  b = input {weight=true} : f32[72]
  p = matmul x, w : f32[30,72]
  q = add p, b : f32[30,72]
  e = exp q : f32[30,72]
  t = tanh e : f32[30,72]
  return q, t
}
)",
                 1, 0);
}

// An operand that depends on the kernel's own values on another way cannot be read by it.
TEST(Fuse, KernelsDoNotWaitForThemselves) {
  expect_kernels(R"(graph g {
  x = input : f32[48,48]
  w = input {weight=true} : f32[48,48]
  p = matmul x, w : f32[48,48]
  t = transpose p {perm=[1,0]} : f32[48,48]
  y = add p, t : f32[48,48]
  return y
}
)",
                 1, 1);
}

std::string norm(const std::string& rows) {
  return "graph g {\n  x = input : f32[" + rows + ",96]\n  z = input : f32[" + rows +
         ",96]\n"
         "  g = input {weight=true} : f32[96]\n  c = const {value=1/1000} : f32[]\n"
         "  a = add x, z : f32[" +
         rows +
         ",96]\n"
         "  m = mean a {axes=[2], keepdims=true} : f32[" +
         rows +
         ",1]\n"
         "  d = sub a, m : f32[" +
         rows + ",96]\n  s = sqr d : f32[" + rows +
         ",96]\n"
         "  v = mean s {axes=[2], keepdims=true} : f32[" +
         rows +
         ",1]\n"
         "  e = add v, c : f32[" +
         rows + ",1]\n  r = rsqrt e : f32[" + rows +
         ",1]\n"
         "  n = mul d, r : f32[" +
         rows + ",96]\n  y = mul n, g : f32[" + rows +
         ",96]\n"
         "  return y\n}\n";
}

TEST(Fuse, NormsAreOneKernel) {
  expect_kernels(norm("2,64"), 1, 0);
  expect_kernels(norm("3,67"), 1, 0);  // blocks of rows that divide nothing
}

// Heads are split and joined by transposes that nobody carries out; a mask for all heads of a
// sequence; lengths that divide nothing. The reciprocal of the sum is used after the second
// product.
TEST(Fuse, AttentionIsOneKernel) {
  for (const auto& [q, k] : {std::pair<int, int>{40, 40}, {21, 67}}) {
    const std::string m = std::to_string(q), n = std::to_string(k), mn = m + "," + n;
    expect_kernels("graph g {\n  q = input : f32[2," + m + ",3,16]\n  k = input : f32[2," + n +
                       ",3,16]\n  v = input : f32[2," + n + ",3,16]\n  mask = input : f32[2,1,1," +
                       n +
                       "]\n  c = const {value=1/4} : f32[]\n"
                       "  qt = transpose q {perm=[0,2,1,3]} : f32[2,3," +
                       m +
                       ",16]\n"
                       "  kt = transpose k {perm=[0,2,3,1]} : f32[2,3,16," +
                       n +
                       "]\n"
                       "  vt = transpose v {perm=[0,2,1,3]} : f32[2,3," +
                       n +
                       ",16]\n"
                       "  p = matmul qt, kt : f32[2,3," +
                       mn + "]\n  ps = mul p, c : f32[2,3," + mn +
                       "]\n"
                       "  s = add ps, mask : f32[2,3," +
                       mn +
                       "]\n"
                       "  t = reduce_max s {axes=[3], keepdims=true} : f32[2,3," +
                       m +
                       ",1]\n"
                       "  d = sub s, t : f32[2,3," +
                       mn + "]\n  e = exp d : f32[2,3," + mn +
                       "]\n"
                       "  z = sum e {axes=[3], keepdims=true} : f32[2,3," +
                       m +
                       ",1]\n"
                       "  a = div e, z : f32[2,3," +
                       mn + "]\n  o = matmul a, vt : f32[2,3," + m +
                       ",16]\n"
                       "  y = transpose o {perm=[0,2,1,3]} : f32[2," +
                       m + ",3,16]\n  return y\n}\n",
                   1, 0);
  }
}

// What depends on weights alone stays apart, and is computed once.
TEST(Fuse, WeightsStayApart) {
  const Graph g = parse(R"(graph g {
  x = input : f32[30,40]
  w = input {weight=true} : f32[40,72]
  b = input {weight=true} : f32[72]
  e = exp b : f32[72]
  f = add e, b : f32[72]
  p = matmul x, w : f32[30,72]
  y = add p, f : f32[30,72]
  return y
}
)");
  const auto module = Module::compile(g, test_cache());
  EXPECT_EQ(module->plan().run.phases.size(), 1u) << module->plan_text();
  EXPECT_FALSE(module->plan().once.phases.empty());
  expect_right(g, best_isa());
  PlanOptions plan;
  plan.fuse = false;
  ModuleOptions options;
  options.plan = plan;
  EXPECT_EQ(Module::compile(g, test_cache(), options)->plan().run.phases.size(), 2u);
}

Graph times_transpose(int rows, const std::string& type, const std::string& attrs) {
  const std::string r = "[" + std::to_string(rows);
  return parse("graph g {\n  x = input : " + type + r + ",80]\n  w = input" + attrs + " : " + type +
               "[75,80]\n  t = transpose w {perm=[1,0]} : " + type +
               "[80,75]\n  y = matmul x, t : " + type + r + ",75]\n  return y\n}\n");
}

// The columns of a transposed matrix lie in order: few rows meet them there, of weights as well.
TEST(Fuse, FewRowsReadATransposedMatrixWhereItLies) {
  for (const std::string attrs : {"", " {weight=true}"}) {
    for (const int rows : {1, 2, 5, 7, 8}) {
      const Graph g = times_transpose(rows, "f32", attrs);
      const Graph fused = fuse_operators(g, best_isa());
      const bool in_place = attrs.empty() || rows <= 7;
      EXPECT_EQ(count(fused, OpKind::Transpose), in_place ? 0 : 1) << print(fused);
      const auto module = Module::compile(g, test_cache());
      EXPECT_EQ(module->prepared_bytes() == 0, in_place) << module->plan_text();
      for (CpuIsa isa : runnable_isas()) expect_right(g, isa);
    }
    for (const std::string type : {"bf16", "f16", "f64"})
      expect_right(times_transpose(3, type, attrs), best_isa());
  }
}

// What follows a convolution is computed with it.
TEST(Fuse, ConvolutionsKeepWhatFollows) {
  const Graph g = channels_last(parse(R"(graph g {
  x = input : f32[1,16,6,6]
  w = input {weight=true} : f32[32,16,3,3]
  b = input {weight=true} : f32[1,32,1,1]
  c = conv x, w {low=[1,1], high=[1,1]} : f32[1,32,6,6]
  s = add c, b : f32[1,32,6,6]
  y = relu s : f32[1,32,6,6]
  return y
}
)"),
                                best_isa());
  EXPECT_EQ(fuse_operators(g, best_isa()), g);
}

// Reductions of many elements to few are rows, which take what comes before them, and one more of
// what is left. Where no rows fit (a prime number of elements) they stay.
TEST(Fuse, LongReductionsAreStaged) {
  const auto program = [](const std::string& shape, const std::string& body) {
    return "graph g {\n  x = input : f32[" + shape + "]\n  y = input : f32[" + shape + "]\n" +
           body + "\n  return z\n}\n";
  };
  const std::string squares = "  d = sub x, y\n  q = mul d, d\n";
  expect_kernels(program("80000", squares + "  z = sum q {axes=[0]}"), 1, 1);
  expect_kernels(program("80000", squares + "  z = mean q {axes=[0], keepdims=true}"), 1, 1);
  expect_kernels(program("3,5,70,100", squares + "  z = mean q {axes=[0,1,2,3]}"), 1, 1);
  expect_kernels(program("200,400", squares + "  z = sum q {axes=[0,1]}"), 1, 1);
  expect_kernels(program("2,100,400", squares + "  z = reduce_max q {axes=[1,2]}"), 1, 1);
  expect_kernels(program("90000", "  z = reduce_min x {axes=[0]}"), 0, 2);
  expect_kernels(program("80000", "  d = sub x, y\n  e = exp d\n  r = add d, e\n"
                                  "  z = sum r {axes=[0]}"),
                 1, 1);
  expect_kernels(program("80021", squares + "  z = sum q {axes=[0]}"), 1, 1);
  expect_kernels(program("1000", squares + "  z = sum q {axes=[0]}"), 1, 0);
  expect_kernels("graph g {\n  x = input : f32[80000]\n  d = exp x\n  z = sum d {axes=[0]}\n"
                 "  return z, d\n}\n",
                 1, 1);  // what others read is not made twice
  for (const char* d : {"f32", "f64"}) {
    const std::string t = std::string(d) + "[90000]\n";
    expect_kernels("graph g {\n  a = input : " + t + "  b = input : " + t +
                       "  u = unsqueeze a {axes=[0]}\n  v = unsqueeze b {axes=[1]}\n"
                       "  p = matmul u, v\n  z = squeeze p {axes=[0,1]}\n  return z\n}\n",
                   1, 2);
  }
}

// All instruction sets and types that rows and products are computed in.
TEST(Fuse, OtherTypesAndMachines) {
  for (CpuIsa isa : runnable_isas()) {
    for (const std::string type : {isa == best_isa() ? "f64" : "bf16"}) {
      expect_right(parse("graph g {\n  x = input : " + type +
                         "[2,19,40]\n  w = input {weight=true} : " + type +
                         "[40,70]\n  b = input {weight=true} : " + type +
                         "[70]\n  p = matmul x, w : " + type + "[2,19,70]\n  q = add p, b : " +
                         type + "[2,19,70]\n  y = tanh q : " + type +
                         "[2,19,70]\n  t = reduce_max y {axes=[2], keepdims=true} : " + type +
                         "[2,19,1]\n  z = sub y, t : " + type + "[2,19,70]\n  return z\n}\n"),
                   isa);
    }
    if (isa != best_isa()) expect_right(parse(norm("2,9")), isa);
  }
}

}  // namespace
}  // namespace tessera
