// What all blocks share is computed once, also where a grid dimension has a single block.
#include <gtest/gtest.h>

#include "backend/check.h"
#include "backend/cpu/module.h"
#include "ir/text.h"

namespace tessera {
namespace {

TEST(SharedPart, GridDimensionOfOneBlock) {
  const Graph g = parse(R"(graph g {
    X = input : f32[1,2]
    W = input : f32[2,4]
    O = kernel X, W grid[x=1, y=2] loops[i=1] {
      X = input : f32[1,2]
      W = input : f32[2,4]
      x = iter X {imap={x:0}, fmap={i:1}}
      w = iter W {imap={y:1}, fmap={i:0}}
      x2 = sqr x
      s = sum x2 {axes=[1], keepdims=true}
      a = accum s
      r = sqrt a
      p = matmul x, w
      b = accum p
      d = div b, r
      o = save d {omap={x:0, y:1}} : f32[1,4]
      return o
    }
    return O
  })");
  Cache cache;
  const auto module = Module::compile(g, cache);
  CheckReport report;
  EXPECT_TRUE(check_compiled(
      g, [&](auto in, auto out) { module->run(in, out); }, {}, &report))
      << report.what;
  EXPECT_NE(module->source().find("_once"), std::string::npos) << "nothing was shared";
}

}  // namespace
}  // namespace tessera
