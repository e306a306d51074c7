// Proofs in parts: programs behind whose functions the field cannot see.
#include "verify/composition.h"
#include "verify/signs.h"

#include "base/error.h"
#include "eval/eval.h"
#include "verify/logarithms.h"
#include "verify/programs.h"

namespace tessera {
namespace {

// Layers of attention over themselves; `late` divides after the product with the values.
std::string layers(int n, bool late, int wrong = -1) {
  std::string s = "x0 = input : f32[5,4]; w = input : f32[4,4]; half = const {value=0.5} : f32[];";
  for (int i = 0; i < n; i++) {
    const std::string k = std::to_string(i), x = "x" + k, y = "x" + std::to_string(i + 1);
    // The shift of the exponents: by the maximum, or by half more.
    s += "q" + k + " = matmul " + x + ", w; t" + k + " = transpose " + x + " {perm=[1,0]};" + "s" +
         k + " = matmul q" + k + ", t" + k + ";" + "m" + k + " = reduce_max s" + k +
         " {axes=[1], keepdims=true}; " +
         (late ? "l" + k + " = add m" + k + ", half; c" + k + " = sub s" + k + ", l" + k
               : "c" + k + " = sub s" + k + ", m" + k) +
         "; e" + k + " = exp c" + k + "; d" + k + " = sum e" + k + " {axes=[1], keepdims=true};";
    if (i == wrong) s += "z" + k + " = mul d" + k + ", half; d" + k + "w = add z" + k + ", half;";
    const std::string d = i == wrong ? "d" + k + "w" : "d" + k;
    s += late ? "n" + k + " = matmul e" + k + ", " + x + "; " + y + " = div n" + k + ", " + d + ";"
              : "p" + k + " = div e" + k + ", " + d + "; " + y + " = matmul p" + k + ", " + x + ";";
  }
  return s + "return x" + std::to_string(n);
}

TEST(Composition, DeepSoftmaxesAreProvedInParts) {
  for (int n : {3, 5}) {
    const Verdict v = compare_programs(layers(n, false), layers(n, true));
    ASSERT_TRUE(v.equal()) << v.str();
    const Certificate& c = v.certificate();
    EXPECT_GT(c.parts.size(), 1u);
    EXPECT_LE(c.error_log2, -40);
    EXPECT_EQ(Certificate::parse(c.str()), c);
  }
}

TEST(Composition, DeeperExponentialsAreOnlyModelled) {
  EXPECT_FALSE(
      has_modelled_operators(program("x = input : f32[2]; a = exp x; b = exp a; return b")));
  EXPECT_TRUE(has_modelled_operators(
      program("x = input : f32[2]; a = exp x; b = exp a; c = sigmoid b; return c")));
}

TEST(Composition, FaultsAreNeverCutAway) {
  for (int wrong = 0; wrong < 4; wrong++) {
    const Verdict v = compare_programs(layers(4, false), layers(4, true, wrong));
    EXPECT_TRUE(v.refuted()) << wrong << v.str();
  }
}

TEST(Composition, TowersOfFunctionsOnlyKnownByName) {
  for (const char* f : {"exp", "log", "sin", "erf", "tanh", "gelu"}) {
    auto tower = [&](bool other) {  // sigmoids as they are, and as e/(1 + e)
      std::string s = "x = input : f32[3,5]; one = const {value=1} : f32[]; y0 = sigmoid x;";
      for (int i = 0; i < 5; i++) {
        const std::string k = std::to_string(i), next = "y" + std::to_string(i + 1);
        s += "f" + k + " = " + f + " y" + k + ";";
        s += other ? "e" + k + " = exp f" + k + "; d" + k + " = add e" + k + ", one; " + next +
                         " = div e" + k + ", d" + k + ";"
                   : next + " = sigmoid f" + k + ";";
      }
      return s + "return y5";
    };
    const Verdict v = compare_programs(tower(false), tower(true));
    ASSERT_TRUE(v.equal()) << f << v.str();
    EXPECT_FALSE(v.certificate().parts.empty()) << f;
  }
}

// Every element of the result needs 400 roots, which are never all defined at once.
TEST(Composition, PairwiseDistancesAreProvedInParts) {
  const std::string head =
      "p = input : f32[20,3]; m = input : f32[20]; c = const {value=0.01} : f32[]; a = unsqueeze p "
      "{axes=[1]}; b = unsqueeze p {axes=[0]}; d = sub a, b; s = sqr d; t = sum s {axes=[2]}; "
      "e = add t, c; u = unsqueeze m {axes=[1]}; v = unsqueeze m {axes=[0]};";
  const std::string spec =
      head + "r = sqrt e; n = mul u, v; q = div n, r; o = sum q {axes=[0,1]}; return o";
  const std::string candidate =
      head + "r = rsqrt e; w = matmul r, u; x = squeeze w {axes=[1]}; y = mul x, m; o = sum y "
             "{axes=[0]}; return o";
  const Verdict v = compare_programs(spec, candidate);
  ASSERT_TRUE(v.equal()) << v.str();
  EXPECT_FALSE(v.certificate().parts.empty());
  const std::string wrong =
      head +
      "r = rsqrt e; w = matmul r, u; x = squeeze w {axes=[1]}; o = sum x {axes=[0]}; return o";
  EXPECT_TRUE(compare_programs(spec, wrong).refuted());
}

TEST(Composition, CutsMayBeTransposedAndReshaped) {
  auto deep = [](std::string x, const std::string& y, bool other) {
    std::string s = "one = const {value=1} : f32[]; b" + y + " = tanh " + x + "; ";
    x = "b" + y;  // within what exp can take
    for (int i = 0; i < 4; i++) {
      const std::string k = y + std::to_string(i), next = i == 3 ? y : "t" + k;
      s += other ? "e" + k + " = exp " + x + "; d" + k + " = add e" + k + ", one; " + next +
                       " = div e" + k + ", d" + k + ";"
                 : next + " = sigmoid " + x + ";";
      x = next;
    }
    return s;
  };
  const std::string spec = "x = input : f32[3,4]; w = input : f32[3,4]; s = add x, w; " +
                           deep("s", "y", false) + "z = sqr y; o = sum z {axes=[1]}; return o";
  const std::string candidate =
      "x = input : f32[3,4]; w = input : f32[3,4]; xt = transpose x {perm=[1,0]}; "
      "wt = transpose w {perm=[1,0]}; s = add xt, wt; r = reshape s {shape=[2,6]}; " +
      deep("r", "y", true) +
      "q = reshape y {shape=[4,3]}; z = mul q, q; o = sum z {axes=[0]}; return o";
  const Verdict v = compare_programs(spec, candidate);
  ASSERT_TRUE(v.equal()) << v.str();
  EXPECT_FALSE(v.certificate().parts.empty());
}

// Whether a cut can be told to be positive decides; where it cannot, nothing is claimed.
TEST(Composition, FactsAboutACutAreProvedOrNotUsed) {
  const Graph g = program("x = input : f32[4]; e = exp x; s = sub e, x; q = sqr s; a = add q, e; "
                          "m = max s, a; n = neg a; return n, m");
  auto at = [&](const char* name) {
    for (size_t i = 0; i < g.tensors().size(); i++)
      if (g.tensors()[i].name == name) return TensorId(i);
    throw Error(ErrorKind::BadInput, name);
  };
  for (const char* yes : {"e", "q", "a", "m"}) EXPECT_TRUE(is_nonnegative(g, at(yes))) << yes;
  for (const char* no : {"x", "s", "n"}) EXPECT_FALSE(is_nonnegative(g, at(no))) << no;
  const Graph h = program("i = input : i8[4]; j = mul i, i; f = cast j {dtype=f32}; return f");
  EXPECT_FALSE(is_nonnegative(h, h.outputs()[0]));  // the product wraps

  auto deep = [](const std::string& last) {
    return "x = input : f32[4]; a = exp x; b = sigmoid a; c = exp b; d = sigmoid c; e = exp d; " +
           last;
  };
  auto deep2 = [](const std::string& last) {
    return "x = input : f32[4]; h = const {value=0.5} : f32[]; y = mul x, h; r = exp y; a = sqr r; "
           "b = sigmoid a; c = exp b; d = sigmoid c; e = exp d; " +
           last;
  };
  // e > 0, so |e| = e; but e − 2 has no sign that is known.
  expect_equal(deep("f = sqr e; return f"), deep2("g = abs e; f = mul g, e; return f"));
  const std::string two = "two = const {value=2} : f32[]; s = sub e, two; ";
  EXPECT_FALSE(
      compare_programs(deep(two + "return s"), deep2(two + "f = abs s; return f")).equal());
}

// A free input stands for finite numbers only.
TEST(Composition, MaskedScoresAreNotCut) {
  const Graph g =
      program("x = input : f32[40]; c = const {value=-inf} : f32[]; o = const {value=0} "
              ": f32[]; b = gt x, o; s = where b, x, c; e = exp s; return e");
  const std::vector<ValuePair> pairs = values_that_look_equal(g, g, 3, nullptr);
  ASSERT_EQ(pairs.size(), 1u);
  EXPECT_EQ(pairs[0].spec, g.outputs()[0]);
}

TEST(Composition, RecheckReplaysPartsAndRefusesGaps) {
  const Graph a = program(layers(3, false)), b = program(layers(3, true));
  VerifyOptions options;
  options.seed = 7;
  const Verdict v = verify(a, b, options);
  ASSERT_TRUE(v.equal()) << v.str();
  const Certificate& good = v.certificate();
  EXPECT_TRUE(recheck(good, a, b, options).ok) << recheck(good, a, b, options).what;

  Certificate gap = good;  // all but the last part, and their draws, left out
  const int last = int(gap.parts.size()) - 1;
  gap.parts.erase(gap.parts.begin(), gap.parts.begin() + last);
  std::erase_if(gap.draws, [&](const FieldDraw& d) { return d.part != last; });
  for (FieldDraw& d : gap.draws) d.part = 0;
  EXPECT_FALSE(recheck(gap, a, b, options).ok);

  Certificate undrawn = good;
  std::erase_if(undrawn.draws, [](const FieldDraw& d) { return d.part == 1; });
  EXPECT_FALSE(recheck(undrawn, a, b, options).ok);

  Certificate other = good;
  other.draws[0].elements++;
  EXPECT_FALSE(recheck(other, a, b, options).ok);

  Certificate garbled = good;
  garbled.parts[0].text += ",";
  EXPECT_FALSE(recheck(garbled, a, b, options).ok);
}

TEST(Composition, SameSeedSameCertificateForAnyThreadCount) {
  VerifyOptions one, two;
  one.seed = two.seed = 11;
  two.threads = 2;
  const Graph a = program(layers(3, false)), b = program(layers(3, true));
  EXPECT_EQ(verify(a, b, one).str(), verify(a, b, two).str());
}

TEST(Composition, PartsReadBack) {
  const ProofPart p{{TensorId(12), TensorId(9), {}},
                    {{TensorId(5), TensorId(4), {}}, {TensorId(8), TensorId(3), {1, 0}}}};
  EXPECT_EQ(p.str(), "target=12:9 cuts=5:4,8:3@1.0");
  EXPECT_EQ(ProofPart::parse(p.str()), p);
  const ProofPart none{{TensorId(1), TensorId(2), {0, 1}}, {}};
  EXPECT_EQ(ProofPart::parse(none.str()), none);
  for (const char* bad : {"", "target=1:2", "target=1 cuts=", "target=1:2 cuts=3",
                          "target=1:2 cuts=3:4,", "target=1:2@ cuts=", "target=1:x cuts="})
    EXPECT_FALSE(ProofPart::parse(bad)) << bad;
}

// --- logarithms

TEST(Logarithms, ExpAndLogCancel) {
  const std::string in = "A = input : f32[6,5]; B = input : f32[6,5]; ";
  expect_equal(in + "a = log A; b = log B; c = sub a, b; y = exp c; return y",
               in + "y = div A, B; return y");
  expect_equal(in + "s = add A, B; l = log s; y = exp l; return y", in + "y = add A, B; return y");
  expect_equal(in + "a = log A; t = transpose a {perm=[1,0]}; y = exp t; return y",
               in + "y = transpose A {perm=[1,0]}; return y");
  expect_equal(in + "q = sqr A; a = log q; y = exp a; return y", in + "y = mul A, A; return y");
}

// Whether the field itself tells two programs apart once logarithms are inputs; the numeric gate,
// which would see the differences below, is not asked.
bool told_apart(const std::string& a, const std::string& b) {
  Graph x = program(a), y = program(b);
  if (auto logged = with_logarithms_as_inputs(x, y)) {
    x = logged->spec;
    y = logged->candidate;
  }
  const FieldModel model(FieldSize::Bits61, 7);
  std::vector<Components> needed = needed_components(x);
  const std::vector<Components> more = needed_components(y);
  for (size_t i = 0; i < needed.size(); i++) needed[i] |= more[i];
  const std::vector<FieldArray> in = draw_inputs(x, model, needed);
  const FieldResult p = eval_field(x, model, in), q = eval_field(y, model, in);
  EXPECT_TRUE(p.ok() && q.ok()) << p.unsupported << q.unsupported;
  return p.ok() && q.ok() && compare(p.outputs[0], q.outputs[0]).different > 0;
}

TEST(Logarithms, OtherSignsAreNotForgotten) {
  EXPECT_FALSE(told_apart("x = input : f32[6]; l = log x; y = exp l; return y",
                          "x = input : f32[6]; z = add x, x; y = sub z, x; return y"));
  const std::string in = "x = input : f32[6]; half = const {value=0.5} : f32[]; ";
  const std::string rows = "a = slice x {starts=[0], stops=[3], steps=[1]}; "
                           "b = slice x {starts=[3], stops=[6], steps=[1]}; l = log a; ";
  // |x| by its square is not x, also where another element's logarithm is taken.
  for (const char* square : {"s = sqr b; ", "s = mul b, b; ", "s = pow b {exponent=2}; "}) {
    EXPECT_TRUE(told_apart(in + rows + square +
                               "m = log s; h = mul half, m; e = exp h; y = add l, e; return y",
                           in + rows + "y = add l, b; return y"))
        << square;
  }
  EXPECT_TRUE(told_apart(in + "s = sqr x; m = log s; h = mul half, m; e = exp h; return e",
                         in + "y = add x, x; e = sub y, x; return e"));
  EXPECT_TRUE(
      told_apart(in + "s = sqr x; m = log s; return m", in + "m = log x; y = add m, m; return y"));
}

TEST(Logarithms, WhatIsNotSaidIsNotProved) {
  const std::string in = "A = input : f32[6,5]; B = input : f32[6,5]; ";
  auto equal = [&](const std::string& a, const std::string& b) {
    return compare_programs(in + a, in + b).equal();
  };
  EXPECT_FALSE(
      equal("a = log A; b = log B; c = sub a, b; y = exp c; return y", "y = mul A, B; return y"));
  // log A is taken, but where A < 0 the result is something else.
  EXPECT_FALSE(equal("zero = const {value=0} : f32[]; c = gt A, zero; l = log A; e = exp l; "
                     "n = neg A; y = where c, e, n; return y",
                     "y = neg A; n = neg y; return n"));
  // |A| = A where the logarithm is defined, and not where it is of the other input.
  EXPECT_FALSE(
      equal("l = log A; m = abs B; y = add l, m; return y", "l = log A; y = add l, B; return y"));
  EXPECT_FALSE(equal("l = log A; y = exp l; z = abs A; return y, z",
                     "y = add A, B; n = sub y, B; return n, A"));
  // √(B²) is |B|, also beside a logarithm of B's square.
  EXPECT_FALSE(equal("q = sqr B; l = log q; e = exp l; r = sqrt e; return r",
                     "n = neg B; m = neg n; return m"));
}

}  // namespace
}  // namespace tessera
