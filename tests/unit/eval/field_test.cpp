// The field model: number theory of the chains, the algebraic laws that make it sound and useful,
// and agreement with exact integer arithmetic.
#include "eval/field.h"

#include <set>

#include "eval_test_util.h"

namespace tessera {
namespace {

using eval_test::field_equal, eval_test::random_inputs;

bool is_prime(uint64_t n) {
  if (n < 2) return false;
  for (uint64_t p : {2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37}) {
    if (n % p == 0) return n == p;
  }
  auto power = [n](uint128 b, uint64_t e) {
    uint128 r = 1;
    for (b %= n; e != 0; e >>= 1, b = b * b % n) {
      if (e & 1) r = r * b % n;
    }
    return uint64_t(r);
  };
  uint64_t d = n - 1;
  int s = 0;
  for (; d % 2 == 0; d /= 2) ++s;
  for (uint64_t a : {2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37}) {  // decisive below 3.3e24
    uint128 x = power(a, d);
    bool witness = x != 1 && x != n - 1;
    for (int i = 1; i < s && witness; ++i) {
      x = x * x % n;
      witness = x != n - 1;
    }
    if (witness) return false;
  }
  return true;
}

template <class W> class Field : public ::testing::Test {
 public:
  static constexpr FieldSize size() {
    return sizeof(W) == 4 ? FieldSize::Bits31 : FieldSize::Bits61;
  }
};
using Words = ::testing::Types<uint32_t, uint64_t>;
TYPED_TEST_SUITE(Field, Words);

TEST(FieldPrimes, ChainsAreDrawnAtRandom) {
  std::set<uint64_t> primes;
  for (uint64_t seed = 0; seed < 200; seed++)
    primes.insert(FieldModel(FieldSize::Bits61, seed).prime(0));
  EXPECT_EQ(primes.size(), 200u);
  EXPECT_GT(*primes.begin(), uint64_t(1) << 59);
}

TYPED_TEST(Field, ChainsAreSafePrimesWithSmallResidues) {
  for (uint64_t seed = 0; seed < 200; seed++) {
    const FieldModel model(this->size(), seed);
    const uint64_t p = model.prime(0), q = model.prime(1), r = model.prime(2);
    EXPECT_TRUE(is_prime(p) && is_prime(q) && is_prime(r));
    EXPECT_EQ(p, 2 * q + 1);
    EXPECT_EQ(q, 2 * r + 1);
    const auto& chain = model.tables().template get<TypeParam>();
    for (int c = 0; c < 3; ++c) {
      EXPECT_EQ(model.prime(c) % 8, 7u);
      const bool wide = sizeof(TypeParam) == 8;
      for (int small : {2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43}) {
        if (small > (c == 0 ? (wide ? 43 : 37) : c == 1 ? 7 : 3)) continue;
        EXPECT_EQ(chain.modulus[size_t(c)].legendre(chain.modulus[size_t(c)].from_int(small)), 1)
            << small;
      }
    }
  }
}

TYPED_TEST(Field, ConversionsAndConstants) {
  const FieldModel model(this->size(), 1);
  const auto& chain = model.tables().template get<TypeParam>();
  for (int c = 0; c < 3; ++c) {
    const auto& m = chain.modulus[size_t(c)];
    for (int64_t x :
         {int64_t(0), int64_t(1), int64_t(-1), int64_t(123456789), INT64_MAX, INT64_MIN}) {
      const uint64_t want = x >= 0 ? uint64_t(x) % m.p : (m.p - (0 - uint64_t(x)) % m.p) % m.p;
      EXPECT_EQ(m.to_word(m.from_int(x)), want) << x;
    }
    const auto third = *chain.constant(c, Rational::ratio(-1, 3));
    EXPECT_EQ(m.mul(third, m.from_int(-3)), m.one);
    const auto tiny = *chain.constant(c, *Rational::parse("5*2^-90"));
    EXPECT_EQ(m.mul(tiny, m.pow(m.from_int(2), 90)), m.from_int(5));
  }
  EXPECT_FALSE(chain.constant(0, Rational::ratio(1, int64_t(model.prime(0)))));
}

TYPED_TEST(Field, ModelsDependOnSizeAndSeedOnly) {
  const FieldModel a(this->size(), 5), b(this->size(), 5), c(this->size(), 6);
  const auto &x = a.tables().template get<TypeParam>(), &y = b.tables().template get<TypeParam>(),
             &z = c.tables().template get<TypeParam>();
  EXPECT_EQ(x.exp[0].base, y.exp[0].base);
  EXPECT_NE(x.exp[0].base, z.exp[0].base);
  EXPECT_EQ(x.keyed(Keyed::Log, 0, TypeParam(3)), y.keyed(Keyed::Log, 0, TypeParam(3)));
  EXPECT_NE(x.keyed(Keyed::Log, 0, TypeParam(3)), z.keyed(Keyed::Log, 0, TypeParam(3)));
  // ω generates the subgroup of prime order: ω^q = 1 and ω ≠ 1
  EXPECT_EQ(x.modulus[0].pow(x.exp[0].base, a.prime(1)), x.modulus[0].one);
  EXPECT_NE(x.exp[0].base, x.modulus[0].one);
}

// Programs of one input each, in the text format; both sides must agree on every draw.
struct Law {
  const char* what;
  const char* left;
  const char* right;
};
std::string law_program(const std::string& body) {
  return "graph g { x = input : f64[17]\n y = input : f64[17]\n z = input : f64[17]\n two = const "
         "{value=2} : f64[]\n"
         "half = const {value=0.5} : f64[]\n one = const {value=1} : f64[]\n zero = const "
         "{value=0} : f64[]\n" +
         body + "\nreturn o }";
}
const Law kLaws[] = {
    {"square of root", "r = sqrt x\no = sqr r", "o = add x, zero"},
    {"root of square", "s = sqr x\no = sqrt s", "o = abs x"},
    {"root is multiplicative", "a = mul x, y\nb = sqrt x\nc = sqrt y\no = mul b, c",
     "b = sqrt x\nc = sqrt y\na = mul x, y\no = sqrt a"},
    {"rsqrt", "o = rsqrt x", "r = sqrt x\no = div one, r"},
    {"pow 1/2", "o = pow x {exponent=1/2}", "o = sqrt x"},
    {"pow -3/2", "o = pow x {exponent=-3/2}", "r = sqrt x\na = mul x, r\no = div one, a"},
    {"pow 5", "o = pow x {exponent=5}", "a = sqr x\nb = sqr a\no = mul b, x"},
    {"root of four", "c = const {value=4} : f64[]\nr = sqrt c\no = mul r, x", "o = mul x, two"},
    {"relu(x) - relu(-x)", "n = neg x\na = relu x\nb = relu n\no = sub a, b", "o = add x, zero"},
    {"relu(2x)", "a = mul x, two\no = relu a", "a = relu x\no = mul a, two"},
    {"relu(relu x)", "a = relu x\no = relu a", "o = relu x"},
    {"relu as max", "o = max x, zero", "o = relu x"},
    {"max translation", "a = add x, z\nb = add y, z\no = max a, b", "m = max x, y\no = add m, z"},
    {"max scaling", "a = mul x, two\nb = mul y, two\no = max a, b", "m = max x, y\no = mul m, two"},
    {"max commutes", "o = max x, y", "o = max y, x"},
    {"max associates", "a = max x, y\no = max a, z", "a = max y, z\no = max a, x"},
    {"min is -max(-)", "o = min x, y", "a = neg x\nb = neg y\nm = max a, b\no = neg m"},
    {"min of three is -max(-)", "a = min x, y\no = min a, z",
     "a = neg x\nb = neg y\nc = neg z\nm = max b, c\nn = max m, a\no = neg n"},
    {"min associates", "a = min x, y\no = min a, z", "a = min z, x\no = min y, a"},
    {"max + min", "a = max x, y\nb = min x, y\no = add a, b", "o = add x, y"},
    {"max of itself", "o = max x, x", "o = add x, zero"},
    {"max is idempotent when nested", "a = max x, y\nb = max a, z\no = max b, b",
     "a = max x, z\no = max a, y"},
    {"max absorbs what it holds", "a = max x, y\no = max a, y", "o = max y, x"},
    {"relu twice as max", "a = max x, zero\no = max zero, a", "o = relu x"},
    {"max absorbs min", "a = min x, y\no = max x, a", "o = add x, zero"},
    {"max by comparison", "c = gt x, y\no = where c, x, y", "o = max x, y"},
    {"abs by comparison", "c = lt x, zero\nn = neg x\no = where c, n, x", "o = abs x"},
    {"sign", "s = sign x\no = mul s, x", "o = abs x"},
    {"ge is not lt", "c = ge x, y\no = where c, x, z", "c = lt x, y\no = where c, z, x"},
    {"eq", "d = mul x, one\nc = eq d, x\no = where c, y, z", "o = add y, zero"},
    {"exp of a sum", "a = add x, y\no = exp a", "a = exp x\nb = exp y\no = mul a, b"},
    {"exp of a difference", "a = sub x, y\no = exp a", "a = exp x\nb = exp y\no = div a, b"},
    {"exp of 0", "a = sub x, x\no = exp a", "a = sub x, x\no = add a, one"},
    {"exp of twice", "a = mul x, two\no = exp a", "a = exp x\no = sqr a"},
    {"root of exp", "e = exp x\no = sqrt e", "h = mul x, half\no = exp h"},
    {"exp is positive", "e = exp x\no = relu e", "o = exp x"},
    {"exp of where", "c = gt x, y\nw = where c, y, z\no = exp w",
     "c = gt x, y\na = exp y\nb = exp z\no = where c, a, b"},
    {"exp of exp, sum inside", "a = add x, y\ne = exp a\no = exp e",
     "a = exp x\nb = exp y\nc = mul a, b\no = exp c"},
    {"exp of exp, sum outside", "a = exp x\nb = exp y\nc = add a, b\no = exp c",
     "a = exp x\nb = exp y\nc = exp a\nd = exp b\no = mul c, d"},
    {"max in the exponent", "m = max x, y\na = sub x, m\nb = exp a\nc = exp m\no = mul b, c",
     "o = exp x"},
    {"sigmoid", "o = sigmoid x", "e = exp x\nd = add e, one\no = div e, d"},
    {"silu", "o = silu x", "s = sigmoid x\no = mul x, s"},
    {"tanh by sigmoid", "o = tanh x",
     "d = mul x, two\ns = sigmoid d\nt = mul s, two\no = sub t, one"},
    {"tanh is odd", "n = neg x\no = tanh n", "t = tanh x\no = neg t"},
    {"erf is odd", "n = neg x\no = erf n", "t = erf x\no = neg t"},
    {"sin is odd", "n = neg x\no = sin n", "t = sin x\no = neg t"},
    {"cos is even", "n = neg x\no = cos n", "o = cos x"},
    {"sin² + cos²", "s = sin x\nc = cos x\na = sqr s\nb = sqr c\nd = add a, b\no = mul d, y",
     "o = add y, zero"},
    {"gelu", "o = gelu x",
     "r = sqrt two\na = div x, r\ne = erf a\nb = add e, one\nc = mul x, b\no = mul c, half"},
    {"log1p", "o = log1p x", "a = add one, x\no = log a"},
    {"expm1", "o = expm1 x", "a = exp x\no = sub a, one"},
    {"power of what is positive", "e = exp x\no = power e, y",
     "e = exp x\nl = log e\nm = mul y, l\no = exp m"},
    {"powers add exponents", "e = exp x\ns = add y, z\no = power e, s",
     "e = exp x\na = power e, y\nb = power e, z\no = mul a, b"},
    {"mod", "o = mod x, y", "q = div x, y\nf = floor q\nm = mul y, f\no = sub x, m"},
    {"angles do not depend on a positive scale",
     "e = exp z\na = mul x, e\nb = mul y, e\n"
     "o = atan2 a, b",
     "o = atan2 x, y"},
    {"division undone", "a = mul x, y\no = div a, y", "o = add x, zero"},
    {"fractions", "a = div x, y\nb = div z, y\no = add a, b", "a = add x, z\no = div a, y"},
    {"log is a function", "a = add x, y\no = log a", "a = add y, x\no = log a"},
};

TYPED_TEST(Field, LawsHold) {
  for (const Law& law : kLaws) {
    for (uint64_t seed = 1; seed <= 6; ++seed) {
      // component p, and q as well: the model is consistent inside an exponent
      EXPECT_TRUE(field_equal(law_program(law.left), law_program(law.right), this->size(), seed))
          << law.what;
      // |x| takes its sign from p, √ each component its own, so √x² = |x| holds in p only; and
      // two exponentials below component q are one more than the chain has
      const std::string what = law.what;
      if (what == "root of square" || what == "exp of exp, sum inside") continue;
      EXPECT_TRUE(field_equal(law_program(law.left), law_program(law.right), this->size(), seed, 3))
          << law.what << " (p and q)";
    }
  }
}

const Law kFalseLaws[] = {
    {"exp is not linear", "a = add x, y\no = exp a", "a = exp x\nb = exp y\no = add a, b"},
    {"exp of exp is not constant", "a = exp x\no = exp a", "a = exp y\no = exp a"},
    {"gelu is not silu", "o = gelu x", "s = silu x\ne = exp x\no = mul s, e"},
    {"x + z is not y + y", "o = add x, z", "o = add y, y"},
    {"root is not additive", "a = sqr x\nb = sqr y\nc = add a, b\no = sqrt c",
     "a = abs x\nb = abs y\no = add a, b"},
    {"max is not sum", "o = max x, y", "o = add x, y"},
    {"max of three drops none", "a = max x, y\no = max a, z", "o = max x, y"},
    {"relu is not the identity", "o = relu x", "o = add x, zero"},
    {"sin is not erf", "o = sin x", "o = erf x"},
    {"log is not additive in the argument", "a = add x, y\no = log a",
     "a = log x\nb = log y\no = add a, b"},
    {"gelu is not gelu_tanh", "o = gelu x", "o = gelu_tanh x"},
    {"silu differs from relu", "o = silu x", "o = relu x"},
    {"power of anything", "o = power x, y", "l = log x\nm = mul y, l\no = exp m"},
    {"angles depend on a negative scale", "a = neg x\nb = neg y\no = atan2 a, b", "o = atan2 x, y"},
    {"floor is not round", "o = floor x", "o = round x"},
    {"floor is not odd", "n = neg x\no = floor n", "f = floor x\no = neg f"},
    {"third powers", "o = pow x {exponent=1/3}", "o = pow x {exponent=2/3}"},
};

TYPED_TEST(Field, FalseLawsFail) {
  for (const Law& law : kFalseLaws) {
    int refuted = 0;
    for (uint64_t seed = 1; seed <= 6; ++seed) {
      refuted += !field_equal(law_program(law.left), law_program(law.right), this->size(), seed);
    }
    EXPECT_EQ(refuted, 6) << law.what;  // 17 elements: chance agreement of signs is negligible
  }
}

// Integer programs: the field must give the image of the exact result.
TYPED_TEST(Field, IntegerProgramsAreExact) {
  const char* programs[] = {
      "a = matmul A, B\nb = sum a {axes=[1]}\nc = sqr b\no = cumsum c {axis=0}",
      "t = transpose B {perm=[1,0]}\nc = concat A, t {axis=0}\ns = slice c {starts=[1,0], "
      "stops=[7,6], steps=[2,1]}\no = matmul s, B",
      "p = pad A {low=[1,2], high=[0,1], value=-3}\nr = repeat p {repeats=[2,1]}\nu = triu r "
      "{k=1}\nl = tril u {k=4}\no = sum l {axes=[0], keepdims=true}",
      "t = transpose B {perm=[1,0]}\no = concat_matmul A, t, B, B",
      "r = reshape A {shape=[2,12]}\ng = gather r, I {axis=1}\ns = stack g, g {axis=1}\nd = sub s, "
      "s\no = add d, s",
      "u = unsqueeze A {axes=[1]}\nb = broadcast u {shape=[4,3,6]}\nn = neg b\nm = mul n, b\no = "
      "sum m {axes=[0,1,2]}",
      "i = iota {axis=1} : f64[4,6]\na = mul A, i\nc = cast I {dtype=f64}\ns = sum c {axes=[0]}\no "
      "= mul a, s",
  };
  const FieldModel model(this->size(), 3);
  const auto& chain = model.tables().template get<TypeParam>();
  for (const char* body : programs) {
    const Graph g =
        parse("graph g { A = input : f64[4,6]\n B = input : f64[6,4]\n I = input : i64[3]\n" +
              std::string(body) + "\nreturn o }");
    std::vector<NDArray> in = random_inputs(g, 4, -9, 9);
    for (NDArray& a : in) {
      for (double& x : a.reals) x = std::round(x);
      for (int64_t& x : a.ints) x = (x + 9) % 12;
    }
    std::vector<FieldArray> fin;
    for (const NDArray& a : in) {
      std::vector<int64_t> values = a.ints;
      for (double x : a.reals) values.push_back(int64_t(x));
      fin.push_back(FieldArray::of_integers(model, a.dtype, a.shape, values));
    }
    const NDArray want = eval(g, in)[0];
    FieldOptions options;
    options.outputs = 7;
    ThreadPool pool(2);
    options.pool = &pool;
    const FieldResult got = eval_field(g, model, fin, options);
    ASSERT_TRUE(got.ok()) << got.unsupported;
    ASSERT_EQ(got.outputs[0].shape, want.shape);
    for (int64_t i = 0; i < want.size(); ++i) {
      ASSERT_EQ(got.outputs[0].flag(i), 0);
      for (int c = 0; c < 3; ++c) {
        const auto& m = chain.modulus[size_t(c)];
        EXPECT_EQ(got.outputs[0].word(c, i), uint64_t(m.from_int(int64_t(want.reals[size_t(i)]))))
            << body;
      }
    }
  }
}

// Rational programs: mean and division by constants.
TYPED_TEST(Field, RationalProgramsAreExact) {
  const FieldModel model(this->size(), 3);
  const auto& m = model.tables().template get<TypeParam>().modulus[0];
  const Graph g = parse("graph g { A = input : f64[2,7]\n c = const {value=-3/8} : f64[]\n s = "
                        "mean A {axes=[1]}\n o = div s, c\n return o }");
  std::vector<int64_t> v;
  for (int64_t i = 0; i < 14; ++i) v.push_back(i * i - 5);
  const FieldResult got =
      eval_field(g, model, {FieldArray::of_integers(model, DType::F64, {2, 7}, v)});
  ASSERT_TRUE(got.ok());
  for (int64_t r = 0; r < 2; ++r) {
    int64_t sum = 0;
    for (int64_t i = 0; i < 7; ++i) sum += v[size_t(r * 7 + i)];
    // o = (sum/7) / (-3/8)  <=>  -21·o = 8·sum
    EXPECT_EQ(m.mul(TypeParam(got.outputs[0].word(0, r)), m.from_int(-21)), m.from_int(8 * sum));
  }
}

// Windows in the field are what pads, slices, products and extrema say; and not where one is moved.
TYPED_TEST(Field, WindowsAreSumsOverTaps) {
  const std::string conv =
      "graph g { X = input : f64[1,2,7]\n W = input : f64[3,2,2]\n"
      " o = conv X, W {strides=[2], dilations=[3], low=[1], high=[2]}\n return o }";
  const std::string taps =
      "graph g { X = input : f64[1,2,7]\n W = input : f64[3,2,2]\n"
      " p = pad X {low=[0,0,1], high=[0,0,2]}\n"
      " a = slice p {starts=[0,0,0], stops=[1,2,7], steps=[1,1,2]}\n"
      " b = slice p {starts=[0,0,3], stops=[1,2,10], steps=[1,1,2]}\n"
      " u = slice W {starts=[0,0,0], stops=[3,2,1], steps=[1,1,1]}\n u1 = squeeze u {axes=[2]}\n"
      " v = slice W {starts=[0,0,1], stops=[3,2,2], steps=[1,1,1]}\n v1 = squeeze v {axes=[2]}\n"
      " m = matmul u1, a\n n = matmul v1, b\n o = add m, n\n return o }";
  const std::string moved =
      "graph g { X = input : f64[1,2,7]\n W = input : f64[3,2,2]\n"
      " o = conv X, W {strides=[2], dilations=[3], low=[2], high=[1]}\n return o }";
  const std::string pool =
      "graph g { X = input : f64[3,6]\n o = pool_max X {size=[2], strides=[2]}\n return o }";
  const std::string grouped =
      "graph g { X = input : f64[3,6]\n r = reshape X {shape=[3,3,2]}\n o = "
      "reduce_max r {axes=[2]}\n return o }";
  for (uint64_t seed = 1; seed < 4; ++seed) {
    EXPECT_TRUE(field_equal(conv, taps, this->size(), seed));
    EXPECT_FALSE(field_equal(conv, moved, this->size(), seed));
    EXPECT_TRUE(field_equal(pool, grouped, this->size(), seed));
  }
}

TYPED_TEST(Field, MaximaIgnoreOrderAndGrouping) {
  const std::string whole =
      "graph g { X = input : f64[5,24]\n o = reduce_max X {axes=[1]}\n return o }";
  const std::string halves =
      "graph g { X = input : f64[5,24]\n a = slice X {starts=[0,0], stops=[5,9], steps=[1,1]}\n"
      "b = slice X {starts=[0,9], stops=[5,24], steps=[1,1]}\n c = reduce_max b {axes=[1]}\n d = "
      "reduce_max a {axes=[1]}\n"
      "o = max c, d\n return o }";
  const std::string grouped =
      "graph g { X = input : f64[5,24]\n r = reshape X {shape=[5,4,6]}\n t = transpose r "
      "{perm=[0,2,1]}\n"
      "m = reduce_max t {axes=[1]}\n o = reduce_max m {axes=[1]}\n return o }";
  const std::string duplicated = "graph g { X = input : f64[5,24]\n c = concat X, X {axis=1}\n o = "
                                 "reduce_max c {axes=[1]}\n return o }";
  const std::string negated = "graph g { X = input : f64[5,24]\n n = neg X\n m = reduce_min n "
                              "{axes=[1]}\n o = neg m\n return o }";
  const std::string shorter =
      "graph g { X = input : f64[5,24]\n b = slice X {starts=[0,1], stops=[5,24], steps=[1,1]}\n o "
      "= reduce_max b {axes=[1]}\n return o }";
  for (uint64_t seed = 1; seed < 4; ++seed) {
    for (const std::string& other : {halves, grouped, duplicated, negated}) {
      EXPECT_TRUE(field_equal(whole, other, this->size(), seed, 3)) << other;
    }
    EXPECT_FALSE(field_equal(whole, shorter, this->size(), seed));
  }
}

TYPED_TEST(Field, SoftmaxAcceptsAnyShift) {
  const std::string plain = "graph g { X = input : f64[3,20]\n e = exp X\n s = sum e {axes=[1], "
                            "keepdims=true}\n o = div e, s\n return o }";
  const std::string shifted = "graph g { X = input : f64[3,20]\n m = reduce_max X {axes=[1], "
                              "keepdims=true}\n c = sub X, m\n e = exp c\n"
                              "s = sum e {axes=[1], keepdims=true}\n o = div e, s\n return o }";
  const std::string masked = "graph g { X = input : f64[3,20]\n i = iota {axis=1} : i64[3,20]\n n "
                             "= const {value=12} : i64[]\n c = lt i, n\n"
                             "inf = const {value=-inf} : f64[]\n w = where c, X, inf\n m = "
                             "reduce_max w {axes=[1], keepdims=true}\n d = sub w, m\n e = exp d\n"
                             "s = sum e {axes=[1], keepdims=true}\n o = div e, s\n return o }";
  const std::string cut = "graph g { X = input : f64[3,20]\n x = slice X {starts=[0,0], "
                          "stops=[3,12], steps=[1,1]}\n e = exp x\n"
                          "s = sum e {axes=[1], keepdims=true}\n p = div e, s\n o = pad p "
                          "{low=[0,0], high=[0,8], value=0}\n return o }";
  for (uint64_t seed = 1; seed < 4; ++seed) {
    EXPECT_TRUE(field_equal(plain, shifted, this->size(), seed));
    EXPECT_TRUE(field_equal(cut, masked, this->size(), seed));
    EXPECT_FALSE(field_equal(plain, masked, this->size(), seed));
  }
}

TYPED_TEST(Field, UnsupportedIsAValue) {
  const FieldModel model(this->size(), 1);
  for (const char* value : {"inf", "nan"}) {
    const Graph g = parse("graph g { X = input : f64[2]\n c = const {value=" + std::string(value) +
                          "} : f64[]\n o = add X, c\n return o }");
    const FieldResult r = eval_field(g, model, draw_inputs(g, model, needed_components(g)));
    EXPECT_FALSE(r.ok());
    EXPECT_NE(r.unsupported.find(value), std::string::npos) << r.unsupported;
  }
}

TYPED_TEST(Field, UndefinedElementsAreFlaggedAndSpread) {
  const FieldModel model(this->size(), 1);
  const Graph g = parse("graph g { X = input : f64[2,3]\n B = input : f64[3,2]\n one = const "
                        "{value=1} : f64[]\n i = div one, X\n p = matmul i, B\n"
                        "s = sum i {axes=[0]}\n c = eq X, X\n zero = const {value=0} : f64[]\n e = "
                        "eq X, zero\n w = where e, one, i\n return i, p, s, w }");
  const FieldResult r =
      eval_field(g, model,
                 {FieldArray::of_integers(model, DType::F64, {2, 3}, {1, 0, 2, 3, 4, 5}),
                  FieldArray::of_integers(model, DType::F64, {3, 2}, {1, 2, 3, 4, 5, 6})});
  auto flags = [&](size_t k) {
    std::vector<int> f;
    for (int64_t i = 0; i < r.outputs[k].size(); ++i) f.push_back(r.outputs[k].flag(i));
    return f;
  };
  EXPECT_EQ(flags(0), (std::vector<int>{0, 1, 0, 0, 0, 0}));
  EXPECT_EQ(flags(1), (std::vector<int>{1, 1, 0, 0}));
  EXPECT_EQ(flags(2), (std::vector<int>{0, 1, 0}));
  EXPECT_EQ(flags(3),
            (std::vector<int>{0, 0, 0, 0, 0, 0}));  // the branch not taken does not matter
  // comparison: what the original leaves undefined does not count, new undefined elements do
  FieldComparison same = compare(r.outputs[0], r.outputs[0]);
  EXPECT_TRUE(same.equal());
  EXPECT_EQ(same.skipped, 1);
  EXPECT_EQ(compare(r.outputs[3], r.outputs[0]).undefined, 1);
  EXPECT_TRUE(compare(r.outputs[0], r.outputs[3]).equal());
}

TYPED_TEST(Field, RedrawTouchesOnlyWhatFeedsUndefinedRoots) {
  // 24 row norms: a global redraw would need 2^24 tries
  const Graph g = parse("graph g { X = input : f64[24,6]\n W = input : f64[6,5]\n q = matmul X, "
                        "W\n s = sqr q\n m = sum s {axes=[1], keepdims=true}\n"
                        "r = sqrt m\n o = div q, r\n return o }");
  const FieldModel model(this->size(), 9);
  const auto need = needed_components(g);
  std::vector<FieldArray> in = draw_inputs(g, model, need);
  const std::vector<FieldArray> before = in;
  const FieldResult first = eval_field(g, model, in);
  int64_t bad_rows = 0;
  for (int64_t i = 0; i < 24; ++i) bad_rows += first.outputs[0].flag(i * 5) != 0;
  ASSERT_GT(bad_rows, 2);
  const RedrawReport report = redraw_inputs(g, model, in);
  EXPECT_TRUE(report.ok());
  EXPECT_LE(report.rounds, 20);
  const FieldResult second = eval_field(g, model, in);
  EXPECT_TRUE(second.outputs[0].flags.empty());
  for (int64_t i = 0; i < 24; ++i) {  // good rows and the shared weights keep their values
    if (first.outputs[0].flag(i * 5) != 0) continue;
    for (int64_t k = 0; k < 6; ++k)
      EXPECT_EQ(in[0].word(0, i * 6 + k), before[0].word(0, i * 6 + k));
  }
  for (int64_t i = 0; i < 30; ++i) EXPECT_EQ(in[1].word(0, i), before[1].word(0, i));
}

TYPED_TEST(Field, RedrawThroughDataMovement) {
  const Graph g = parse("graph g { X = input : f64[4,6]\n I = input : i64[5]\n t = transpose X "
                        "{perm=[1,0]}\n g = gather t, I {axis=0}\n r = reshape g {shape=[20]}\n"
                        "c = concat r, r {axis=0}\n p = pad c {low=[1], high=[0], value=4}\n s = "
                        "slice p {starts=[0], stops=[41], steps=[3]}\n o = sqrt s\n return o }");
  const FieldModel model(this->size(), 2);
  std::vector<FieldArray> in = draw_inputs(g, model, needed_components(g), 6);
  ASSERT_FALSE(eval_field(g, model, in).outputs[0].flags.empty());
  EXPECT_TRUE(redraw_inputs(g, model, in).ok());
  EXPECT_TRUE(eval_field(g, model, in).outputs[0].flags.empty());
}

// A root behind a window names the few elements it comes from: of 40 roots half are undefined, and
// drawing everything again would never help.
TYPED_TEST(Field, RedrawThroughWindows) {
  for (const char* line :
       {"c = conv X, W {strides=[2], groups=2}", "c = conv_transpose X, V {low=[1], groups=2}",
        "c = pool_sum X {size=[2], strides=[2]}"}) {
    const Graph g = parse(std::string("graph g { X = input : f64[2,4,20]\n W = input : f64[2,2,1]\n"
                                      " V = input : f64[4,1,1]\n ") +
                          line + "\n o = sqrt c\n return o }");
    const FieldModel model(this->size(), 5);
    std::vector<FieldArray> in = draw_inputs(g, model, needed_components(g));
    ASSERT_FALSE(eval_field(g, model, in).outputs[0].flags.empty()) << line;
    EXPECT_TRUE(redraw_inputs(g, model, in).ok()) << line;
    EXPECT_TRUE(eval_field(g, model, in).outputs[0].flags.empty()) << line;
  }
}

// Where a second root of a row is undefined, all that feeds it feeds the first one too, which is
// defined: a quarter of the rows that are left come out well each time that both are drawn again.
TYPED_TEST(Field, RedrawThroughRootsOfRoots) {
  const Graph g = parse(R"(graph g {
  X = input : f64[3000,3]
  s = sqr X
  m = sum s {axes=[1], keepdims=true}
  r = sqrt m
  z = slice X {starts=[0, 2], stops=[3000, 3], steps=[1, 1]}
  c = div z, r
  d = sqr c
  one = const {value=1} : f64[]
  e = sub one, d
  o = sqrt e
  return o
})");
  const FieldModel model(this->size(), 4);
  std::vector<FieldArray> in = draw_inputs(g, model, needed_components(g));
  const std::atomic<bool> cancelled{true};
  FieldOptions options;
  options.cancel = &cancelled;
  std::vector<FieldArray> once = in;
  EXPECT_EQ(redraw_inputs(g, model, once, 64, options).rounds, 1);
  EXPECT_TRUE(redraw_inputs(g, model, in).ok());
  EXPECT_TRUE(eval_field(g, model, in).outputs[0].flags.empty());
}

TYPED_TEST(Field, RedrawGivesUpWhereNothingHelps) {
  const Graph g = parse("graph g { X = input : f64[3]\n z = sub X, X\n o = div X, z\n return o }");
  const FieldModel model(this->size(), 2);
  std::vector<FieldArray> in = draw_inputs(g, model, needed_components(g));
  const RedrawReport report = redraw_inputs(g, model, in, 8);
  EXPECT_FALSE(report.ok());
  EXPECT_EQ(report.still_undefined, 3);
}

TYPED_TEST(Field, DrawsAreUniformAndSplitByElement) {
  const Graph g = parse("graph g { X = input : f64[4000]\n B = input : bool[4000]\n I = input : "
                        "i32[4000]\n o = neg X\n return o }");
  const FieldModel model(this->size(), 2), other(this->size(), 3);
  ThreadPool pool(3);
  const auto a = draw_inputs(g, model, {3, 1, 1}, 10),
             b = draw_inputs(g, model, {1, 1, 1}, 10, &pool),
             c = draw_inputs(g, other, {3, 1, 1}, 10);
  std::set<uint64_t> seen;
  double mean = 0, bits = 0;
  std::array<int, 10> counts{};
  for (int64_t i = 0; i < 4000; ++i) {
    EXPECT_EQ(a[0].word(0, i), b[0].word(0, i));
    EXPECT_NE(a[0].word(0, i), c[0].word(0, i));
    EXPECT_LT(a[0].word(0, i), model.prime(0));
    EXPECT_LT(a[0].word(1, i), model.prime(1));
    seen.insert(a[0].word(0, i));
    mean += double(a[0].word(0, i)) / double(model.prime(0)) / 4000;
    bits += double(a[1].ints[size_t(i)]) / 4000;
    ++counts.at(size_t(a[2].ints[size_t(i)]));
  }
  EXPECT_GE(seen.size(), 3999u);
  EXPECT_NEAR(mean, 0.5, 0.02);
  EXPECT_NEAR(bits, 0.5, 0.04);
  for (int n : counts) EXPECT_NEAR(n, 400, 100);
}

TEST(Components, AreThoseTheExponentsNeed) {
  auto need = [](const std::string& body) { return needed_components(parse(law_program(body))); };
  EXPECT_EQ(need("o = mul x, y")[0], 1);
  EXPECT_EQ(need("a = exp x\no = mul a, y"), (std::vector<Components>{2, 1, 0}));
  EXPECT_EQ(need("a = exp x\nb = exp a\no = mul b, y")[0], 4);
  EXPECT_EQ(need("a = exp x\nb = exp a\nc = exp b\no = mul c, y")[0], 4);
  EXPECT_EQ(need("o = silu x")[0], 3);
  EXPECT_EQ(need("m = max x, y\no = exp m")[0], 3);
  EXPECT_EQ(need("c = lt x, y\no = where c, z, one"), (std::vector<Components>{1, 1, 1}));
}

TEST(Components, ThreeLevelsAreStillFunctions) {
  const std::string left = law_program("a = exp x\nb = exp a\nc = exp b\no = exp c");
  const std::string right =
      law_program("t = mul x, two\ns = mul t, half\na = exp s\nb = exp a\nc = exp b\no = exp c");
  EXPECT_TRUE(field_equal(left, right, FieldSize::Bits61, 1));
  EXPECT_FALSE(field_equal(left, law_program("a = exp y\nb = exp a\nc = exp b\no = exp c"),
                           FieldSize::Bits61, 1));
}

}  // namespace
}  // namespace tessera
