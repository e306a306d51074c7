// Convolutions by oneDNN: by its stand-in, or by the library that TESSERA_ONEDNN names.
#include "backend/cpu/onednn.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "backend/cpu/channels_last.h"
#include "backend/cpu/conv_costs.h"
#include "backend/cpu/emit.h"
#include "backend/cpu/emit_images.h"
#include "backend/testing.h"
#include "places.h"

namespace tessera {
namespace {

// Images of one to three axes, strides, dilations, zeros on one side, rests, and what follows.
constexpr const char* kText = R"(graph g {
  x1 = input : f32[2,32,9,7]
  w1 = input {weight=true} : f32[48,32,3,3]
  b = input {weight=true} : f32[48]
  s = input : f32[2,48,9,7]
  y = conv x1, w1 {low=[1,1], high=[1,1]} : f32[2,48,9,7]
  c = reshape b {shape=[48,1,1]} : f32[48,1,1]
  z = add y, c : f32[2,48,9,7]
  u = add z, s : f32[2,48,9,7]
  y1 = relu u : f32[2,48,9,7]
  x2 = input : f32[1,16,11,13]
  w2 = input : f32[16,16,3,3]
  y2 = conv x2, w2 {dilations=[2,3], low=[2,3], high=[2,3]} : f32[1,16,11,13]
  x3 = input : f32[1,3,15,12]
  w3 = input : f32[20,3,7,5]
  y3 = conv x3, w3 {strides=[2,3], low=[3,0], high=[2,1]} : f32[1,20,7,3]
  x5 = input : f32[2,5,10]
  w5 = input : f32[17,5,4]
  y5 = conv x5, w5 {strides=[1], dilations=[2], low=[1], high=[0]} : f32[2,17,5]
  x6 = input : f32[1,4,5,6,7]
  w6 = input : f32[18,4,3,2,3]
  y6 = conv x6, w6 {strides=[2,1,1], low=[1,0,1], high=[1,1,1]} : f32[1,18,3,6,7]
  x7 = input : f32[3,40,8,9]
  w7 = input : f32[40,1,3,2]
  y7 = conv x7, w7 {strides=[2,1], low=[1,1], high=[1,0], groups=40}
  return y1, y2, y3, y5, y6, y7
})";

class OneDnn : public testing::Test {
 protected:
  void SetUp() override {
    if (std::getenv("TESSERA_ONEDNN") == nullptr) use_onednn(stand_in_dnnl());
    ASSERT_EQ(onednn().problem, "");
  }
  void TearDown() override { use_onednn(""); }
};

TEST_F(OneDnn, ComputesConvolutionsAndWhatFollows) {
  const Graph g = parse(kText, "<test>");
  const CpuIsa isa = runnable_isas().back();
  PlanOptions plan;
  plan.algorithms = {{"", "onednn"}};
  for (int threads : {1, 2, 3}) {
    KernelPool pool(threads);
    const CheckReport report = run_check(g, isa, &pool, plan);
    EXPECT_TRUE(report.passed) << threads << ": " << report.what;
  }
  const Graph laid_out = channels_last(g, isa);
  Target target = default_cpu_target();
  target.cores = 2;
  const Program program = emit_program(laid_out, isa, plan, target);
  std::vector<int64_t> units;
  for (const Step& step : program.steps)
    if (step.library && step.scratch_bytes > 0) units.push_back(step.units);
  if (onednn().version == "3.0.42") {  // only the stand-in wants scratch for all of them
    EXPECT_EQ(units, (std::vector<int64_t>{2, 2, 2, 2, 3, 2}));
  }
}

TEST_F(OneDnn, IsTakenWhereItWasMeasuredToBeFastest) {
  const TemporaryDirectory directory;
  Cache cache({directory.path() + "/cache", {}});
  const Graph g = parse(R"(graph g {
    x = input : f32[1,16,8,8]
    v = input {weight=true} : f32[16,16,1,1]
    a = conv x, v : f32[1,16,8,8]
    return a
  })",
                        "<test>");
  const CpuIsa isa = runnable_isas().back();
  const Graph laid_out = channels_last(g, isa);
  const ImageStep step = image_steps(laid_out, isa).at(0);
  EXPECT_EQ(algorithms_of(laid_out, step, isa),
            (std::vector<ConvAlgorithm>{ConvAlgorithm::Direct, ConvAlgorithm::OneDnn}));
  EXPECT_EQ(choose_algorithm(laid_out, step, isa, 1, {}), ConvAlgorithm::Direct);  // not measured
  KernelPool pool(1);
  EXPECT_EQ(measure_convolutions(g, isa, pool, cache, 60).measured, 1);
  const auto costs = known_costs(signature(laid_out, step), isa, 1, cache);
  ASSERT_TRUE(costs.has_value());
  EXPECT_EQ(costs->seconds.size(), 2u);
  PlanOptions plan;
  plan.algorithms = {{signature(laid_out, step), "onednn"}};
  EXPECT_EQ(choose_algorithm(laid_out, step, isa, 1, plan), ConvAlgorithm::OneDnn);
  plan.libraries = false;
  EXPECT_EQ(choose_algorithm(laid_out, step, isa, 1, plan), ConvAlgorithm::Direct);
  EXPECT_EQ(fastest_algorithms(laid_out, isa, 1, cache, plan).begin()->second, "direct");
  // Without the library, or with another, what was measured with this one is not asked.
  use_onednn("/nowhere/libdnnl.so.3");
  EXPECT_NE(onednn().problem.find("/nowhere"), std::string::npos);
  EXPECT_EQ(algorithms_of(laid_out, step, isa).size(), 1u);
  EXPECT_FALSE(known_costs(signature(laid_out, step), isa, 1, cache).has_value());
  use_onednn(stand_in_cublaslt());
  EXPECT_NE(onednn().problem, "");
}

}  // namespace
}  // namespace tessera
