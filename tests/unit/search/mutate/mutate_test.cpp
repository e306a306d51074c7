#include "search/mutate/mutate.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "base/rng.h"
#include "cost/analytical.h"
#include "counting.h"
#include "ir/text.h"
#include "search/mutate/cone.h"
#include "search/mutate/restrict.h"
#include "verify/funnel.h"

namespace tessera {
namespace {

struct MutateOutcome {
  std::vector<Candidate> found;
  MutateReport report;
};

MutateOutcome run(const Graph& g, std::set<std::string> disabled = {}, int depth = 4) {
  const AnalyticalModel cost(default_cpu_target());
  MutateOptions options;
  options.cost = &cost;
  options.disabled = std::move(disabled);
  options.depth = depth;
  options.steps = 30'000;
  options.seconds = 300;  // the steps end it, on any machine
  options.candidates = 1000;
  MutateOutcome o;
  o.found = mutate(g, options, &o.report);
  return o;
}

// What became of each mutant, for messages.
std::string told(const MutateOutcome& o) {
  std::string s = o.report.detail + "\n";
  for (const Candidate& c : o.found) s += c.notes[0] + "\n" + c.derivation;
  return s;
}

const Op* first(const Graph& g, OpKind kind) {
  for (const Op& op : g.ops())
    if (op.kind == kind) return &op;
  return nullptr;
}
// The first candidate that is as asked; null if none is.
template <class F> const Candidate* find(const MutateOutcome& o, F f) {
  for (const Candidate& c : o.found)
    if (f(c)) return &c;
  return nullptr;
}
bool corrected_by(const Candidate& c, const std::string& how) {
  return c.derivation.find("corrected: " + how) != std::string::npos;
}

// PET Figure 3, CSRNet: four dense images, exactly equal.
TEST(Mutate, DilatedConvolutionByPhases) {
  const Graph g = parse(R"(graph g {
  x = input : f32[1,8,7,8]
  w = input : f32[4,8,3,3]
  y = conv x, w {dilations=[2,2], low=[2,2], high=[2,2]}
  return y
})");
  const MutateOutcome o = run(g, {}, 3);
  const Candidate* dense = find(o, [](const Candidate& c) {
    const Op* conv = first(c.graph, OpKind::Conv);
    return c.graph.attrs<ConvAttrs>(*conv).dilations == std::vector<int64_t>{1, 1} &&
           c.graph.type(conv->inputs[0]).shape[0] == Dim(4) &&
           c.derivation.find("corrected") == std::string::npos;
  });
  ASSERT_TRUE(dense) << told(o);
  EXPECT_EQ(o.report.proven, int64_t(o.found.size()));
  EXPECT_GT(o.report.partial, o.report.equal);
  EXPECT_TRUE(verify(g, dense->graph).equal());
}

// PET Figure 1: images side by side, wrong where they meet, corrected in every way.
TEST(Mutate, BatchIntoWidthIsCorrected) {
  const Graph g = parse(R"(graph g {
  x = input : f32[4,4,6,6]
  w = input : f32[4,4,3,3]
  y = conv x, w {low=[1,1], high=[1,1]}
  return y
})");
  auto wide = [](const Candidate& c) {
    const Op* conv = first(c.graph, OpKind::Conv);
    return c.graph.type(conv->inputs[0]).shape[0] == Dim(2) &&
           c.graph.type(conv->inputs[0]).shape[3].extent > 12;
  };
  const MutateOutcome all = run(g, {}, 3);
  const Candidate* spaced =
      find(all, [&](const Candidate& c) { return corrected_by(c, "spacer") && wide(c); });
  ASSERT_TRUE(spaced) << told(all);
  // Of all corrections the cheapest come first.
  EXPECT_TRUE(std::is_sorted(all.found.begin(), all.found.end(),
                             [](const auto& a, const auto& b) { return a.cost < b.cost; }));
  // One column of zeros between two images of six, as in PET's Figure 11.
  EXPECT_EQ(spaced->graph.type(first(spaced->graph, OpKind::Conv)->inputs[0]).shape[3], Dim(14));
  const MutateOutcome fused = run(g, {"spacer", "halo", "recompute"}, 3);
  const Candidate* same =
      find(fused, [&](const Candidate& c) { return corrected_by(c, "fuse") && wide(c); });
  ASSERT_TRUE(same) << told(fused);
  EXPECT_EQ(count(same->graph, OpKind::Conv), 1);  // PET Figure 6
  const MutateOutcome again = run(g, {"spacer", "halo", "fuse"}, 3);
  const Candidate* two = find(again, [&](const Candidate& c) {
    return corrected_by(c, "recompute") && count(c.graph, OpKind::Conv) > 1;
  });
  ASSERT_TRUE(two) << told(again);
  for (const Candidate& c : again.found)
    EXPECT_TRUE(c.derivation.find("corrected: ") == std::string::npos ||
                corrected_by(c, "recompute"));
}

// What larger windows save as several small ones: taps become channels.
TEST(Mutate, TapsBecomeChannels) {
  const Graph g = parse(R"(graph g {
  x = input : f32[1,4,9,8]
  w = input : f32[4,4,5,5]
  y = conv x, w {low=[2,2], high=[2,2]}
  return y
})");
  const std::set<std::string> others = {"rearrange", "matmul", "bundles"};
  const MutateOutcome o = run(g, others, 3);
  // Four blocks of 3×3 taps, the last row and column of which are zeros.
  const Candidate* small = find(o, [](const Candidate& c) {
    const Graph& h = c.graph;
    return h.type(first(h, OpKind::Conv)->inputs[1]).shape == Shape{4, 16, 3, 3};
  });
  ASSERT_TRUE(small) << told(o);
  EXPECT_TRUE(verify(g, small->graph).equal());
  const Candidate* row = find(o, [](const Candidate& c) {
    const Graph& h = c.graph;
    return h.type(first(h, OpKind::Conv)->inputs[1]).shape == Shape{4, 20, 1, 5};
  });
  EXPECT_TRUE(row) << told(o);
  EXPECT_EQ(o.report.proven, int64_t(o.found.size()));
  std::set<std::string> all = others;
  all.insert("windows");
  EXPECT_TRUE(run(g, all, 3).found.empty());
}

// Frames of a film as images: windows over time become channels, time joins the batch.
TEST(Mutate, FilmsBecomeImages) {
  const Graph g = parse(R"(graph g {
  x = input : f32[2,2,4,5,6]
  w = input : f32[3,2,3,3,3]
  y = conv x, w {strides=[1,2,1], low=[1,1,1], high=[1,1,1]}
  return y
})");
  const MutateOutcome o = run(g, {"rearrange", "matmul", "bundles"}, 4);
  const Candidate* images = find(o, [](const Candidate& c) {
    const Op* conv = first(c.graph, OpKind::Conv);
    return c.graph.type(conv->inputs[0]).shape == Shape{8, 6, 5, 6};
  });
  ASSERT_TRUE(images) << told(o);
  EXPECT_TRUE(verify(g, images->graph).equal());
}

// PET Table 3 "conv": an image in tiles, which overlap by the window's reach.
TEST(Mutate, ImageInTiles) {
  const Graph g = parse(R"(graph g {
  x = input : f32[1,4,14,14]
  w = input : f32[4,4,5,5]
  y = conv x, w {low=[2,2], high=[2,2]}
  return y
})");
  const MutateOutcome o = run(g, {"spacer", "fuse", "recompute"}, 3);
  const Candidate* tiled = find(o, [](const Candidate& c) {
    const Op* conv = first(c.graph, OpKind::Conv);
    return corrected_by(c, "halo") && c.graph.type(conv->inputs[0]).shape == Shape{4, 4, 11, 11};
  });
  ASSERT_TRUE(tiled) << told(o);
}

TEST(Mutate, ParallelConvolutionsAreMerged) {
  const Graph g = parse(R"(graph g {
  x = input : f32[1,6,5,5]
  a = input : f32[4,6,1,1]
  b = input : f32[3,6,1,1]
  c = input : f32[3,6,1,1]
  p = conv x, a
  q = conv x, b
  r = conv x, c
  return p, q, r
})");
  const MutateOutcome o = run(g);
  const Candidate* merged = find(o, [](const Candidate& c) {
    return count(c.graph, OpKind::Conv) == 1 && count(c.graph, OpKind::Slice) == 3;
  });
  ASSERT_TRUE(merged) << told(o);
  EXPECT_TRUE(run(g, {"bundles"}).found.empty());
}

// PET Figure 10a: zeros around the smaller windows, exactly equal.
TEST(Mutate, WindowsOfSeveralSizesAreMerged) {
  const Graph g = parse(R"(graph g {
  x = input : f32[1,4,6,5]
  a = input : f32[3,4,1,3]
  b = input : f32[2,4,3,1]
  c = input : f32[2,4,1,1]
  p = conv x, a {low=[0,1], high=[0,1]}
  q = conv x, b {low=[1,0], high=[1,0]}
  r = conv x, c
  return p, q, r
})");
  const auto merged = [](const Candidate& c) {
    const Op* conv = first(c.graph, OpKind::Conv);
    return count(c.graph, OpKind::Conv) == 1 && count(c.graph, OpKind::Pad) == 3 &&
           c.graph.type(conv->inputs[1]).str() == "f32[7,4,3,3]";
  };
  const MutateOutcome o = run(g);
  const Candidate* one = find(o, merged);
  ASSERT_TRUE(one) << told(o);
  EXPECT_TRUE(verify(g, one->graph).equal());
  // Windows that the larger one does not cover: the smaller one reaches further to one side.
  const Graph apart = parse(R"(graph g {
  x = input : f32[1,4,6,5]
  a = input : f32[3,4,1,3]
  b = input : f32[2,4,1,2]
  p = conv x, a {low=[0,2], high=[0,0]}
  q = conv x, b {low=[0,0], high=[0,1]}
  return p, q
})");
  EXPECT_FALSE(
      find(run(apart), [](const Candidate& c) { return count(c.graph, OpKind::Conv) == 1; }));
}

// An average and a convolution of single pixels, in either order: fewer channels first.
TEST(Mutate, PoolingAndPointwiseConvolutionChangePlaces) {
  const auto pooled = [](const Candidate& c) {
    return c.graph.type(first(c.graph, OpKind::PoolSum)->inputs[0]).shape[1].extent;
  };
  const Graph before = parse(R"(graph g {
  x = input : f32[1,8,6,6]
  w = input : f32[2,8,1,1]
  n = const {value=9} : f32[]
  s = pool_sum x {size=[3,3], low=[1,1], high=[1,1]}
  m = div s, n
  y = conv m, w
  return y
})");
  const Graph after = parse(R"(graph g {
  x = input : f32[1,2,6,6]
  w = input : f32[8,2,1,1]
  y = conv x, w
  s = pool_sum y {size=[2,2], strides=[2,2]}
  return s
})");
  for (const Graph* g : {&before, &after}) {
    const MutateOutcome o = run(*g, {"rearrange"}, 3);
    const Candidate* turned = find(o, [&](const Candidate& c) {
      return count(c.graph, OpKind::PoolSum) == 1 && pooled(c) == 2;
    });
    ASSERT_TRUE(turned) << told(o);
    EXPECT_TRUE(verify(*g, turned->graph).equal());
  }
  // Only by a constant is a quotient linear in what is divided.
  const Graph quotient = parse(R"(graph g {
  x = input : f32[4,4]
  y = input : f32[4,4]
  w = input : f32[4,4]
  q = div x, y
  m = matmul q, w
  return m
})");
  EXPECT_EQ(run(quotient).report.stop, StopReason::Unsupported);
}

// Two inputs, one grouped convolution (PET Figure 10b); and the way back.
TEST(Mutate, GroupsAreMergedAndSplit) {
  const Graph apart = parse(R"(graph g {
  x = input : f32[1,4,5,5]
  y = input : f32[1,4,5,5]
  a = input : f32[4,4,3,3]
  b = input : f32[4,4,3,3]
  p = conv x, a {low=[1,1], high=[1,1]}
  q = conv y, b {low=[1,1], high=[1,1]}
  return p, q
})");
  const MutateOutcome joined = run(apart, {"rearrange"});
  EXPECT_TRUE(find(joined, [](const Candidate& c) {
    const Op* conv = first(c.graph, OpKind::Conv);
    return count(c.graph, OpKind::Conv) == 1 && c.graph.attrs<ConvAttrs>(*conv).groups == 2;
  })) << told(joined);
  const Graph grouped = parse(R"(graph g {
  x = input : f32[1,8,5,5]
  w = input : f32[6,4,3,3]
  y = conv x, w {low=[1,1], high=[1,1], groups=2}
  return y
})");
  const MutateOutcome split = run(grouped, {"rearrange"});
  EXPECT_TRUE(find(split, [](const Candidate& c) {
    const Op* conv = first(c.graph, OpKind::Conv);
    return count(c.graph, OpKind::Conv) == 2 && c.graph.attrs<ConvAttrs>(*conv).groups == 1;
  })) << told(split);
}

TEST(Mutate, PointwiseConvolutionIsAProduct) {
  const Graph conv = parse(R"(graph g {
  x = input : f32[1,6,4,5]
  w = input : f32[7,6,1,1]
  y = conv x, w
  return y
})");
  const MutateOutcome o = run(conv, {"rearrange"});
  EXPECT_TRUE(find(o, [](const Candidate& c) {
    return count(c.graph, OpKind::Matmul) == 1 && count(c.graph, OpKind::Conv) == 0;
  })) << told(o);
  const Graph product = parse(R"(graph g {
  x = input : f32[7,6]
  y = input : f32[6,5]
  z = matmul x, y
  return z
})");
  const MutateOutcome back = run(product, {"rearrange"});
  EXPECT_TRUE(find(back, [](const Candidate& c) { return count(c.graph, OpKind::Conv) == 1; }))
      << told(back);
}

TEST(Mutate, StridesBecomeChannels) {
  const Graph g = parse(R"(graph g {
  x = input : f32[1,2,8]
  w = input : f32[3,2,4]
  y = conv x, w {strides=[2]}
  return y
})");
  const MutateOutcome o = run(g, {}, 3);
  EXPECT_TRUE(find(o, [](const Candidate& c) {
    const Op* conv = first(c.graph, OpKind::Conv);
    return conv && c.graph.attrs<ConvAttrs>(*conv).strides == std::vector<int64_t>{1} &&
           c.graph.type(conv->inputs[0]).shape == Shape{1, 4, 4};
  })) << told(o);
}

TEST(Mutate, SaysWhatItDoesNotTake) {
  const Graph g = parse(R"(graph g {
  x = input : f32[2,3]
  y = relu x
  return y
})");
  const MutateOutcome o = run(g);
  EXPECT_TRUE(o.found.empty());
  EXPECT_EQ(o.report.stop, StopReason::Unsupported);
  EXPECT_EQ(o.report.detail, "relu is not multi-linear: split the program there");
  const Graph square = parse(R"(graph g {
  x = input : f32[3,3]
  y = matmul x, x
  return y
})");
  EXPECT_EQ(run(square).report.detail, "matmul multiplies 'x' with itself: not linear in it");
  EXPECT_THROW(run(g, {"everything"}), Error);
}

// Numbers without axes are operands like others.
TEST(Mutate, TakesScalars) {
  const Graph g = parse(R"(graph g {
  a = input : f32[2,3]
  b = input : f32[3,4]
  c = input : f32[]
  m = matmul a, b
  y = add m, c
  return y
})");
  const MutateOutcome o = run(g, {}, 3);
  EXPECT_GT(o.report.tried, 0) << told(o);
  for (const Candidate& c : o.found) EXPECT_TRUE(verify(g, c.graph).equal()) << c.derivation;
}

TEST(Mutate, FindsTheSameTwice) {
  const Graph g = parse(R"(graph g {
  x = input : f32[2,3,4,4]
  w = input : f32[2,3,3,3]
  y = conv x, w {low=[1,1], high=[1,1]}
  return y
})");
  const MutateOutcome a = run(g, {}, 3), b = run(g, {}, 3);
  ASSERT_EQ(a.found.size(), b.found.size());
  EXPECT_FALSE(a.found.empty());
  for (size_t i = 0; i < a.found.size(); i++)
    EXPECT_EQ(print(a.found[i].graph), print(b.found[i].graph));
  EXPECT_EQ(a.report.tried, b.report.tried);
}

// Regions of outputs computed from parts of the inputs, element by element.
TEST(Mutate, RegionsAreWhatTheProgramComputes) {
  const char* const programs[] = {
      R"(graph g {
  x = input : f32[2,4,9,8]
  w = input : f32[6,2,3,3]
  b = input : f32[6,1,1]
  c = conv x, w {strides=[2,1], dilations=[1,2], low=[1,2], high=[1,2], groups=2}
  p = pool_sum c {size=[2,2], strides=[1,2], low=[1,0], high=[0,1]}
  a = add p, b
  n = neg a
  t = transpose n {perm=[2,0,3,1]}
  return t
})",
      R"(graph g {
  x = input : f32[5,6]
  y = input : f32[6,8]
  v = input : f32[8]
  m = matmul x, y
  s = slice m {starts=[1,0], stops=[5,8], steps=[2,1]}
  q = pad s {low=[1,2], high=[2,1], value=0}
  k = concat m, s {axis=0}
  i = mul k, v
  e = mean i {axes=[1], keepdims=true}
  f = broadcast e {shape=[7,4]}
  r = reshape f {shape=[4,7]}
  return q, r, i
})",
      R"(graph g {
  x = input : f32[1,3,4,4]
  w = input : f32[3,2,3,3]
  t = conv_transpose x, w {strides=[2,2], low=[1,1], high=[0,0]}
  half = const {value=1/2} : f32[2,8,8]
  v = sub t, half
  s = input : f32[]
  two = const {value=2} : f32[]
  m = mul v, s
  u = div m, two
  d = repeat u {repeats=[2,1,1,1]}
  z = stack d, d {axis=1}
  return z
})"};
  Rng rng(3);
  for (const char* text : programs) {
    const Graph g = parse(text);
    mutants::Cone whole(g, 5);
    for (size_t k = 0; k < g.outputs().size(); k++)
      for (int trial = 0; trial < 12; trial++) {
        mutants::Region region;
        for (const int64_t n : extents(g.type(g.outputs()[k]).shape)) {
          const int64_t begin = int64_t(rng.below(uint64_t(n)));
          region.push_back({begin, begin + 1 + int64_t(rng.below(uint64_t(n - begin)))});
        }
        Graph part;
        std::vector<TensorId> inputs;
        for (const TensorId t : g.inputs()) inputs.push_back(part.add_input(g.type(t)));
        const auto t = mutants::compute_region(part, inputs, g, k, region);
        if (!t) continue;  // padding only
        mutants::Cone cone(part, 5);
        const auto shape = extents(part.type(*t).shape);
        for (int64_t i = 0; i < num_elements(part.type(*t).shape); i++) {
          mutants::Index at = mutants::unflat(i, shape), there = at;
          for (size_t d = 0; d < shape.size(); d++) {
            ASSERT_EQ(shape[d], region[d].size());
            there[d] += region[d].begin;
          }
          ASSERT_EQ(cone.at(*t, at), whole.at(g.outputs()[k], there)) << print(part);
        }
      }
  }
}

}  // namespace
}  // namespace tessera
