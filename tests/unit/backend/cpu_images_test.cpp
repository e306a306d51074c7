// Convolutions and pooling of images whose channels lie last: every algorithm, what follows fused,
// and the orders in which images lie, compiled and compared with the interpreter.
#include <gtest/gtest.h>

#include "backend/cpu/channels_last.h"
#include "backend/cpu/conv_costs.h"
#include "backend/cpu/emit.h"
#include "backend/cpu/emit_images.h"
#include "backend/testing.h"
#include "counting.h"

namespace tessera {
namespace {

constexpr ConvAlgorithm kAlgorithms[] = {ConvAlgorithm::Direct, ConvAlgorithm::Winograd2,
                                         ConvAlgorithm::Winograd4};

PlanOptions only(ConvAlgorithm a) {
  PlanOptions plan;
  plan.algorithms = {{"", name(a)}};
  return plan;
}

// Compiles by every algorithm; one that does not apply to a convolution is another.
void expect_right_by_all(const std::string& text, const std::vector<CpuIsa>& isas = {best_isa()}) {
  const Graph g = parse(text, "<test>");
  for (CpuIsa isa : isas)
    for (ConvAlgorithm a : kAlgorithms) {
      const CheckReport report = run_check(g, isa, nullptr, only(a));
      EXPECT_TRUE(report.passed) << to_string(isa) << " " << name(a) << ": " << report.what << "\n"
                                 << text;
    }
}

TEST(CpuImages, ConvolutionsOfAllKinds) {
  // Extents that no tile divides, channels that fill no vector.
  expect_right_by_all(R"(graph g {
    x1 = input : f32[2,32,9,7]
    w1 = input : f32[48,32,3,3]
    y1 = conv x1, w1 {low=[1,1], high=[1,1]} : f32[2,48,9,7]
    x2 = input : f32[1,16,11,13]
    w2 = input : f32[16,16,3,3]
    y2 = conv x2, w2 {dilations=[2,3], low=[2,3], high=[2,3]} : f32[1,16,11,13]
    x3 = input : f32[1,3,15,12]
    w3 = input : f32[20,3,7,5]
    y3 = conv x3, w3 {strides=[2,3], low=[3,0], high=[2,1]} : f32[1,20,7,3]
    x4 = input : f32[3,33,5,6]
    w4 = input : f32[130,33,1,1]
    y4 = conv x4, w4 : f32[3,130,5,6]
    x5 = input : f32[2,5,10]
    w5 = input : f32[17,5,4]
    y5 = conv x5, w5 {strides=[1], dilations=[2], low=[1], high=[0]} : f32[2,17,5]
    x6 = input : f32[1,4,5,6,7]
    w6 = input : f32[18,4,3,2,3]
    y6 = conv x6, w6 {strides=[2,1,1], low=[1,0,1], high=[1,1,1]} : f32[1,18,3,6,7]
    return y1, y2, y3, y4, y5, y6
  })",
                      runnable_isas());
}

TEST(CpuImages, TransformsOfWindowsOfAllSizes) {
  // Films, with strides, dilations and zeros along their frames; lines of one axis; 5×5 and 7×1.
  const std::string text = R"(graph g {
    x1 = input : f32[2,16,6,9,7]
    w1 = input : f32[32,16,3,3,3]
    y1 = conv x1, w1 {strides=[2,1,1], dilations=[1,1,2], low=[1,1,2], high=[1,1,2]}
    x2 = input : f32[1,16,5,6,6]
    w2 = input : f32[16,16,2,3,3]
    y2 = conv x2, w2 {dilations=[3,1,1], low=[2,1,0], high=[0,1,2]}
    x3 = input : f32[2,16,17,9]
    w3 = input : f32[32,16,7,1]
    y3 = conv x3, w3 {low=[3,0], high=[3,0]}
    x4 = input : f32[1,16,9,10]
    w4 = input : f32[16,16,1,3]
    y4 = conv x4, w4 {low=[0,1], high=[0,1]}
    x5 = input : f32[1,32,11,8]
    w5 = input : f32[16,32,5,5]
    y5 = conv x5, w5 {low=[2,2], high=[2,2]}
    x6 = input : f32[2,16,19]
    w6 = input : f32[16,16,5]
    y6 = conv x6, w6 {low=[2], high=[1], dilations=[2]}
    return y1, y2, y3, y4, y5, y6
  })";
  expect_right_by_all(text);
  const CpuIsa isa = best_isa();
  const Graph laid_out = channels_last(parse(text, "<test>"), isa);
  std::vector<size_t> algorithms;
  for (const ImageStep& s : image_steps(laid_out, isa))
    algorithms.push_back(algorithms_of(laid_out, s, isa).size());
  EXPECT_EQ(algorithms, (std::vector<size_t>{3, 3, 2, 3, 2, 2}));
}

TEST(CpuImages, EachChannelByItself) {
  // Channels that fill blocks of four vectors, single ones and a rest; zeros that leave one tap.
  const std::string text = R"(graph g {
    x1 = input : f32[2,83,9,7]
    w1 = input : f32[83,1,3,3]
    b = input : f32[83,1,1]
    y = conv x1, w1 {low=[1,1], high=[1,1], groups=83} : f32[2,83,9,7]
    z = add y, b : f32[2,83,9,7]
    y1 = relu z : f32[2,83,9,7]
    x2 = input : f32[1,64,10,13]
    w2 = input : f32[64,1,5,2]
    y2 = conv x2, w2 {strides=[2,3], dilations=[1,2], low=[4,0], high=[2,1], groups=64}
    x3 = input : f32[2,16,10]
    w3 = input : f32[16,1,3]
    y3 = conv x3, w3 {low=[2], groups=16}
    x4 = input : f32[1,17,4,5,6]
    w4 = input : f32[17,1,2,3,3]
    y4 = conv x4, w4 {low=[1,1,1], high=[0,1,1], groups=17}
    return y1, y2, y3, y4
  })";
  const std::vector<CpuIsa> isas = runnable_isas();
  expect_right_by_all(text, isas);
  const Graph laid_out = channels_last(parse(text, "<test>"), best_isa());
  EXPECT_EQ(image_steps(laid_out, best_isa()).size(), 4u);
}

TEST(CpuImages, GroupsOfChannels) {
  // Filters that fill a part of a vector or more than one panel, one for two channels, zeros,
  // strides and dilations, and what follows.
  const std::string text = R"(graph g {
    x = input : f32[2,32,6,5]
    w1 = input : f32[64,1,3,3]
    b = input : f32[64,1,1]
    y1 = conv x, w1 {groups=32, low=[1,0], high=[1,1]} : f32[2,64,6,4]
    z = add y1, b : f32[2,64,6,4]
    r1 = relu z : f32[2,64,6,4]
    w2 = input : f32[32,2,3,3]
    y2 = conv x, w2 {groups=16, dilations=[1,2]} : f32[2,32,4,1]
    w3 = input : f32[96,8,1,1]
    y3 = conv x, w3 {groups=4, strides=[2,1]} : f32[2,96,3,5]
    w4 = input : f32[16,2,1,2]
    y4 = conv x, w4 {groups=16} : f32[2,16,6,4]
    u = input : f32[1,60,7]
    w5 = input : f32[60,20,3]
    y5 = conv u, w5 {groups=3, low=[1], high=[1]} : f32[1,60,7]
    v = input : f32[1,14,3,4,5]
    w6 = input : f32[210,2,1,2,2]
    y6 = conv v, w6 {groups=7, low=[0,1,0]} : f32[1,210,3,4,4]
    return r1, y2, y3, y4, y5, y6
  })";
  expect_right_by_all(text, runnable_isas());
  const Graph laid_out = channels_last(parse(text, "<test>"), best_isa());
  EXPECT_EQ(image_steps(laid_out, best_isa()).size(), 6u);
}

TEST(CpuImages, WindowsOfAllWidths) {
  // Lines of one pixel and of many, windows that no kernel knows whole, that reach over the image,
  // or leave pixels out; channels of more than one block; numbers that are none stay.
  expect_right_by_all(R"(graph g {
    x = input : f32[1,41,3,37]
    w1 = input : f32[41,1,2,19]
    y1 = conv x, w1 {groups=41, low=[1,9], high=[0,9]} : f32[1,41,3,37]
    w2 = input : f32[41,1,3,1]
    y2 = conv x, w2 {groups=41, low=[1,0], high=[1,0], strides=[1,5]} : f32[1,41,3,8]
    y3 = pool_max x {size=[1,23], strides=[1,2], low=[0,11], high=[0,11]} : f32[1,41,3,19]
    y4 = pool_sum x {size=[3,37]} : f32[1,41,1,1]
    y5 = pool_max x {size=[2,2], strides=[1,3], dilations=[1,20], low=[0,3], high=[0,1]}
    u = input : f32[2,530,9]
    w6 = input : f32[530,1,7]
    y6 = conv u, w6 {groups=530, low=[3], high=[3]} : f32[2,530,9]
    y7 = pool_max u {size=[3], strides=[3]} : f32[2,530,3]
    s = input : f32[1,16,70000]
    y8 = pool_sum s {size=[320], strides=[9000], low=[9], high=[0]} : f32[1,16,8]
    y9 = pool_max s {size=[3], strides=[20000], dilations=[20000]} : f32[1,16,2]
    y10 = pool_max s {size=[66000], strides=[1000]} : f32[1,16,5]
    return y1, y2, y3, y4, y5, y6, y7, y8, y9, y10
  })",
                      runnable_isas());
}

TEST(CpuImages, WhatFollowsIsFused) {
  const std::string text = R"(graph g {
    x = input : f32[2,16,6,5]
    w = input {weight=true} : f32[32,16,3,3]
    b = input {weight=true} : f32[32]
    s = input : f32[2,32,6,5]
    p = input : f32[2,1,6,5]
    y = conv x, w {low=[1,1], high=[1,1]} : f32[2,32,6,5]
    c = reshape b {shape=[32,1,1]} : f32[32,1,1]
    y1 = add y, c : f32[2,32,6,5]
    y2 = add s, y1 : f32[2,32,6,5]
    y3 = mul y2, p : f32[2,32,6,5]
    two = const {value=2} : f32[]
    y4 = mul y3, two : f32[2,32,6,5]
    y5 = relu y4 : f32[2,32,6,5]
    y6 = exp y5 : f32[2,32,6,5]
    return y6
  })";
  expect_right_by_all(text);
  const Graph laid_out = channels_last(parse(text, "<test>"), best_isa());
  const std::vector<ImageStep> steps = image_steps(laid_out, best_isa());
  ASSERT_EQ(steps.size(), 1u);
  EXPECT_EQ(steps[0].after.size(), 7u);  // a transpose and six operators
  EXPECT_EQ(steps[0].more.size(), 3u);
}

// x·sigmoid(x) and its kin: branches that meet again follow as well; what others read ends it.
TEST(CpuImages, BranchesThatMeetAgainFollow) {
  const std::string head = R"(graph g {
    x = input : f32[2,16,6,5]
    w = input {weight=true} : f32[32,16,3,3]
    b = input {weight=true} : f32[32,1,1]
    g = input : f32[2,32,1,1]
    y = conv x, w {low=[1,1], high=[1,1]} : f32[2,32,6,5]
    z = add y, b
    k = const {value=1/6} : f32[]
    h = const {value=1/2} : f32[]
    zero = const {value=0} : f32[]
    one = const {value=1} : f32[]
    )";
  const auto followers = [&](const std::string& text) {
    expect_right_by_all(head + text + "\n}");
    const Graph laid_out = channels_last(parse(head + text + "\n}", "<test>"), best_isa());
    const std::vector<ImageStep> steps = image_steps(laid_out, best_isa());
    EXPECT_EQ(steps.size(), 1u) << text;
    return int(steps.at(0).after.size()) - 1;
  };
  const std::string swish = "m = mul z, k\n a = add m, h\n n = min a, one\n l = max n, zero\n"
                            "r = mul z, l\n";
  EXPECT_EQ(followers(swish + "return r"), 6);
  EXPECT_EQ(followers("q = mul z, z\n e = exp q\n c = add e, z\n d = mul c, q\n return d"), 5);
  // Half of it is wanted by others: the sum with the bias is all that follows.
  EXPECT_EQ(followers(swish + "return r, l"), 1);
  // A factor that comes of a mean over the result is not there yet.
  EXPECT_EQ(followers(swish + "v = mean r {axes=[2,3], keepdims=true}\n u = mul r, v\n"
                              "t = add u, g\n return t"),
            6);
}

TEST(CpuImages, TwoConvolutionsDoNotShareWhatFollows) {
  // Both could take the sum; and the result of the first has a second user.
  const std::string text = R"(graph g {
    x = input : f32[1,16,6,6]
    u = input : f32[16,16,3,3]
    v = input : f32[16,16,1,1]
    a = conv x, u {low=[1,1], high=[1,1]} : f32[1,16,6,6]
    b = conv x, v : f32[1,16,6,6]
    c = add a, b : f32[1,16,6,6]
    d = relu c : f32[1,16,6,6]
    e = conv d, v : f32[1,16,6,6]
    f = add e, d : f32[1,16,6,6]
    return f, d
  })";
  expect_right_by_all(text);
}

TEST(CpuImages, SlicesAreReadAsArrays) {
  expect_right_by_all(R"(graph g {
    x = input : f32[1,20,6,6]
    s = input : f32[1,40,6,6]
    w = input : f32[16,16,3,3]
    a = slice x {starts=[0,2,0,0], stops=[1,18,6,6], steps=[1,1,1,1]} : f32[1,16,6,6]
    b = slice s {starts=[0,9,0,0], stops=[1,25,6,6], steps=[1,1,1,1]} : f32[1,16,6,6]
    y = conv a, w {low=[1,1], high=[1,1]} : f32[1,16,6,6]
    z = add y, b : f32[1,16,6,6]
    return z
  })");
}

TEST(CpuImages, PoolsJoinsAndReductionsFollowTheOrder) {
  const std::string text = R"(graph g {
    x = input : f32[2,3,17,15]
    u = input : f32[16,3,3,3]
    v = input : f32[24,16,1,1]
    a = conv x, u {strides=[2,2], low=[1,1], high=[1,1]} : f32[2,16,9,8]
    b = pool_max a {size=[3,2], strides=[2,1], low=[1,0], high=[1,1]} : f32[2,16,5,8]
    c = pool_sum a {size=[3,3], strides=[2,1], low=[1,1], high=[1,1]} : f32[2,16,5,8]
    d = concat b, c {axis=1} : f32[2,32,5,8]
    e = mean d {axes=[2,3]} : f32[2,32]
    f = conv b, v : f32[2,24,5,8]
    h = reduce_max f {axes=[1], keepdims=true} : f32[2,1,5,8]
    i = mean f {axes=[2,3], keepdims=true} : f32[2,24,1,1]
    j = reshape i {shape=[2,24]} : f32[2,24]
    return e, h, j
  })";
  expect_right_by_all(text);
  const Graph g = parse(text, "<test>");
  for (CpuIsa isa : runnable_isas()) {
    if (isa < CpuIsa::Avx2) continue;
    // One at the input, those around windows; none in between, where unit axes make reshapes.
    const Graph laid_out = channels_last(g, isa);
    EXPECT_EQ(count(laid_out, OpKind::Transpose), 1 + 2 * 4u + 0u) << print(laid_out);
  }
}

TEST(CpuImages, AsManyChannelsAsColumnsAreTurnedAllTheSame) {
  // [1, 24, 24] has the same extents in either order; [1, 24, 1] only has its ones elsewhere.
  const Graph g = parse(R"(graph g {
    x = input : f32[1,24,24]
    y = pool_sum x {size=[1], strides=[2], low=[1]}
    z = input : f32[1,24,1]
    w = pool_max z {size=[1]}
    e = exp x
    v = pool_sum e {size=[3], low=[1], high=[1]}
    u = mul v, e
    return y, w, u
  })");
  for (CpuIsa isa : runnable_isas()) expect_right(g, isa);
}

TEST(CpuImages, NothingIsTurnedWithoutImages) {
  const Graph g =
      parse("graph g {\n x = input : f32[4,5]\n y = relu x : f32[4,5]\n return y\n}", "<test>");
  EXPECT_EQ(channels_last(g, best_isa()), g);
  // Windows without number are folded as they lie.
  const Graph wide = parse(R"(graph g {
    x = input : f32[1,32,70000]
    y = pool_sum x {size=[66000]} : f32[1,32,4001]
    return y
  })",
                           "<test>");
  EXPECT_EQ(channels_last(wide, best_isa()), wide);
}

TEST(CpuImages, TransformsAreOnlyUsedWhereAllowed) {
  const Graph g = parse(R"(graph g {
    x = input : f32[1,64,16,16]
    w = input {weight=true} : f32[64,64,3,3]
    y = conv x, w {low=[1,1], high=[1,1]} : f32[1,64,16,16]
    return y
  })",
                        "<test>");
  const Graph laid_out = channels_last(g, best_isa());
  EXPECT_GT(emit_program(laid_out, best_isa(), only(ConvAlgorithm::Winograd4)).normwise, 0);
  PlanOptions strict = only(ConvAlgorithm::Winograd4);
  strict.transforms = Transforms::None;
  EXPECT_EQ(emit_program(laid_out, best_isa(), strict).normwise, 0);
  strict.transforms = Transforms::Common;
  EXPECT_GT(emit_program(laid_out, best_isa(), strict).normwise, 0);
  const Graph dilated = channels_last(parse(R"(graph g {
    x = input : f32[1,64,16,16]
    w = input {weight=true} : f32[64,64,3,3]
    y = conv x, w {dilations=[2,2], low=[2,2], high=[2,2]} : f32[1,64,16,16]
    return y
  })"),
                                      best_isa());
  EXPECT_EQ(emit_program(dilated, best_isa(), strict).normwise, 0);
  EXPECT_GT(emit_program(dilated, best_isa(), only(ConvAlgorithm::Winograd4)).normwise, 0);
  // Element by element, transforms are not accurate: that is why the check has to know.
  ModuleOptions options;
  options.plan = only(ConvAlgorithm::Winograd4);
  const auto module = Module::compile(g, test_cache(), options);
  const auto run = [&](auto in, auto out) { module->run(in, out); };
  EXPECT_FALSE(check_compiled(g, run).has_value());
  CheckOptions check;
  check.normwise = module->normwise();
  EXPECT_TRUE(check_compiled(g, run, check).has_value());
}

// As mutants have them: images of phases, zeros and cuts, between windows.
TEST(CpuImages, RearrangedImagesAreCopiedOnce) {
  const std::string text = R"(graph g {
    x = input : f32[1,16,8,8]
    u = input {weight=true} : f32[16,16,3,3]
    v = input {weight=true} : f32[16,16,3,3]
    a = conv x, u {low=[1,1], high=[1,1]} : f32[1,16,8,8]
    b = reshape a {shape=[1,16,4,2,4,2]} : f32[1,16,4,2,4,2]
    c = transpose b {perm=[3,5,0,1,2,4]} : f32[2,2,1,16,4,4]
    d = reshape c {shape=[4,16,4,4]} : f32[4,16,4,4]
    e = conv d, v {low=[1,1], high=[1,1]} : f32[4,16,4,4]
    p = pad e {low=[0,0,1,0], high=[0,0,0,1]} : f32[4,16,5,5]
    s = slice p {starts=[0,0,0,1], stops=[4,16,5,5], steps=[1,1,1,1]} : f32[4,16,5,4]
    y = conv s, u {low=[1,1], high=[1,1]} : f32[4,16,5,4]
    return y
  })";
  // Two at each window; at the input, at the output, and one for phases.
  EXPECT_EQ(count(channels_last(parse(text, "<test>"), best_isa()), OpKind::Transpose), 9u);
  expect_right_by_all(text);
}

TEST(CpuImages, ChainsThatRepeatTilesAreRight) {
  const Graph g = parse(R"(graph g {
    x = input : f32[1,16,6,6]
    u = input {weight=true} : f32[16,16,3,3]
    v = input {weight=true} : f32[16,16,3,3]
    a = conv x, u {low=[2,2], high=[2,2], dilations=[2,2]} : f32[1,16,6,6]
    b = relu a : f32[1,16,6,6]
    c = conv b, v {low=[2,2], high=[2,2], dilations=[2,2]} : f32[1,16,6,6]
    return c
  })",
                        "<test>");
  const auto module = Module::compile(g, test_cache());
  CheckOptions check;
  check.normwise = module->normwise();
  check.whole_cost = 0;  // as of programs that are expensive to interpret
  CheckReport report;
  EXPECT_TRUE(check_compiled(
      g, [&](auto in, auto out) { module->run(in, out); }, check, &report))
      << report.what;
}

TEST(CpuImages, NormwiseComparisonStillFindsWrongCode) {
  const Graph g = parse(R"(graph g {
    x = input : f32[1,16,8,8]
    w = input : f32[16,16,3,3]
    y = conv x, w {low=[1,1], high=[1,1]} : f32[1,16,8,8]
    return y
  })",
                        "<test>");
  const auto module = Module::compile(g, test_cache());
  CheckOptions check;
  check.normwise = 16;
  EXPECT_FALSE(check_compiled(
                   g,
                   [&](auto in, auto out) {
                     module->run(in, out);
                     static_cast<float*>(out[0])[100] *= 1.01f;
                   },
                   check)
                   .has_value());
}

TEST(CpuImages, CostsAreMeasuredOnceAndKept) {
  const TemporaryDirectory directory;
  Cache cache({directory.path() + "/cache", {}});
  const Graph g = parse(R"(graph g {
    x = input : f32[1,16,8,8]
    u = input {weight=true} : f32[16,16,3,3]
    v = input {weight=true} : f32[16,16,1,1]
    a = conv x, u {low=[1,1], high=[1,1]} : f32[1,16,8,8]
    b = conv a, u {low=[1,1], high=[1,1]} : f32[1,16,8,8]
    c = conv b, v : f32[1,16,8,8]
    return c
  })",
                        "<test>");
  KernelPool pool(1);
  const CpuIsa isa = best_isa();
  const Graph laid_out = channels_last(g, isa);
  EXPECT_TRUE(fastest_algorithms(laid_out, isa, 1, cache).empty());
  const ConvMeasurement none = measure_convolutions(g, isa, pool, cache, 0);
  EXPECT_FALSE(none.finished);
  const ConvMeasurement first = measure_convolutions(g, isa, pool, cache, 60);
  EXPECT_EQ(first.convolutions, 1);  // equal ones share; of 1×1 there is nothing to choose
  EXPECT_EQ(first.measured, 1);
  EXPECT_EQ(measure_convolutions(g, isa, pool, cache, 60).measured, 0);
  const auto fastest = fastest_algorithms(laid_out, isa, 1, cache);
  ASSERT_EQ(fastest.size(), 1u);
  const auto costs = known_costs(fastest.begin()->first, isa, 1, cache);
  ASSERT_TRUE(costs.has_value());
  EXPECT_EQ(costs->seconds.size(), 3u);
  EXPECT_GT(costs->rounds, 2);
  for (const auto& [algorithm, seconds] : costs->seconds)
    EXPECT_GE(seconds, costs->seconds.at(fastest.begin()->second)) << algorithm;
  // Another number of threads is another machine.
  EXPECT_FALSE(known_costs(fastest.begin()->first, isa, 2, cache).has_value());
  EXPECT_EQ(parse_conv_costs(costs->str())->seconds, costs->seconds);
  ConvCosts quick = *costs;
  quick.seconds["quick"] = 2;
  EXPECT_FALSE(parse_conv_costs(quick.str()).has_value());
  EXPECT_FALSE(parse_conv_costs("direct x").has_value());
}

}  // namespace
}  // namespace tessera
