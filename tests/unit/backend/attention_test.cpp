// Kernels of attention's kind, compiled for every instruction set, against the interpreter: one
// pass over the keys with a running maximum, keys as given or transposed, odd sizes, several
// dtypes.
#include <gtest/gtest.h>

#include <cmath>

#include "backend/block_programs.h"
#include "backend/testing.h"
#include "eval/eval.h"
#include "ir/validate.h"

namespace tessera {
namespace {

void expect_right_attention(const Shape4& p) { expect_right_everywhere(parse(attention(p))); }

TEST(Attention, OnePassOverTheKeys) {
  expect_right_attention({2, 32, 16, 128, 32, 2, 2});
  expect_right_attention({1, 16, 64, 256, 64, 1, 4});
}

TEST(Attention, OddSizes) {
  expect_right_attention({1, 5, 7, 37, 3, 1, 3});
  expect_right_attention({3, 17, 19, 50, 21, 2, 4});
  expect_right_attention({1, 33, 16, 100, 40, 3, 7});
  expect_right_attention({1, 1, 1, 3, 1, 1, 2});
}

// Every way to split rows over the dot kernels, with depths and keys that fill no whole vector.
TEST(Attention, KeysAsTheyAre) {
  for (int64_t m : {1, 2, 3, 4, 7, 8, 11, 12, 13})
    expect_right_attention({2, m, 32, 96, 32, 1, 3, true});
  expect_right_attention({1, 8, 128, 64, 128, 1, 2, true});
  expect_right_attention({1, 3, 37, 70, 20, 1, 2, true});
  expect_right_attention({2, 9, 20, 67, 20, 2, 3, true});
}

TEST(Attention, SixteenBits) {
  for (const char* dtype : {"bf16", "f16"}) {
    expect_right_attention({1, 8, 64, 128, 64, 1, 2, false, dtype});
    expect_right_attention({2, 3, 40, 70, 24, 1, 2, true, dtype});
  }
}

TEST(Attention, DoublePrecision) {
  expect_right_attention({1, 6, 16, 40, 16, 1, 2, true, "f64"});
  expect_right_attention({1, 6, 16, 40, 16, 1, 2, false, "f64"});
}

// What adversarial inputs must not do: produce anything non-finite where f64 is finite.
TEST(Attention, ExtremeScoresAndMasksStayFinite) {
  for (bool transposed : {false, true}) {
    const Shape4 p{2, 6, 16, 80, 32, 1, 3, transposed, "f32", true};
    const Graph graph = parse(attention(p));
    std::vector<NDArray> in;
    uint64_t state = 7;
    for (TensorId t : graph.inputs()) {
      std::vector<double> data(size_t(num_elements(graph.type(t).shape)));
      for (double& x : data) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        x = (double(state >> 40) / double(1 << 24) - 0.5) * 60;
      }
      in.push_back(NDArray::of(DType::F32, extents(graph.type(t).shape), data));
    }
    std::vector<double>& mask = in[3].reals;
    for (size_t i = 0; i < mask.size(); ++i) {
      const size_t row = i / 80, key = i % 80;
      if (row == 0 && key < 79) mask[i] = -INFINITY;     // one key left, whole tiles masked out
      if (row == 1) mask[i] = key > 40 ? -INFINITY : 0;  // causal
      if (row == 2) mask[i] = -3.4028234663852886e38;    // the least finite number everywhere
      if (row == 3) mask[i] = key == 3 ? 5000 : -5000;   // one key far above the others
      if (row == 4) mask[i] = 100000;                    // equal and huge
    }
    const std::vector<NDArray> want = eval(graph, in);
    for (CpuIsa isa : runnable_isas()) {
      ModuleOptions options;
      options.isa = isa;
      const auto module = Module::compile(graph, test_cache(), options);
      std::vector<std::vector<float>> memory;
      std::vector<const void*> pointers;
      for (const NDArray& x : in) memory.emplace_back(x.reals.begin(), x.reals.end());
      for (const auto& x : memory) pointers.push_back(x.data());
      std::vector<float> out(want[0].reals.size());
      std::vector<void*> outputs{out.data()};
      module->run(pointers, outputs);
      for (size_t i = 0; i < out.size(); ++i) {
        if (!std::isfinite(want[0].reals[i])) continue;
        ASSERT_TRUE(std::isfinite(out[i])) << to_string(isa) << " at " << i;
        // Row 2 is a mean in f64 only as long as scores are not lost in the mask; row 4 rounds.
        const size_t row = i / 32 % 6;
        if (row == 2 || row == 4) continue;
        ASSERT_NEAR(out[i], want[0].reals[i], 2e-2) << to_string(isa) << " at " << i;
      }
    }
  }
}

// Sums of squares are the first to read normalised keys: what lies behind is asked for meanwhile,
// where rows follow each other.
TEST(Rows, SumsOfDenseRowsFetchAhead) {
  const auto sums = [](int64_t width) {
    std::string s = R"(graph sums {
  X = input : f32[13,130]
  O = kernel X grid[x=2, y=G] {
    X = input : f32[13,130]
    x = iter X {imap={x:0, y:1}} : f32[7,W]
    q = sqr x
    r = sum q {axes=[1], keepdims=true}
    m = reduce_max q {axes=[1], keepdims=true}
    o = add r, m
    O = save o {omap={x:0, y:1}} : f32[13,G]
    return O
  } : f32[13,G]
  return O
})";
    for (const auto& [from, to] : {std::pair{"G", 130 / width}, {"W", width}})
      for (size_t at; (at = s.find(from)) != std::string::npos;)
        s.replace(at, 1, std::to_string(to));
    return parse(s);
  };
  const auto fetches = [](const Graph& g) {
    return emit_source(g, best_isa()).find("__builtin_prefetch(v") != std::string::npos;
  };
  EXPECT_TRUE(fetches(sums(130)));
  EXPECT_FALSE(fetches(sums(65)));
  for (CpuIsa isa : runnable_isas()) {
    expect_right(sums(130), isa);
    expect_right(sums(65), isa);
  }
}

// A row's divisor becomes a reciprocal; results beyond the caches are written past them.
TEST(Rows, NormalisedRowsOfALargeTensor) {
  const char* text = R"(graph rows {
  X = input : f32[M,N]
  O = kernel X grid[x=G] {
    X = input : f32[M,N]
    x = iter X {imap={x:0}} : f32[T,N]
    a = abs x
    m = reduce_max a {axes=[1], keepdims=true}
    o = div x, m
    O = save o {omap={x:0}} : f32[M,N]
    return O
  } : f32[M,N]
  return O
})";
  const auto sized = [&](int64_t m, int64_t n, int64_t grid) {
    std::string s = text;
    for (const auto& [from, to] :
         {std::pair{"M,N", std::to_string(m) + "," + std::to_string(n)},
          std::pair{"T,N", std::to_string(up(m, grid)) + "," + std::to_string(n)},
          std::pair{"x=G", "x=" + std::to_string(grid)}})
      for (size_t at; (at = s.find(from)) != std::string::npos;) s.replace(at, 3, to);
    return parse(s);
  };
  expect_right(sized(2051, 2053, 100), best_isa());
  for (CpuIsa isa : runnable_isas()) {
    expect_right(sized(5, 64, 2), isa);
    expect_right(sized(3, 41, 1), isa);
  }
  // Divisors too small for a reciprocal of their own.
  const Graph g = sized(2, 64, 1);
  std::vector<float> in(128, 1e-39f), out(128);
  in[0] = 0x1p-149f;
  for (size_t i = 64; i < 128; ++i) in[i] = i == 64 ? 3e38f : 1e38f;
  for (CpuIsa isa : runnable_isas()) {
    ModuleOptions options;
    options.isa = isa;
    const auto module = Module::compile(g, test_cache(), options);
    std::vector<const void*> inputs{in.data()};
    std::vector<void*> outputs{out.data()};
    module->run(inputs, outputs);
    for (size_t i = 0; i < 128; ++i)
      EXPECT_NEAR(out[i], in[i] / (i < 64 ? 1e-39f : 3e38f), 1e-6) << i;
  }
}

}  // namespace
}  // namespace tessera
