// Proofs of programs that are the same but for some regions.
#include "verify/regions.h"

#include "verify/congruence.h"
#include "verify/programs.h"
#include "verify/symmetry.h"

namespace tessera {
namespace {

// Convolutions of 8 channels over 6×6 images, each followed by a bias and a relu. `kinds` says how
// each is written: '.' plainly, 't' with height and width exchanged, 'x' with one bias forgotten,
// 'w' exchanged but for the weights.
std::string net(const std::string& kinds, const std::string& batch = "2") {
  std::string s = "y0 = input : f32[" + batch + ",8,6,6]; half = const {value=0.5} : f32[]; ";
  const std::string pads = " {low=[1,1], high=[1,1]}; ";
  for (size_t i = 0; i < kinds.size(); i++) {
    const std::string k = std::to_string(i), x = "y" + k, y = "y" + std::to_string(i + 1);
    s += "w" + k + " = input : f32[8,8,3,3]; b" + k + " = input : f32[8,1,1]; ";
    if (kinds[i] == 't' || kinds[i] == 'w') {
      s += "p" + k + " = transpose " + x + " {perm=[0,1,3,2]}; ";
      s += kinds[i] == 't' ? "v" + k + " = transpose w" + k + " {perm=[0,1,3,2]}; "
                           : "v" + k + " = transpose w" + k + " {perm=[0,1,2,3]}; ";
      s += "q" + k + " = conv p" + k + ", v" + k + pads;
      s += "c" + k + " = transpose q" + k + " {perm=[0,1,3,2]}; ";
    } else {
      s += "c" + k + " = conv " + x + ", w" + k + pads;
    }
    s += kinds[i] == 'x' ? "a" + k + " = add c" + k + ", half; "
                         : "a" + k + " = add c" + k + ", b" + k + "; ";
    s += y + " = relu a" + k + "; ";
  }
  return s + "return y" + std::to_string(kinds.size());
}

VerifyOptions by_regions(int64_t max_macs = 5'000'000'000) {
  VerifyOptions o;
  o.seed = 20260102;
  o.whole_cost = 1000;
  o.max_macs = max_macs;
  return o;
}

Verdict compare_nets(const std::string& a, const std::string& b,
                     const VerifyOptions& o = by_regions()) {
  return verify(program(a), program(b), o);
}

TEST(Regions, OneOfManyLayersIsProvedAlone) {
  const Graph a = program(net("........")), b = program(net("...t...."));
  const Verdict v = verify(a, b, by_regions());
  ASSERT_TRUE(v.equal()) << v.str();
  const Certificate& c = v.certificate();
  ASSERT_EQ(c.parts.size(), 1u) << v.str();
  const auto region = ProofPart::parse(c.parts[0].text);
  ASSERT_TRUE(region && region->tiles) << c.parts[0].text;
  EXPECT_EQ(region->cuts.size(), 1u);
  const auto programs = definitions_of(*region, a, b, nullptr);
  ASSERT_TRUE(programs);
  // One convolution, of one image and its weights.
  EXPECT_EQ(programs->spec.inputs().size(), 2u);
  EXPECT_LT(evaluation_cost(programs->candidate), evaluation_cost(b) / 6);
  EXPECT_LE(c.error_log2, -40);
  EXPECT_EQ(Certificate::parse(c.str()), c);
  EXPECT_TRUE(recheck(c, a, b, by_regions()).ok) << recheck(c, a, b, by_regions()).what;
}

TEST(Regions, EveryLayerMayBeRewritten) {
  const Verdict v = compare_nets(net("........"), net("tttttttt"));
  ASSERT_TRUE(v.equal()) << v.str();
  EXPECT_EQ(v.certificate().parts.size(), 8u) << v.str();
  const Verdict ends = compare_nets(net("t....t"), net(".t..t."));
  ASSERT_TRUE(ends.equal()) << ends.str();
  EXPECT_EQ(ends.certificate().parts.size(), 4u) << ends.str();
}

// The same with height and width exchanged from the first layer to the last; `wrong`: in one layer
// no bias is added.
std::string exchanged(int layers, int wrong = -1) {
  std::string s = "y0 = input : f32[2,8,6,6]; half = const {value=0.5} : f32[]; "
                  "p0 = transpose y0 {perm=[0,1,3,2]}; ";
  for (int i = 0; i < layers; i++) {
    const std::string k = std::to_string(i);
    s += "w" + k + " = input : f32[8,8,3,3]; b" + k + " = input : f32[8,1,1]; ";
    s += "v" + k + " = transpose w" + k + " {perm=[0,1,3,2]}; ";
    s += "q" + k + " = conv p" + k + ", v" + k + " {low=[1,1], high=[1,1]}; ";
    s += "a" + k + " = add q" + k + ", " + (i == wrong ? "half" : "b" + k) + "; ";
    s += "p" + std::to_string(i + 1) + " = relu a" + k + "; ";
  }
  return s + "y = transpose p" + std::to_string(layers) + " {perm=[0,1,3,2]}; return y";
}

TEST(Regions, LayoutsThatLayersKeepAreProvedByWayOfAProgramBetween) {
  const Graph a = program(net("....")), b = program(exchanged(4)), between = program(net("tttt"));
  const Verdict v = Verifier(a, by_regions()).verify(b, &between);
  ASSERT_TRUE(v.equal()) << v.str();
  const Certificate& c = v.certificate();
  EXPECT_FALSE(c.between.empty()) << v.str();
  EXPECT_EQ(Certificate::parse(c.str()), c);
  EXPECT_LE(c.error_log2, -40);
  // Convolutions alone; the second step has functions of signs, of what is cheap.
  for (size_t i = 0; i < c.parts.size(); i++)
    if (!c.parts[i].second) {
      EXPECT_EQ(std::count_if(c.draws.begin(), c.draws.end(),
                              [&](const FieldDraw& d) { return d.part == int(i); }),
                3);
    }
  const Recheck good = recheck(c, a, b, by_regions());
  EXPECT_TRUE(good.ok) << good.what;
  Certificate other = c;
  other.between = print(program(net("tttx")));
  EXPECT_FALSE(recheck(other, a, b, by_regions()).ok);
  other = c;
  other.between.clear();
  EXPECT_FALSE(recheck(other, a, b, by_regions()).ok);
  other = c;
  std::erase_if(other.parts, [](const CertificatePart& p) { return p.second; });
  EXPECT_FALSE(recheck(other, a, b, by_regions()).ok);
  other = c;  // all but one region of the second step
  const int last = int(c.parts.size()) - 1;
  other.parts.pop_back();
  std::erase_if(other.draws, [&](const FieldDraw& d) { return d.part == last; });
  std::erase_if(other.gate, [&](const GateFamily& g) { return g.part == last; });
  const Recheck gap = recheck(other, a, b, by_regions());
  EXPECT_NE(gap.what.find("prove too little"), std::string::npos) << gap.what;
}

TEST(Regions, AProgramBetweenIsNotTrusted) {
  const Graph a = program(net("....")), right = program(exchanged(4));
  for (int wrong : {0, 2, 3}) {
    const Graph b = program(exchanged(4, wrong));
    std::string kinds = "....";
    kinds[size_t(wrong)] = 'x';
    for (const Graph& between : {a, b, program(net("tttt")), program(net(kinds))}) {
      EXPECT_FALSE(Verifier(a, by_regions()).verify(b, &between).equal()) << wrong;
    }
    // Of a wrong one nothing follows, but the programs are equal all the same.
    const Verdict v = Verifier(a, by_regions()).verify(right, &b);
    EXPECT_TRUE(v.equal()) << v.str();
    EXPECT_TRUE(v.certificate().between.empty());
  }
}

TEST(Regions, WrongLayersAreRefused) {
  for (const char* wrong :
       {"...x....", "...w....", "x.......", ".......x", "t..w...t", "tttxtttt"}) {
    const Verdict v = compare_nets(net("........"), net(wrong));
    EXPECT_TRUE(v.refuted()) << wrong << v.str();
  }
}

// Weights exchanged between layers: each is a layer of the net, but not there.
TEST(Regions, RightLayersInWrongPlacesAreRefused) {
  std::string swapped =
      "y0 = input : f32[2,8,6,6]; half = const {value=0.5} : f32[]; w0 = input : "
      "f32[8,8,3,3]; b0 = input : f32[8,1,1]; w1 = input : f32[8,8,3,3]; b1 = input : "
      "f32[8,1,1]; w2 = input : f32[8,8,3,3]; b2 = input : f32[8,1,1]; w3 = input : "
      "f32[8,8,3,3]; b3 = input : f32[8,1,1]; ";
  for (int i = 0; i < 4; i++) {
    const std::string k = std::to_string(i), w = i == 1 ? "2" : i == 2 ? "1" : k;
    swapped += "c" + k + " = conv y" + k + ", w" + w + " {low=[1,1], high=[1,1]}; a" + k +
               " = add c" + k + ", b" + k + "; y" + std::to_string(i + 1) + " = relu a" + k + "; ";
  }
  EXPECT_TRUE(compare_nets(net("...."), swapped + "return y4").refuted());
}

// What holds only because of what comes before: the region grows until it is told.
TEST(Regions, ContextIsTakenInWhereItMatters) {
  const std::string before = net("..");
  const std::string head = before.substr(0, before.find("return"));
  const std::string one = "one = const {value=1} : f32[]; ";
  const std::string clamped = head + one + "m = max y2, one; ";
  const std::string after = "w9 = input : f32[8,8,3,3]; z = conv n, w9; r = relu z; return r";
  // max(m, 1) is m, for m = max(y, 1).
  const std::string spec = clamped + "k = max m, one; n = mul k, half; " + after,
                    good = clamped + "n = mul m, half; " + after;
  const Verdict v = compare_nets(spec, good);
  ASSERT_TRUE(v.equal()) << v.str();
  EXPECT_GE(v.certificate().parts.size(), 1u) << v.str();
  // Of a value that may be less than 1 it is not.
  EXPECT_TRUE(compare_nets(head + one + "k = max y2, one; n = mul k, half; " + after,
                           head + one + "n = mul y2, half; " + after)
                  .refuted());
  // A relu is its own absolute value; what enters it is not.
  EXPECT_TRUE(
      compare_nets(head + "n = abs y2; " + after, head + "n = add y2, half; " + after).refuted());
  const Verdict sign = compare_nets(head + "k = abs y2; n = mul k, half; " + after,
                                    head + "n = mul y2, half; " + after);
  EXPECT_TRUE(sign.equal()) << sign.str();
  EXPECT_FALSE(compare_nets(head + "k = abs a1; n = mul k, half; " + after,
                            head + "n = mul a1, half; " + after)
                   .equal());
}

// Two free inputs know nothing of each other: y and its square are not cut both.
TEST(Regions, CutsThatDependOnEachOtherAreRelated) {
  const std::string before = net("..");
  const std::string head = before.substr(0, before.find("return")) + "s = sqr a1; ";
  const std::string after = "w9 = input : f32[8,8,3,3]; z = conv n, w9; r = relu z; return r";
  const Verdict v = compare_nets(head + "t = mul a1, a1; n = add s, t; " + after,
                                 head + "n = add s, s; " + after);
  EXPECT_TRUE(v.equal()) << v.str();
  const Verdict known =
      compare_nets(head + "t = mul s, a1; n = add t, a1; " + after,
                   head + "t = mul a1, a1; u = mul t, a1; n = add u, a1; " + after);
  EXPECT_TRUE(known.equal()) << known.str();
}

// A shared value that may be −∞ is cut, but rewrites must not turn it into a number that is none.
TEST(Regions, InfinitiesReachTheRegion) {
  const std::string before = net("..");
  const std::string head = before.substr(0, before.find("return")) +
                           "low = const {value=-inf} : f32[]; c = gt y2, half; "
                           "s = where c, y2, low; ";
  const std::string after = "w9 = input : f32[8,8,3,3]; z = conv n, w9; r = relu z; return r";
  const Verdict bad = compare_nets(head + "n = exp s; " + after,
                                   head + "e = exp s; d = sub s, s; n = add e, d; " + after);
  EXPECT_FALSE(bad.equal()) << bad.str();
  const Verdict fine =
      compare_nets(head + "e = exp s; n = mul e, half; " + after,
                   head + "e = exp s; f = add e, e; g = mul f, half; n = mul g, half; " + after);
  EXPECT_TRUE(fine.equal()) << fine.str();
}

// sqrt x is no number for negative x, which `not (r <= y)` and `r > y` take differently.
TEST(Regions, WhatIsNoNumberReachesTheRegion) {
  VerifyOptions options;
  options.whole_cost = 0;
  for (const char* shape : {"f16[5,5]", "f32[5,1]", "f64[1]"})
    for (options.seed = 1; *options.seed < 20; ++*options.seed) {
      std::string
          head = "x = input : T; y = input : T; b = input : T; s = sqrt b; e = exp s; r = sqrt x; ",
          tail = "t = add e, e; z = where c, t, e; return z";
      for (size_t at; (at = head.find('T')) != std::string::npos;) head.replace(at, 1, shape);
      const Verdict v = verify(program(head + "l = le r, y; c = not l; " + tail),
                               program(head + "c = gt r, y; " + tail), options);
      EXPECT_FALSE(v.equal()) << shape << "\n" << v.str();
    }
}

// x·(b − 95) / (b − 95) is none where b is 95, and a comparison makes a number of that.
TEST(Regions, WhatFollowsMayMakeNumbersOfPoles) {
  VerifyOptions options = by_regions();
  options.whole_cost = 0;
  const std::string head = "x = input : f32[2,3]; y = input : f32[3]; b = input : f32[2,3]; "
                           "half = const {value=0.5} : f32[]; k = const {value=95.125} : f32[]; "
                           "o = const : f32[]; s = sqr x; m = mean s {axes=[1], keepdims=true}; "
                           "n = add m, half; d = sub b, k; ",
                    bad = head + "p = mul n, d; q = div p, d; r = rsqrt q; ",
                    good = head + "r = rsqrt n; ",
                    decided = "z = mul x, r; g = gt z, o; t = where g, y, o; return t",
                    passed = "z = mul x, r; t = mul z, y; return t";
  for (options.seed = 1; *options.seed < 12; ++*options.seed) {
    const Verdict v = verify(program(bad + decided), program(good + decided), options);
    EXPECT_FALSE(v.equal()) << v.str();
  }
  const Verdict v = verify(program(bad + passed), program(good + passed), options);
  EXPECT_TRUE(v.equal()) << v.str();
  const Verdict alike = verify(program(bad + decided),
                               program(head +
                                       "p = mul d, n; q = div p, d; "
                                       "r = rsqrt q; " +
                                       decided),
                               options);
  EXPECT_TRUE(alike.equal()) << alike.str();
}

// 1 / (b - c) and -(1 / (c - b)) are infinite of other signs, of which tanh makes numbers.
TEST(Regions, SignsOfPolesMatterWhereNumbersAreMadeOfThem) {
  const std::string head =
                        "X = input : f32[64,128]; W = input : f32[128,64]; b = input : f32[64,64]; "
                        "c = input : f32[64,64]; h = matmul X, W; one = const {value=1} : f32[]; ",
                    bad = head + "s = sub c, b; u = div one, s; t = neg u; ",
                    good = head + "s = sub b, c; t = div one, s; ";
  for (const char* end :
       {"e = tanh t; y = mul h, e; return y", "e = sigmoid t; y = mul h, e; return y",
        "five = const {value=5} : f32[]; e = min t, five; y = mul h, e; return y"})
    EXPECT_FALSE(compare_nets(good + end, bad + end).equal()) << end;
  EXPECT_TRUE(
      compare_nets(good + "y = mul h, t; return y", bad + "y = mul h, t; return y").equal());
}

// Where x < 0 the comparison is with none. Only a result far above its row's mean shows it.
TEST(Regions, ComparisonsWithNoneAreSeenInRareResults) {
  const auto softmax = [](const std::string& above) {
    return program("x = input : f64[4,4]; b = input : f64[4,4]; "
                   "m = reduce_max x {axes=[0], keepdims=true}; d = sub x, m; r = sqrt x; " +
                   above +
                   "u = add d, d; w = where c, u, d; e = exp w; "
                   "s = sum e {axes=[0], keepdims=true}; p = div e, s; "
                   "a = mean p {axes=[1], keepdims=true}; q = sub p, a; "
                   "big = const {value=0.6} : f64[]; f = gt q, big; zero = const : f64[]; "
                   "out = where f, q, zero; return out");
  };
  VerifyOptions o;
  o.whole_cost = 0;
  for (uint64_t seed = 0; seed < 4; seed++) {
    o.seed = seed;
    EXPECT_FALSE(verify(softmax("c = gt r, b; "), softmax("l = le r, b; c = not l; "), o).equal());
    EXPECT_TRUE(verify(softmax("c = gt r, b; "), softmax("c = lt b, r; "), o).equal());
  }
}

// So it is inside of kernels.
TEST(Regions, ComparisonsOfKernelsWithNoneAreSeen) {
  const auto fused = [](const std::string& above) {
    return parse(
        "graph g {\nX = input : f32[16,64]\nW = input : f32[64,16]\nb = input : f32[16,16]\n"
        "z = input : f32[16,16]\nh = matmul X, W\nr = sqrt h\n"
        "y = kernel r, b, z grid[x=16] {\nrr = input : f32[16,16]\nbb = input : f32[16,16]\n"
        "zz = input : f32[16,16]\nr = iter rr {imap={x:0}}\nb = iter bb {imap={x:0}}\n"
        "z = iter zz {imap={x:0}}\n" +
        above +
        "u = add z, z\nv = where c, u, z\nM = reduce_max v {axes=[1], keepdims=true}\n"
        "d = sub v, M\ne = exp d\nS = sum e {axes=[1], keepdims=true}\np = div e, S\n"
        "big = const {value=0.9} : f32[]\nf = gt p, big\nzero = const : f32[]\n"
        "w = where f, p, zero\no = save w {omap={x:0}} : f32[16,16]\nreturn o\n} : f32[16,16]\n"
        "return y\n}\n");
  };
  VerifyOptions o;
  o.whole_cost = 0;
  for (uint64_t seed = 0; seed < 4; seed++) {
    o.seed = seed;
    EXPECT_FALSE(verify(fused("c = gt r, b\n"), fused("l = le r, b\nc = not l\n"), o).equal());
    EXPECT_TRUE(verify(fused("c = gt r, b\n"), fused("c = lt b, r\n"), o).equal());
  }
}

TEST(Regions, TellsWhatMayBeInfinite) {
  Graph g = program("x = input : f32[4]; v = input : f32[4]; h = const {value=0.5} : f32[]; "
                    "r = rsqrt v; a = mul x, r; e = exp x; b = add e, h; p = relu x; q = div x, h; "
                    "d = div h, x; return a, b, p, q, r, d");
  g.set_weight(1, true);
  std::vector<bool> infinite, assumed;
  for (TensorId t : g.outputs()) {
    bool weights = false;
    infinite.push_back(may_be_infinite(g, t, weights));
    assumed.push_back(weights);
  }
  EXPECT_EQ(infinite, (std::vector<bool>{false, true, false, false, false, true}));
  EXPECT_EQ(assumed, (std::vector<bool>{true, false, false, false, true, false}));
}

// Nets that cost more than one evaluation may are proved all the same.
TEST(Regions, TheBudgetIsOfRegionsNotOfNets) {
  const int64_t few = 500'000;
  EXPECT_TRUE(compare_nets(net("........"), net("...t...."), by_regions(few)).equal());
  const Verdict same = compare_nets(net("........"), net("........"), by_regions(few));
  ASSERT_TRUE(same.equal()) << same.str();
  const Graph a = program(net("........"));
  EXPECT_TRUE(recheck(same.certificate(), a, a, by_regions(few)).ok);
  const Verdict wrong = compare_nets(net("........"), net("...x...."), by_regions(few));
  EXPECT_TRUE(wrong.refuted()) << wrong.str();
}

// Where nothing is known of the whole, at least the layer is named.
TEST(Regions, UnknownVerdictsNameTheLayer) {
  const Verdict v = compare_nets(net("........"), net("...x...."), by_regions(1000));
  ASSERT_TRUE(v.unknown()) << v.str();
  EXPECT_NE(v.str().find("could not be proved equal is "), std::string::npos) << v.str();
  EXPECT_NE(v.str().find("a3"), std::string::npos) << v.str();
}

TEST(Regions, SymbolicBatchesToo) {
  const Verdict v = compare_nets(net("...", "n"), net(".t.", "n"));
  ASSERT_TRUE(v.equal()) << v.str();
  EXPECT_EQ(v.certificate().parts.size(), v.certificate().bindings.size());
  const Graph a = program(net("...", "n")), b = program(net(".t.", "n"));
  EXPECT_TRUE(recheck(v.certificate(), a, b, by_regions()).ok);
  EXPECT_FALSE(compare_nets(net("...", "n"), net(".w.", "n")).equal());
}

TEST(Regions, RecheckRefusesGaps) {
  const Graph a = program(net("....")), b = program(net("t..t"));
  const Verdict v = verify(a, b, by_regions());
  ASSERT_TRUE(v.equal()) << v.str();
  const Certificate& good = v.certificate();
  ASSERT_EQ(good.parts.size(), 2u);
  EXPECT_TRUE(recheck(good, a, b, by_regions()).ok);

  Certificate gap = good;  // the second rests on the first
  gap.parts.erase(gap.parts.begin());
  std::erase_if(gap.draws, [](const FieldDraw& d) { return d.part == 0; });
  for (FieldDraw& d : gap.draws) d.part--;
  EXPECT_FALSE(recheck(gap, a, b, by_regions()).ok);

  Certificate short_of = good;
  short_of.parts.pop_back();
  std::erase_if(short_of.draws, [](const FieldDraw& d) { return d.part == 1; });
  EXPECT_FALSE(recheck(short_of, a, b, by_regions()).ok);

  Certificate none = good;
  none.parts.clear();
  none.draws.clear();
  EXPECT_FALSE(recheck(none, a, b, by_regions()).ok);

  Certificate other = good;
  const auto cut = ProofPart::parse(other.parts[1].text);
  ProofPart beside = *cut;
  beside.cuts[0].candidate = TensorId(beside.cuts[0].candidate.index + 1);
  other.parts[1].text = beside.str();
  EXPECT_FALSE(recheck(other, a, b, by_regions()).ok);
}

TEST(Regions, PartsSayTheirTiles) {
  const ProofPart p{{TensorId(12), TensorId(9), {}}, {{TensorId(5), TensorId(4), {}}}, {{2, 4}}};
  EXPECT_EQ(p.str(), "target=12:9 cuts=5:4 tiles=2,4");
  EXPECT_EQ(ProofPart::parse(p.str()), p);
  ProofPart all = p;
  all.tiles->clear();
  EXPECT_EQ(ProofPart::parse(all.str()), all);
  EXPECT_FALSE(ProofPart::parse("target=12:9 cuts=5:4 tiles=2,"));
}

TEST(Congruence, SameOperatorsOfSameOperands) {
  const Graph a = program("x = input : f32[4]; e = exp x; r = relu e; s = sub e, x; return r, s"),
              b = program("x = input : f32[4]; s = relu x; e = exp x; r = relu e; t = sub x, e; "
                          "return r, t");
  const Congruence known(a, b);
  EXPECT_TRUE(known.equal(a.outputs()[0], b.outputs()[0]));
  EXPECT_FALSE(known.equal(a.outputs()[1], b.outputs()[1]));  // operands the other way round
  EXPECT_FALSE(known.complete());
  EXPECT_TRUE(Congruence(a, b, {{a.outputs()[1], b.outputs()[1], {}}}).complete());
  const Graph c = program("x = input : f32[4]; y = pow x {exponent=2}; return y"),
              d = program("x = input : f32[4]; y = pow x {exponent=3}; return y");
  EXPECT_FALSE(Congruence(c, d).complete());
}

}  // namespace
}  // namespace tessera
