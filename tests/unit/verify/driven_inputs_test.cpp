// What programs do behind conditions that no draw meets: sums and products of inputs in a band.
#include "verify/driven_inputs.h"

#include "programs.h"
#include "verify/inputs.h"

namespace tessera {
namespace {

const std::string kDrivenInputs = "x = input : f32[6]; y = input : f32[6]; z = input : f32[6]; "
                                  "w = input : f32[6]; o = const {value=0} : f32[]; ";
// Conditions c that hold at hardly any numbers near 1.
const char* const kRare[] = {
    "k = const {value=9000} : f32[]; l = const {value=9020} : f32[]; p = mul x, y; q = mul x, z; "
    "s = add p, q; c0 = gt s, k; c1 = lt s, l; c = and c0, c1; ",
    "k = const {value=700} : f32[]; p = sub x, y; c0 = gt p, k; l = const {value=0.5} : f32[]; "
    "q = sub y, z; n = abs q; c1 = lt n, l; m = sub x, z; n3 = const {value=-3} : f32[]; "
    "j = mul m, z; c2 = lt j, n3; c3 = and c0, c1; c = and c3, c2; ",
    "k = const {value=-5e4} : f32[]; l = const {value=-5.01e4} : f32[]; p = mul x, y; "
    "s = mul p, z; c0 = lt s, k; c1 = gt s, l; c = and c0, c1; ",
    "p = mul x, y; q = mul y, z; k = const {value=1234.5} : f32[]; d = sub p, k; m = abs d; "
    "l = const {value=-777.7} : f32[]; n = sub q, l; m2 = abs n; n1 = const {value=2} : f32[]; "
    "c0 = lt m, n1; c1 = lt m2, n1; c = and c0, c1; ",
};

TEST(DrivenInputs, DigitsLostBehindARareCondition) {
  for (const std::string condition : kRare) {
    const std::string before = kDrivenInputs + condition, after = "r = where c, v, o; return r";
    const Verdict v = compare_programs(
        before + "v = add w, o; " + after,
        before + "b = const {value=1e6} : f32[]; u = add w, b; v = sub u, b; " + after);
    EXPECT_TRUE(v.refuted()) << condition << v.str();
    expect_equal(before + "a = add w, x; v = add a, y; " + after,
                 before + "a = add x, y; v = add a, w; " + after);
  }
}

TEST(DrivenInputs, PolesBehindARareCondition) {
  // 5 where w is 0, and none.
  for (const std::string condition : kRare) {
    const std::string before = kDrivenInputs + condition +
                               "e = const {value=1} : f32[]; "
                               "f = const {value=5} : f32[]; ",
                      after = "v = min t, f; r = where c, v, o; return r";
    const Verdict v = compare_programs(before + "t = div e, w; " + after,
                                       before + "i = div w, w; t = div i, w; " + after);
    EXPECT_FALSE(v.equal()) << condition << v.str();
    expect_equal(before + "t = div e, w; " + after, before + "t = div e, w; " + after);
  }
}

TEST(DrivenInputs, ConditionsOfUnlikeTypesAndIndicesOfFloats) {
  const std::string mixed =
      "x = input : f32[6]; h = input : f16[6]; k = const {value=700} : f32[]; "
      "l = const {value=300} : f16[]; c0 = gt x, k; c1 = gt h, l; ";
  const Graph unlike = program(mixed + "c = and c0, c1; r = where c, x, k; return r");
  EXPECT_NO_THROW(rare_sides(unlike, unlike, 1, 100, nullptr));
  expect_equal(mixed + "c = and c0, c1; r = where c, x, k; return r",
               mixed + "c = and c1, c0; r = where c, x, k; return r");
  // In range near 1 only.
  const Graph indexed = program(
      "x = input : f32[6]; t = input : f32[99]; s = const {value=40} : f32[]; b = add x, s; "
      "i = cast b {dtype=i64} : i64[6]; g = gather t, i {axis=0}; k = const {value=9000.5} : "
      "f32[]; "
      "q = sqr x; c = gt q, k; r = where c, g, x; return r");
  for (const auto& inputs : rare_sides(indexed, indexed, 1, 100, nullptr))
    EXPECT_TRUE(is_defined_at(indexed, inputs));
}

TEST(DrivenInputs, SidesThatOrdinaryInputsMeetAreNotSought) {
  const Graph g = program("x = input : f32[6]; y = input : f32[6]; c = gt x, y; r = where c, x, y; "
                          "return r");
  EXPECT_TRUE(rare_sides(g, g, 1, 100, nullptr).size() <= 128u);
  const Graph rare = program(kDrivenInputs + kRare[3] + "r = where c, x, y; return r");
  EXPECT_FALSE(rare_sides(rare, rare, 1, 100, nullptr).empty());
}

}  // namespace
}  // namespace tessera
