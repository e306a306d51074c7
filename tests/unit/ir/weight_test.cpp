#include <gtest/gtest.h>

#include "base/error.h"
#include "ir/graph.h"
#include "ir/text.h"
#include "ir/validate.h"

namespace tessera {
namespace {

const char* const kLinear = R"(graph linear {
  X = input : f32[2,8]
  W = input {weight=true} : f32[8,4]
  Y = matmul X, W : f32[2,4]
  return Y
}
)";

TEST(Weight, IsPrintedAndParsed) {
  const Graph g = parse(kLinear);
  EXPECT_EQ(print(g), kLinear);
  EXPECT_FALSE(g.is_weight(g.inputs()[0]));
  EXPECT_TRUE(g.is_weight(g.inputs()[1]));
  EXPECT_FALSE(g.is_weight(g.outputs()[0]));
}

TEST(Weight, IsPartOfTheProgram) {
  Graph g = parse(kLinear);
  Graph plain = g;
  plain.set_weight(1, false);
  EXPECT_FALSE(g == plain);
  EXPECT_NE(structural_hash(g), structural_hash(plain));
  EXPECT_TRUE(without_dead_code(g).is_weight(g.inputs()[1]));
  plain.set_weight(1, true);
  EXPECT_TRUE(g == plain);
}

TEST(Weight, OnlyInputsOfTheWholeProgram) {
  Graph g("g");
  Graph body = Graph::block({1}, {});
  const TensorId x = body.add_input({DType::F32, {4}}, "x", true);
  SaveAttrs save;
  save.type = {DType::F32, {4}};
  body.add_output(body.add(OpKind::Save, {body.add(OpKind::Iter, {x}, IterAttrs{})}, save));
  const TensorId in = g.add_input({DType::F32, {4}}, "x");
  const OpId k = g.add_graph_op(OpKind::Kernel, {in}, body);
  g.add_output(g.op(k).result());
  EXPECT_THROW(validate(g), Error);
}

}  // namespace
}  // namespace tessera
