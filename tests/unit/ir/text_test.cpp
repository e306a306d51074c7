#include "ir/text.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "ir/validate.h"

namespace tessera {
namespace {

const char* kRmsNormLinear = R"(graph rmsnorm_linear {
  X = input : f32[16,1024]
  G = input : f32[1024]
  W = input : f32[1024,4096]
  x2 = sqr X : f32[16,1024]
  ms = mean x2 {axes=[1], keepdims=true} : f32[16,1]
  eps = const {value=1e-06} : f32[]
  mse = add ms, eps : f32[16,1]
  r = sqrt mse : f32[16,1]
  n = div X, r : f32[16,1024]
  y = mul n, G : f32[16,1024]
  O = matmul y, W : f32[16,4096]
  return O
}
)";

// Mirage Fig. 3b: one kernel, both reductions accumulated in one loop, division behind the matmul.
const char* kFused = R"(graph fused {
  X = input : f32[16,1024]
  G = input : f32[1024]
  W = input : f32[1024,4096]
  O = kernel X, G, W grid[x=128] loops[i=16] {
    X = input : f32[16,1024]
    G = input : f32[1024]
    W = input : f32[1024,4096]
    x = iter X {fmap={i:1}} : f32[16,64]
    g = iter G {fmap={i:0}} : f32[64]
    w = iter W {imap={x:1}, fmap={i:0}} : f32[64,32]
    xg = mul x, g : f32[16,64]
    p = matmul xg, w : f32[16,32]
    a = accum p {loops=[0]} : f32[16,32]
    x2 = sqr x : f32[16,64]
    s = sum x2 {axes=[1], keepdims=true} : f32[16,1]
    b = accum s {loops=[0]} : f32[16,1]
    c = const {value=1/1024} : f32[]
    m = mul b, c : f32[16,1]
    r = sqrt m : f32[16,1]
    d = div a, r : f32[16,32]
    o = save d {omap={x:1}} : f32[16,4096]
    return o
  } : f32[16,4096]
  return O
}
)";

TEST(Text, PrintsWhatItParsed) {
  for (const char* text : {kRmsNormLinear, kFused}) {
    Graph g = parse(text);
    EXPECT_TRUE(parse(print(g)) == g);
    EXPECT_EQ(print(parse(print(g))), print(g));
  }
  EXPECT_EQ(print(parse(kRmsNormLinear)), kRmsNormLinear);
}

TEST(Text, AttributesThatAreDefaultsAreLeftOut) {
  Graph g =
      parse("graph g { x = input : f32[2,3] y = sum x {axes=[-1], keepdims=false} return y }");
  EXPECT_NE(print(g).find("y = sum x {axes=[1]} : f32[2]"), std::string::npos) << print(g);
}

TEST(Text, NamesAreKeptOrMade) {
  Graph g("odd name");
  TensorId a = g.add_input({DType::F32, {2}}, "t1");
  TensorId b = g.add(OpKind::Exp, {a});
  TensorId c = g.add(OpKind::Exp, {b}, NoAttrs{}, "t1");
  g.add_output(c);
  Graph back = parse(print(g));
  EXPECT_TRUE(back == g) << print(g);
  EXPECT_EQ(back.name(), "odd name");
}

struct BadText {
  const char* text;
  const char* message;
};

// One row per message of the parser and of building; the parser gives each its place.
const BadText kBad[] = {
    {"", "<input>:1:1: expected 'graph', got the end of the file"},
    {"graph", "<input>:1:6: expected the graph's name, got the end of the file"},
    {"graph g nonsense {", "<input>:1:9: expected block, thread or '{', got 'nonsense'"},
    {"graph g x", "<input>:1:9: expected block, thread or '{', got 'x'"},
    {"graph g [", "<input>:1:9: expected '{', got '['"},
    {"graph g {\n}", "<input>:2:1: expected a statement or return, got '}'"},
    {"graph g { 3 }", "<input>:1:11: expected a result's name, got '3'"},
    {"graph g { x input }", "<input>:1:13: expected '=', got 'input'"},
    {"graph g { x = 3 }", "<input>:1:15: expected an operator, got '3'"},
    {"graph g { x = inptu : f32[2] }", "<input>:1:15: unknown operator inptu; did you mean input?"},
    {"graph g { x = input }", "<input>:1:21: input needs its type, as in ': f32[16,1024]'"},
    {"graph g { x = input : f33[2] }",
     "<input>:1:23: expected a dtype (f64 f32 f16 bf16 i64 i32 i8 u8 bool), got 'f33'"},
    {"graph g { x = input : f32[2 3] }", "<input>:1:29: expected ',', got '3'"},
    {"graph g { x = input : f32[0] }",
     "<input>:1:23: type: zero-size dimension in f32[0]; tensors must not be empty"},
    {"graph g { x = input : f32[-1] }", "<input>:1:23: type: negative dimension in f32[-1]"},
    {"graph g { x = input : f32[99999999,99999999] }",
     "<input>:1:23: type: f32[99999999,99999999] has too many elements"},
    {"graph g { x = input : f32[1,1,1,1,1,1,1,1,1,1] }",
     "<input>:1:45: a shape has at most 8 dimensions"},
    {"graph g { x = input : f32[99999999999999999999] }",
     "<input>:1:27: '99999999999999999999' is no extent"},
    {"graph g { x = input : f32[2] x = input : f32[2] }", "<input>:1:30: x is already defined"},
    {"graph g { x, x = input : f32[2] }", "<input>:1:14: x is already defined"},
    {"graph g { x = input : f32[2] y = exp z return y }",
     "<input>:1:38: unknown tensor z; did you mean x?"},
    {"graph g { x = input : f32[2] return }", "<input>:1:37: expected a tensor's name, got '}'"},
    {"graph g { x = input : f32[2] y = add x return y }",
     "<input>:1:34: add takes 2 operands, not 1"},
    {"graph g { x = input : f32[2] y = add x, x, x\n return y }",
     "<input>:1:34: add takes 2 operands, not 3"},
    {"graph g { x = input : f32[2] y = input x : f32[2]\n return y }",
     "<input>:1:34: input takes 0 operands, not 1"},
    {"graph g { x = input : f32[2] y = exp x {a=1}\n return y }",
     "<input>:1:41: exp has no attribute a"},
    {"graph g { x = input : f32[2] y = sum x {axis=[0]}\n return y }",
     "<input>:1:41: sum has no attribute axis; did you mean axes?"},
    {"graph g { x = input : f32[2] y = sum x {axes=[0], axes=[0]}\n return y }",
     "<input>:1:51: attribute axes is given twice"},
    {"graph g { x = input : f32[2] y = sum x {axes=[0], keepdims=1}\n return y }",
     "<input>:1:60: expected true or false, got '1'"},
    {"graph g { x = input : f32[2] y = sum x {3}\n return y }",
     "<input>:1:41: expected an attribute, got '3'"},
    {"graph g { x = input : f32[2] y = sum x {axes=[zero]}\n return y }",
     "<input>:1:47: expected an integer, got 'zero'"},
    {"graph g { x = input : f32[2] y = sum x {axes=[9999999999]}\n return y }",
     "<input>:1:47: the number is out of range"},
    {"graph g { x = input : f32[2] y = pow x {exponent=two}\n return y }",
     "<input>:1:50: expected a number, got 'two'"},
    {"graph g { x = input : f32[2] y = opaque x {function=f}\n return y }",
     "<input>:1:53: expected a string, got 'f'"},
    {"graph g { x = input : f32[2] y = exp x : f32[3]\n return y }",
     "<input>:1:42: y is f32[2], not f32[3]"},
    {"graph g { x = input : f32[2] y = exp x : f32[2], f32[2]\n return y }",
     "<input>:1:42: 2 types for 1 results"},
    {"graph g { x = input : f32[2] y, z = exp x\n return y }",
     "<input>:1:30: exp has 1 results, not 2"},
    {"graph g { x = input : f32[2] return x } extra",
     "<input>:1:41: expected the end of the file, got 'extra'"},
    {"graph g { x = input : f32[2] return x ",
     "<input>:1:39: expected '}', got the end of the file"},
    {"graph g { x = input : f32[2] ; return x }", "<input>:1:30: unexpected character ';'"},
    {"graph g { x = input : f32[2] \x01 return x }", "<input>:1:30: unexpected byte 1"},
    {"graph \"g { ", "<input>:1:7: unterminated string"},
    {"graph \"\\q\" {", "<input>:1:10: unknown escape in a string"},
    {"graph \"\\xZZ\" {", "<input>:1:11: \\x needs two lower-case hexadecimal digits"},
    {"graph g { x = input : f32[2] y = iter x\n return y }",
     "<input>:1:34: iter is not an operator of kernel graphs"},
    {"graph g { x = input : f32[2] y = kernel x { } }", "<input>:1:43: expected 'grid', got '{'"},
    {"graph g { x = input : f32[2] y = kernel x grid[y=2] { } }",
     "<input>:1:48: dimensions are named xyz in order"},
    {"graph g { x = input : f32[2] y = kernel x grid[w=2] { } }",
     "<input>:1:48: expected one of xyz, got 'w'"},
    {"graph g { x = input : f32[2] y = kernel x grid[x=0] { } }",
     "<input>:1:34: grid dimension 0 is out of range"},
    {"graph g { x = input : f32[2] y = kernel x grid[] { } }",
     "<input>:1:34: a block graph has 1 to 3 grid dimensions, not 0"},
    {"graph g { x = input : f32[2] y = kernel x grid[x=2] loops[i=0] { } }",
     "<input>:1:34: loop count 0 is out of range"},
};

TEST(Text, EveryMessageHasItsPlace) {
  for (const BadText& bad : kBad) {
    try {
      parse(bad.text);
      ADD_FAILURE() << "accepted: " << bad.text;
    } catch (const Error& e) {
      EXPECT_STREQ(e.what(), bad.message) << bad.text;
      EXPECT_EQ(e.kind(), ErrorKind::BadInput);
    }
  }
}

TEST(Text, LimitsAreEnforced) {
  EXPECT_THROW(parse(kRmsNormLinear, "f", {.bytes = 100}), Error);
  EXPECT_THROW(parse(kRmsNormLinear, "f", {.ops = 3}), Error);
}

}  // namespace
}  // namespace tessera
