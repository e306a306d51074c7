// Results written over arguments: allowed only where the replay of the plan says so, and then
// right.
#include <gtest/gtest.h>

#include <cmath>

#include "backend/testing.h"
#include "eval/eval.h"
#include "plan/plan.h"

namespace tessera {
namespace {

struct OverwriteProgram {
  const char* text;
  std::vector<std::vector<bool>> may;  // [input][output]
};

const std::vector<OverwriteProgram>& overwrite_programs() {
  static const std::vector<OverwriteProgram> list = {
      {"graph one {\n X = input : f32[40,50]\n y = exp X\n return y\n}", {{true}}},
      // Read once more when the first result is written.
      {"graph later {\n X = input : f32[40,50]\n y = exp X\n m = reduce_max X {axes=[0,1], "
       "keepdims=true}\n r = reshape X {shape=[50,40]}\n k = mul y, m\n z = matmul r, y\n"
       " z2 = sum z {axes=[0,1]}\n return k, z2\n}",
       {{false, false}}},
      // One operand is read where it is written, the other one as well, but it is another array.
      {"graph two {\n A = input : f32[40,50]\n B = input : f32[40,50]\n y = sub A, B\n return y\n}",
       {{true}, {false}}},
      // Every row of the product needs all of X; only after it is X free.
      {"graph product {\n X = input : f32[48,48]\n W = input : f32[48,48]\n y = matmul X, W\n"
       " return y\n}",
       {{false}, {false}}},
      {"graph after {\n X = input : f32[48,48]\n W = input : f32[48,48]\n m = matmul X, W\n"
       " s = transpose m {perm=[1,0]}\n y = exp s\n p = matmul y, y\n return p\n}",
       {{true}, {true}}},
      // Weights keep their values; an output that is an input is a copy.
      {"graph weight {\n W = input {weight=true} : f32[40,50]\n y = exp W\n return y\n}",
       {{false}}},
      {"graph copy {\n X = input : f32[40,50]\n y = exp X\n return y, X\n}", {{false, false}}},
      // Of another size.
      {"graph size {\n X = input : f32[40,50]\n y = sum X {axes=[1]}\n return y\n}", {{false}}},
  };
  return list;
}

TEST(Overwrite, OnlyWhatIsReadBefore) {
  for (const OverwriteProgram& p : overwrite_programs()) {
    const Graph g = parse(p.text);
    const auto module = Module::compile(g, test_cache(), {});
    for (size_t i = 0; i < g.inputs().size(); ++i)
      for (size_t o = 0; o < g.outputs().size(); ++o)
        EXPECT_EQ(module->may_overwrite(i, o), p.may[i][o]) << p.text << " " << i << " " << o;
  }
}

TEST(Overwrite, GivesTheSameResults) {
  int tried = 0;
  for (const OverwriteProgram& p : overwrite_programs()) {
    const Graph g = parse(p.text);
    const auto module = Module::compile(g, test_cache(), {});
    for (size_t i = 0; i < g.inputs().size(); ++i) {
      for (size_t o = 0; o < g.outputs().size(); ++o) {
        if (!module->may_overwrite(i, o)) continue;
        ++tried;
        std::vector<std::vector<float>> in, want, got;
        for (const Type& t : module->input_types()) {
          in.emplace_back(size_t(num_elements(t.shape)));
          for (size_t k = 0; k < in.back().size(); ++k)
            in.back()[k] = std::sin(float(k + 7 * in.size())) / 8;
        }
        for (const Type& t : module->output_types())
          want.emplace_back(size_t(num_elements(t.shape)));
        got = want;
        const auto run = [&](std::vector<std::vector<float>>& out, float* instead) {
          std::vector<const void*> inputs;
          std::vector<void*> outputs;
          for (const auto& x : in) inputs.push_back(x.data());
          for (auto& y : out) outputs.push_back(y.data());
          if (instead != nullptr) outputs[o] = instead;
          module->run(inputs, outputs);
        };
        run(want, nullptr);
        run(got, in[i].data());
        got[o] = in[i];
        EXPECT_EQ(got, want) << p.text;
      }
    }
  }
  EXPECT_GE(tried, 4);
}

}  // namespace
}  // namespace tessera
