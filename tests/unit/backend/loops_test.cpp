// Programs as loops: what they compute is compared with the reference interpreter by export_c
// itself, in f64 and in a finite field.
#include "backend/loops.h"

#include <gtest/gtest.h>

#include "backend/export_c.h"
#include "base/error.h"
#include "ir/text.h"
#include "kernel/validate.h"

namespace tessera {
namespace {

CExport exported(const Graph& g) {
  return export_c(g, std::vector<bool>(g.inputs().size()), "program");
}
CExport exported(const std::string& body) { return exported(parse("graph g {\n" + body + "\n}")); }

TEST(Loops, ComputeWhatEveryFamilyOfOperatorsDoes) {
  for (const char* body : {
           "x = input : f32[3,70]\ny = sum x {axes=[0]}\nreturn y",
           "x = input : f32[3,70]\ny = mean x {axes=[1]}\nreturn y",
           "x = input : f32[3,7,5]\ny = sum x {axes=[0,2], keepdims=true}\nreturn y",
           "x = input : f64[2000]\ny = sum x {axes=[0]}\nreturn y",
           "x = input : f32[33,4]\ny = reduce_max x {axes=[0,1]}\nreturn y",
           "x = input : f32[4,9]\ny = cumsum x {axis=0}\nreturn y",
           "x = input : f32[3,4]\ny = input : f32[4,130]\nz = matmul x, y\nreturn z",
           "x = input : f32[2,9,4]\ny = input : f32[4,5]\nz = matmul x, y\nreturn z",
           "x = input : f32[2,1,3,4]\ny = input : f32[5,4,6]\nz = matmul x, y\nreturn z",
           "x = input : f32[7,40]\ny = input : f32[9,40]\nt = transpose y {perm=[1,0]}\n"
           "z = matmul x, t\nreturn z",
           "w = input : f32[3,4]\nx = input : f32[3,5]\ny = input : f32[4,6]\nz = input : "
           "f32[5,6]\n"
           "r = concat_matmul w, x, y, z\nreturn r",
           "x = input : f32[2,4,9,9]\nw = input : f32[6,2,3,3]\n"
           "y = conv x, w {groups=2, strides=[2,1], dilations=[1,2], low=[1,0], high=[2,1]}\n"
           "return y",
           "x = input : f32[2,5,4,4]\nw = input : f32[7,5,1,1]\ny = conv x, w\nreturn y",
           "x = input : f32[2,4,9]\nw = input : f32[4,3,4]\n"
           "y = conv_transpose x, w {groups=2, strides=[3], dilations=[2], low=[1], high=[2]}\n"
           "return y",
           "x = input : f32[2,3,9,8]\n"
           "y = pool_max x {size=[3,2], strides=[2,2], low=[1,0], high=[1,0]}\nreturn y",
           "x = input : i32[3,9]\ny = pool_max x {size=[2], low=[1], high=[0]}\n"
           "z = pool_sum x {size=[2], low=[1], high=[0]}\nreturn y, z",
           "x = input : f32[4,6]\ny = triu x {k=1}\nz = tril x {k=-1}\nreturn y, z",
           "x = input : f32[4,6]\ny = pad x {low=[1,0], high=[0,2], value=2}\n"
           "z = repeat y {repeats=[2,1]}\nreturn z",
           "x = input : f32[4,6]\ny = reshape x {shape=[3,8]}\nt = transpose y {perm=[1,0]}\n"
           "z = reshape t {shape=[4,6]}\nr = add x, z\nreturn r",
           "x = input : f32[4,6]\ny = input : f32[4,2]\nz = concat x, y, x {axis=1}\n"
           "s = stack z, z {axis=1}\nreturn s",
           "x = input : f32[9,4]\ni = input : i64[2,3]\ny = gather x, i {axis=0}\n"
           "z = slice y {starts=[0,1,0], stops=[2,3,4], steps=[1,1,2]}\nreturn z",
           "x = input : f32[3,4]\ni = iota {axis=1} : f32[3,4]\ny = mul x, i\n"
           "b = gt y, x\nz = where b, x, y\nreturn z, b",
           "x = input : i64[5]\ny = input : i64[5]\nz = mul x, y\nm = mod z, y\nreturn m, x",
           "x = input : f16[5]\ny = cast x {dtype=f32}\nz = cast y {dtype=i8}\nreturn y, z",
       }) {
    SCOPED_TRACE(body);
    const CExport e = exported(body);
    EXPECT_GT(e.compared, 0);
    EXPECT_NE(e.source.source.find("return 0;"), std::string::npos);
  }
}

TEST(Loops, ComputeEveryPointwiseOperator) {
  int fields = 0;
  for (const OpKind kind : all_op_kinds()) {
    if (!has(kind, algebra::Pointwise)) continue;
    SCOPED_TRACE(name(kind));
    Graph g("g");
    const DType dtype = has(kind, algebra::Bools) ? DType::Bool : DType::F32;
    std::vector<TensorId> in;
    for (int i = 0; i < info(kind).min_arity; ++i)
      in.push_back(g.add_input({kind == OpKind::Where && i == 0 ? DType::Bool : dtype, {4, 7}}));
    Attrs attrs = info(kind).default_attrs;
    if (kind == OpKind::Pow) attrs = PowAttrs{Rational(3)};
    g.set_outputs({g.add(kind, in, attrs)});
    const CExport e = exported(g);
    EXPECT_EQ(e.compared, 28);
    fields += e.compared_exactly > 0;
  }
  EXPECT_GT(fields, 20);
}

TEST(Loops, RefuseWhatTheyDoNotKnow) {
  const auto refused = [](const std::string& body) {
    try {
      exported(body);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_NE(refused("x = input : f32[N]\ny = exp x\nreturn y").find("--shape N=128"),
            std::string::npos);
}

TEST(Loops, PullOperatorsIntoWhatReadsThem) {
  // One block: a sum of an expression.
  const Graph g = parse("graph g {\n  x = input : f32[8,64]\n  e = sqr x\n"
                        "  s = sum e {axes=[1]}\n  return s\n}");
  const kernel::Function f = lower_to_loops(g, {false});
  EXPECT_EQ(f.body.size(), 1);
  EXPECT_EQ(f.bytes(kernel::Space::Workspace), 0);
  // exp is asked for twice: it has memory of its own.
  const Graph h = parse("graph g {\n  x = input : f32[8,64]\n  e = exp x\n"
                        "  s = sum e {axes=[1], keepdims=true}\n  y = div e, s\n  return y\n}");
  EXPECT_EQ(lower_to_loops(h, {false}).body.size(), 3);
}

}  // namespace
}  // namespace tessera
