// The validator refuses what is wrong by construction, and most of what a fault generator makes of
// sound kernels; comparison with the interpreter finds the rest.
#include "kernel/validate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <iostream>

#include "backend/loops.h"
#include "base/error.h"
#include "faults.h"
#include "ir/text.h"
#include "kernel/interpret.h"
#include "verify/inputs.h"

namespace tessera::kernel {
namespace {

// y[i] = 2 x[i] for eight elements, of which tests change something.
Function doubled() {
  Function f;
  f.name = "doubled";
  f.buffers.resize(2);
  f.buffers[0].name = "x", f.buffers[1].name = "y";
  f.buffers[0].elements = f.buffers[1].elements = 8;
  f.buffers[1].written = true;
  const Expr i = Expr::variable("i", {0, 7});
  const Scalar x = make(DType::F32, Load{0, i});
  f.body = {{Loop{LoopKind::Parallel,
                  "i",
                  8,
                  {{Store{1, i, apply(OpKind::Mul, {x, literal(DType::F32, 2)})}}}}}};
  return f;
}
Loop& loop_of(Function& f) { return std::get<Loop>(f.body[0].is); }
Store& store_of(Function& f) { return std::get<Store>(loop_of(f).body[0].is); }

TEST(ValidateKernel, SaysWhatIsWrong) {
  const auto why = [](auto change) {
    Function f = doubled();
    change(f);
    return why_invalid(f);
  };
  const Expr i = Expr::variable("i", {0, 7});
  EXPECT_EQ(why([](Function&) {}), "");
  EXPECT_EQ(why([&](Function& f) { store_of(f).offset = i + 1; }),
            "y[i + 1] is one of 1 to 8, of 8 elements");
  EXPECT_EQ(why([&](Function& f) { store_of(f).offset = i / 2; }), "iterations of i may meet at y");
  EXPECT_EQ(why([&](Function& f) { loop_of(f).extent = 9; }), "i has another range here");
  EXPECT_EQ(why([&](Function& f) { loop_of(f).extent = 7; }), "y is not written whole");
  EXPECT_EQ(why([&](Function& f) { store_of(f).buffer = 0; }), "x is not to be written");
  EXPECT_EQ(why([&](Function& f) {
              store_of(f).offset = Expr::variable("j", {0, 7});
            }),
            "j is not known here");
  EXPECT_EQ(why([&](Function& f) {
              store_of(f).value = make(DType::F32, Load{1, i});
            }),
            "y[i] is read before it is known to be written");
  EXPECT_EQ(why([&](Function& f) { store_of(f).value = literal(DType::I32, 1); }),
            "y[i] is f32, not i32");
  EXPECT_EQ(why([&](Function& f) {
              store_of(f).value = apply(OpKind::And, {store_of(f).value, store_of(f).value});
            }).substr(0, 4),
            "and:");
  EXPECT_EQ(why([&](Function& f) { store_of(f).offset = i.within(4); }),
            "no condition keeps i in its range");
  EXPECT_EQ(why([&](Function& f) {
              loop_of(f).body = {{If{i < Expr(4), loop_of(f).body, {}}}};
            }),
            "y is not written whole");
}

TEST(ValidateKernel, KnowsStridedRunsAndWhatSharesMemory) {
  Function f = doubled();
  const Expr i = Expr::variable("i", {0, 1}), j = Expr::variable("j", {0, 3});
  const Scalar x = make(DType::F32, Load{0, i * 4 + j});
  const auto over = [&](const Expr& place) {
    return Body{{Loop{
        LoopKind::Vector, "i", 2, {{Loop{LoopKind::Serial, "j", 4, {{Store{1, place, x}}}}}}}}};
  };
  f.body = over(j * 2 + i);  // transposed
  EXPECT_EQ(why_invalid(f), "");
  f.body = over(j * 2);
  EXPECT_EQ(why_invalid(f), "iterations of i may meet at y");
  // Two values in the workspace that are needed at once.
  Function g = doubled();
  for (const char* name : {"a", "b"}) {
    Buffer w = g.buffers[0];
    w.name = name, w.space = Space::Workspace;
    g.buffers.push_back(w);
  }
  const Expr k = Expr::variable("i", {0, 7});
  const auto copy = [&](int from, int to) {
    return Statement{
        Loop{LoopKind::Vector, "i", 8, {{Store{to, k, make(DType::F32, Load{from, k})}}}}};
  };
  g.body = {copy(0, 2), copy(0, 3), copy(2, 1)};
  EXPECT_EQ(why_invalid(g), "b and a need the same memory at once");
  g.buffers[3].offset = 64;
  EXPECT_EQ(why_invalid(g), "");
}

const char* const kPrograms[] = {
    "graph softmax {\n  x = input : f32[40,37]\n  m = reduce_max x {axes=[1], keepdims=true}\n"
    "  d = sub x, m\n  e = exp d\n  s = sum e {axes=[1], keepdims=true}\n  y = div e, s\n"
    "  return y, m\n}",  // y does not depend on m
    "graph layer {\n  x = input : f32[6,20]\n  w = input : f32[20,70]\n  b = input : f32[70]\n"
    "  p = matmul x, w\n  q = add p, b\n  r = relu q\n  return r, p\n}",
    "graph image {\n  x = input : f32[2,3,9,9]\n  w = input : f32[5,3,3,3]\n"
    "  c = conv x, w {strides=[2,1], low=[1,1], high=[1,1]}\n"
    "  y = pool_max c {size=[2,2], strides=[2,2]}\n  return y\n}",
    "graph moves {\n  x = input : f32[6,10]\n  k = input : i64[4]\n  g = gather x, k {axis=0}\n"
    "  t = transpose g {perm=[1,0]}\n  p = pad t {low=[1,0], high=[0,2]}\n"
    "  c = cumsum p {axis=1}\n  j = concat c, c {axis=0}\n  return j\n}"};

bool agree(const std::vector<NDArray>& a, const std::vector<NDArray>& b) {
  if (a.size() != b.size()) return false;
  for (size_t k = 0; k < a.size(); ++k) {
    if (a[k].shape != b[k].shape || a[k].dtype != b[k].dtype) return false;
    for (size_t i = 0; i < size_t(a[k].size()); ++i) {
      const double x = a[k].at(i), y = b[k].at(i);
      if (!(x == y || (std::isnan(x) && std::isnan(y)) || std::abs(x - y) < 1e-9 * std::abs(x)))
        return false;
    }
  }
  return true;
}

TEST(ValidateKernel, FindsMostFaultsWithoutRunning) {
  int validator = 0, comparison = 0, all = 0;
  std::map<std::string, int> left;
  Rng rng(26);
  for (const char* program : kPrograms) {
    const Graph g = parse(program);
    const Function sound = lower_to_loops(g, std::vector<bool>(g.inputs().size()));
    ASSERT_EQ(why_invalid(sound), "") << text(sound);
    const auto inputs = make_inputs(g, "normal", 1, integer_ranges(g, g, {-3, 3}));
    const auto expected = interpret(sound, inputs);
    for (int n = 0; n < 400; ++n) {
      Function f = sound;
      const std::string field = FaultSites(f).inject(rng);
      if (text(f) == text(sound)) continue;
      ++all;
      if (!why_invalid(f).empty()) {
        ++validator;
        continue;
      }
      bool same = false;
      try {
        same = agree(expected, interpret(f, inputs));
      } catch (const Error&) {
      }
      same ? void(++left[field]) : void(++comparison);
    }
  }
  std::cout << "faults: " << all << ", validator " << validator << ", comparison " << comparison;
  for (const auto& [field, n] : left) std::cout << ", " << field << " harmless " << n;
  std::cout << "\n";
  EXPECT_GE(validator, all * 6 / 10);
  EXPECT_GE(comparison, 1);
  // Loops that may run in other orders, operands that may change places, room to spare, terms of a
  // sum that another lane takes.
  for (const auto& [field, n] : left)
    EXPECT_TRUE(field == "loop.kind" || field == "apply.operands" || field == "buffer.elements" ||
                field == "buffer.offset" || field == "accumulate.offset" || field == "body.order" ||
                field == "apply.kind" || field == "literal.value")
        << field << " " << n;
}

}  // namespace
}  // namespace tessera::kernel
