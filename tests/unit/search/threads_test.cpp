#include "search/mugraph/threads.h"

#include <gtest/gtest.h>

#include "eval/eval.h"
#include "ir/text.h"
#include "ir/validate.h"
#include "search/mugraph/mugraph.h"
#include "search/programs.h"

namespace tessera {
namespace {

using mugraph::form_thread_graphs;

int threads(const Graph& g) {
  int n = 0;
  for (const Op& op : g.ops()) n += op.kind == OpKind::Thread;
  for (const Graph& b : g.bodies()) n += threads(b);
  return n;
}

TEST(Threads, ChainsOfOneShapeAndPhaseBecomeOneOperator) {
  const Graph g = parse(R"(graph g {
  X = input : f32[8,64]
  R = input : f32[8,64]
  O = kernel X, R grid[x=1] loops[i=2] {
    X = input : f32[8,64]
    x = iter X {fmap={i:1}} : f32[8,32]
    R = input : f32[8,64]
    r = iter R {fmap={i:1}} : f32[8,32]
    c = const {value=2} : f32[]
    y = add x, r : f32[8,32]
    z = mul y, c : f32[8,32]
    w = mul z, y : f32[8,32]
    s = sum w {axes=[1], keepdims=true} : f32[8,1]
    a = accum s {loops=[0]} : f32[8,1]
    b = sqrt a : f32[8,1]
    d = div c, b : f32[8,1]
    O = save d : f32[8,1]
    return O
  } : f32[8,1]
  return O
})");
  const Graph t = form_thread_graphs(g);
  validate(t);
  EXPECT_EQ(threads(t), 2) << print(t);  // y z w inside the loop, b d after it
  EXPECT_EQ(parse(print(t)), t);
  EXPECT_EQ(form_thread_graphs(t), t);
  std::vector<NDArray> in;
  for (TensorId i : g.inputs()) {
    std::vector<double> data(512);
    for (size_t k = 0; k < data.size(); ++k) data[k] = double(k % 17) / 7 + double(i.index);
    in.push_back(NDArray::of(DType::F32, extents(g.type(i).shape), data));
  }
  EXPECT_EQ(eval(g, in)[0].reals, eval(t, in)[0].reals);
}

TEST(Threads, SharedIntermediatesAndMaximaStayOutside) {
  const Graph g = parse(R"(graph g {
  X = input : f32[8,64]
  O, P = kernel X grid[x=1] {
    X = input : f32[8,64]
    x = iter X : f32[8,64]
    m = reduce_max x {axes=[1], keepdims=true} : f32[8,1]
    c = const {value=3} : f32[]
    n = max m, c : f32[8,1]
    e = sub x, n : f32[8,64]
    O = save e : f32[8,64]
    f = exp e : f32[8,64]
    P = save f : f32[8,64]
    return O, P
  } : f32[8,64], f32[8,64]
  return O, P
})");
  EXPECT_EQ(form_thread_graphs(g), g);
}

TEST(Threads, SearchFormsThemUnlessToldNotTo) {
  const Target target = default_cpu_target();
  for (const TestProgram& p : test_programs()) {
    if (std::string(p.name) != "rmsnorm_linear_eps") continue;
    const Graph g = parse(p.text, p.name);
    for (bool off : {false, true}) {
      MugraphOptions options;
      if (off) options.ablate = {"thread graphs"};
      Context context;
      context.target = &target;
      CollectingSink sink;
      Mugraph(options).run({g}, context, Budget{}, sink);
      int found = 0;
      for (const Candidate& c : sink.candidates) found += threads(c.graph);
      EXPECT_EQ(found == 0, off);
    }
  }
}

}  // namespace
}  // namespace tessera
