#include "verify/all_sizes.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "base/error.h"
#include "base/rng.h"
#include "eval/eval.h"
#include "places.h"
#include "search/rules/check.h"
#include "search/rules/instance.h"
#include "search/rules/library.h"
#include "verify/programs.h"

namespace tessera {
namespace {

AllSizes ask(const std::string& a, const std::string& b) {
  return equal_for_all_sizes(program(a), program(b), 7);
}
void expect_proved(const std::string& a, const std::string& b) {
  const AllSizes found = ask(a, b);
  EXPECT_TRUE(found.proved) << a << "\n" << b << "\n" << found.what;
}
void expect_open(const std::string& a, const std::string& b) {
  const AllSizes found = ask(a, b);
  EXPECT_FALSE(found.proved) << a << "\n" << b << "\n" << found.what;
}

const char* const kMatrix = "x = input : f32[N,M]; v = input : f32[M];";
std::string with(const std::string& rest) { return kMatrix + rest; }

TEST(AllSizes, SumsMoveAndKeepTheirRange) {
  const std::string product =
      with("e = unsqueeze v {axes=[1]} : f32[M,1]; p = matmul x, e : f32[N,1];"
           "y = squeeze p {axes=[1]} : f32[N]; return y");
  expect_proved(product, with("p = mul x, v : f32[N,M]; y = sum p {axes=[1]} : f32[N]; return y"));
  expect_open(product, with("p = mul x, v : f32[N,M]; q = mul p, p : f32[N,M];"
                            "y = sum q {axes=[1]} : f32[N]; return y"));
  // The mean divides by M, not by N.
  expect_proved(with("y = mean x {axes=[1]} : f32[N]; return y"),
                with("s = sum x {axes=[1]} : f32[N]; o = const {value=1} : f32[M];"
                     "n = sum o {axes=[0]} : f32[]; y = div s, n : f32[N]; return y"));
  expect_open(with("y = mean x {axes=[1]} : f32[N]; return y"),
              with("s = sum x {axes=[1]} : f32[N]; o = const {value=1} : f32[N];"
                   "n = sum o {axes=[0]} : f32[]; y = div s, n : f32[N]; return y"));
  // Two sums of the same letters: one range is not the other.
  const std::string square = "x = input : f32[N,N]; ";
  expect_open(square + "a = sum x {axes=[0]} : f32[N]; return a",
              square + "a = sum x {axes=[1]} : f32[N]; return a");
  expect_open(square + "a = matmul x, x : f32[N,N]; return a",
              square +
                  "t = transpose x {perm=[1,0]} : f32[N,N]; a = matmul x, t : f32[N,N]; return a");
}

TEST(AllSizes, ChainsOfProductsAssociate) {
  const std::string in = "a = input : f32[N,M]; b = input : f32[M,K]; c = input : f32[K,L];"
                         "d = input : f32[L,N]; ";
  const std::string left = in + "p = matmul a, b : f32[N,K]; q = matmul p, c : f32[N,L];"
                                "r = matmul q, d : f32[N,N]; return r";
  expect_proved(left, in + "p = matmul c, d : f32[K,N]; q = matmul b, p : f32[M,N];"
                           "r = matmul a, q : f32[N,N]; return r");
  expect_open(left,
              in + "p = matmul c, d : f32[K,N]; q = matmul b, p : f32[M,N];"
                   "r = matmul a, q : f32[N,N]; t = transpose r {perm=[1,0]} : f32[N,N]; return t");
}

TEST(AllSizes, SoftmaxIgnoresAShiftThatIsTheSameInARow) {
  auto softmax = [](const std::string& shift) {
    return with(shift + "s = sub x, m : f32[N,M]; e = exp s : f32[N,M];"
                        "z = sum e {axes=[1], keepdims=true} : f32[N,1]; y = div e, z : f32[N,M];"
                        "return y");
  };
  const std::string row = softmax("m = reduce_max x {axes=[1], keepdims=true} : f32[N,1];");
  expect_proved(row, softmax("m = const {value=0} : f32[];"));
  expect_proved(row, softmax("m = reduce_max x {axes=[0,1], keepdims=true} : f32[1,1];"));
  expect_open(row, softmax("m = reduce_max x {axes=[0], keepdims=true} : f32[1,M];"));
}

TEST(AllSizes, DecisionsAreFunctionsOfWhatTheyCompare) {
  const std::string relu = with("r = relu x : f32[N,M]; y = sum r {axes=[1]} : f32[N]; return y");
  expect_proved(relu,
                with("z = const {value=0} : f32[]; c = gt x, z : bool[N,M];"
                     "w = where c, x, z : f32[N,M]; y = sum w {axes=[1]} : f32[N]; return y"));
  expect_open(relu, with("z = const {value=1000000} : f32[]; c = lt x, z : bool[N,M];"
                         "r = relu x : f32[N,M]; w = where c, r, z : f32[N,M];"
                         "y = sum w {axes=[1]} : f32[N]; return y"));
  expect_proved(
      with(
          "d = sub x, v : f32[N,M]; a = abs d : f32[N,M]; y = sum a {axes=[1]} : f32[N]; return y"),
      with("d = sub v, x : f32[N,M]; a = abs d : f32[N,M]; y = sum a {axes=[1]} : f32[N]; return "
           "y"));
  const std::string least =
      with("n = neg x : f32[N,M]; m = reduce_max n {axes=[0,1]} : f32[]; return m");
  expect_proved(least,
                with("m = reduce_min x {axes=[1]} : f32[N]; k = reduce_min m {axes=[0]} : f32[];"
                     "n = neg k : f32[]; return n"));
  expect_open(least,
              with("m = reduce_max x {axes=[1]} : f32[N]; k = reduce_min m {axes=[0]} : f32[];"
                   "n = neg k : f32[]; return n"));
}

TEST(AllSizes, TrianglesOnesAndJoins) {
  const std::string square = "x = input : f32[N,N]; v = input : f32[N];";
  auto lower = [&](const std::string& compare) {
    return square + "i = iota {axis=0} : i64[N,N]; j = iota {axis=1} : i64[N,N]; c = " + compare +
           " i, j : bool[N,N]; z = const {value=0} : f32[]; y = where c, x, z : f32[N,N]; return y";
  };
  const std::string tril = square + "y = tril x : f32[N,N]; return y";
  expect_proved(tril, lower("ge"));
  expect_open(tril, lower("gt"));
  auto scaled = [&](const std::string& extra, const std::string& first) {
    return square + "i = iota {axis=0} : i64[N,N]; j = iota {axis=1} : i64[N,N]; c = " + first +
           " : bool[N,N]; o = const {value=1} : f32[]; z = const {value=0} : f32[];"
           "e = where c, o, z : f32[N,N]; " +
           extra;
  };
  const std::string product = "d = mul e, v : f32[N,N]; y = matmul d, x : f32[N,N]; return y";
  const std::string rows =
      square + "u = unsqueeze v {axes=[1]} : f32[N,1]; y = mul u, x : f32[N,N]; return y";
  expect_proved(scaled(product, "eq i, j"), rows);
  expect_open(scaled(product, "le i, j"), rows);
  // The sum of a join is the sum of sums, and a running sum's last element is in none of these.
  const std::string two =
      "a = input : f32[N]; b = input : f32[M]; c = concat a, b {axis=0} : f32[N+M];";
  expect_proved(two + "s = sum c {axes=[0]} : f32[]; return s",
                two + "p = sum a {axes=[0]} : f32[]; q = sum b {axes=[0]} : f32[]; s = add q, p : "
                      "f32[]; return s");
  expect_open(two + "s = sum c {axes=[0]} : f32[]; return s",
              two + "p = sum a {axes=[0]} : f32[]; q = sum b {axes=[0]} : f32[]; s = sub q, p : "
                    "f32[]; return s");
  expect_proved("x = input : f32[N,M]; r = reshape x {shape=[N*M]} : f32[N*M]; s = sum r "
                "{axes=[0]} : f32[]; return s",
                "x = input : f32[N,M]; s = sum x {axes=[0,1]} : f32[]; return s");
  expect_open("x = input : f32[N,M]; r = reshape x {shape=[M,N]} : f32[M,N]; return r",
              "x = input : f32[N,M]; r = transpose x {perm=[1,0]} : f32[M,N]; return r");
}

TEST(AllSizes, IntegersWrapAround) {
  const std::string in = "x = input : i32[N]; y = input : i32[N];";
  expect_proved(
      in + "a = add x, y : i32[N]; b = mul a, x : i32[N]; return b",
      in + "p = mul x, x : i32[N]; q = mul y, x : i32[N]; b = add p, q : i32[N]; return b");
  expect_open(in + "a = add x, y : i32[N]; z = sub a, y : i32[N]; c = gt a, y : bool[N]; return c",
              in + "z = const {value=0} : i32[]; c = gt x, z : bool[N]; return c");
}

// --- certificates

TEST(AllSizes, CertificatesSayForWhichAndAreCheckedAgain) {
  const std::string a = with("p = mul x, v : f32[N,M]; y = sum p {axes=[1]} : f32[N]; return y");
  const std::string b = with("e = unsqueeze v {axes=[1]} : f32[M,1]; p = matmul x, e : f32[N,1];"
                             "y = squeeze p {axes=[1]} : f32[N]; return y");
  const Verdict v = compare_programs(a, b);
  ASSERT_TRUE(v.equal()) << v.str();
  Certificate c = v.certificate();
  EXPECT_EQ(c.all_sizes, "x[N,M] v[M] with M >= 1, N >= 1");
  EXPECT_EQ(Certificate::parse(c.str()), c);
  VerifyOptions options;
  EXPECT_TRUE(recheck(c, program(a), program(b), options).ok);
  c.all_sizes = "x[N,M] v[M] with M >= 0, N >= 1";
  EXPECT_FALSE(recheck(c, program(a), program(b), options).ok);
}

// --- rules: what is proved holds at small sizes, and so does what is proved of wrong rules

std::vector<rules::Rule> shipped() { return rules::load_rules(source_dir() + "/rules"); }

TEST(AllSizes, NineRulesInTenAreProved) {
  size_t proved = 0;
  const std::vector<rules::Rule> all = shipped();
  std::string open;
  for (const rules::Rule& r : all) {
    const std::string why = rules::not_for_all_sizes(r, 3);
    proved += why.empty();
    if (!why.empty()) open += r.name + ": " + why + "\n";
  }
  EXPECT_GE(proved, all.size() * 9 / 10) << open;
  std::cout << proved << " of " << all.size() << "\n" << open;
}

// One edit of an operator, the same in every instance of a program; nothing where it does not fit.
std::optional<Graph> edited(const Graph& g, size_t which, uint64_t how) {
  const Op& op = g.ops()[which];
  OpKind kind = op.kind;
  Attrs attrs = op.attrs;
  std::vector<TensorId> inputs = op.inputs;
  static const std::vector<std::vector<OpKind>> kFamilies = {
      {OpKind::Add, OpKind::Sub, OpKind::Mul, OpKind::Div, OpKind::Max, OpKind::Min},
      {OpKind::Sum, OpKind::Mean, OpKind::ReduceMax, OpKind::ReduceMin},
      {OpKind::Neg, OpKind::Abs, OpKind::Exp, OpKind::Sqr, OpKind::Sqrt, OpKind::Sin, OpKind::Cos},
      {OpKind::Triu, OpKind::Tril}};
  if (how % 3 == 0 && inputs.size() == 2) {
    std::swap(inputs[0], inputs[1]);
  } else if (auto* c = std::get_if<ConstAttrs>(&attrs)) {
    c->value = *Rational::add(c->value, Rational(1));
  } else if (auto* t = std::get_if<PermAttrs>(&attrs)) {
    std::rotate(t->perm.begin(), t->perm.begin() + 1, t->perm.end());
  } else if (auto* d = std::get_if<DiagonalAttrs>(&attrs); d && how % 2) {
    d->k += 1;
  } else if (auto* r = std::get_if<ReduceAttrs>(&attrs); r && how % 2) {
    r->axes[0] = r->axes[0] == 0 ? 1 : 0;
  } else {
    for (const auto& family : kFamilies)
      if (std::find(family.begin(), family.end(), kind) != family.end())
        kind = family[how % family.size()];
    if (kind == op.kind) return std::nullopt;
  }
  try {
    Graph out(g.name());
    std::vector<TensorId> map(g.tensors().size());
    for (size_t k = 0; k < g.ops().size(); ++k) {
      if (k != which) {
        copy_op(g, g.ops()[k], out, map);
        continue;
      }
      for (TensorId& t : inputs) t = map[t.index];
      const TensorId made = out.op(out.add_op(kind, inputs, attrs)).result();
      if (!(out.type(made) == g.type(op.result()))) return std::nullopt;
      map[op.result().index] = made;
    }
    for (TensorId t : g.outputs()) out.add_output(map[t.index]);
    return out;
  } catch (const Error&) {
    return std::nullopt;
  }
}

// Whether they agree in f64 wherever both are numbers.
bool agree(const Graph& a, const Graph& b, Rng& rng) {
  for (int look = 0; look < 3; ++look) {
    std::vector<NDArray> in;
    for (TensorId t : a.inputs()) {
      in.push_back(NDArray::zeros(a.type(t).dtype, extents(a.type(t).shape)));
      for (double& x : in.back().reals) x = look == 0 ? 0.2 + rng.unit() : 3 * rng.unit() - 1.5;
      for (int64_t& x : in.back().ints) x = rng.between(0, 1);
    }
    const NDArray x = eval(a, in)[0], y = eval(b, in)[0];
    if (x.ints != y.ints) return false;
    for (size_t k = 0; k < x.reals.size(); ++k)
      if (std::isfinite(x.reals[k]) && std::isfinite(y.reals[k]) &&
          std::fabs(x.reals[k] - y.reals[k]) > 1e-8 * (1 + std::fabs(x.reals[k])))
        return false;
  }
  return true;
}

std::vector<OpKind> kinds(const Graph& g) {
  std::vector<OpKind> out;
  for (const Op& op : g.ops()) out.push_back(op.kind);
  return out;
}

TEST(AllSizes, WhatIsProvedOfEditedRulesHoldsAtSmallSizes) {
  using rules::Sizes;
  Rng rng(11);
  int asked = 0, proved = 0, looked = 0;
  for (const rules::Rule& rule : shipped()) {
    if (!rule.real) continue;
    for (uint64_t how = 0; how < 12; ++how) {
      const auto numbers = rules::draw(rule, Sizes::One, rng).numbers;
      const size_t pick = rng();
      const auto make = [&](Sizes sizes) -> std::optional<std::pair<Graph, Graph>> {
        rules::Assignment a = rules::draw(rule, sizes, rng);
        a.numbers = numbers;
        const auto l = rules::build(rule, {rule.left}, a, DType::F64),
                   r = rules::build(rule, {rule.right}, a, DType::F64);
        if (!l || !r) return std::nullopt;
        // The first edits are none: what is proved of the rule itself.
        const auto e = how < 2 ? r : edited(*r, pick % r->ops().size(), how);
        if (!e || !(l->type(l->outputs()[0]) == e->type(e->outputs()[0]))) return std::nullopt;
        return std::pair(*l, *e);
      };
      std::vector<Graph> left, right;
      while (left.size() < 4) {
        const auto one = make(how % 2 ? Sizes::Any : Sizes::AnyBare);
        if (!one) break;
        left.push_back(one->first);
        right.push_back(one->second);
      }
      if (left.size() < 4) continue;
      ++asked;
      if (!equal_for_all_sizes(left, right).proved) continue;
      ++proved;
      for (Sizes sizes : {Sizes::One, Sizes::Unlike, Sizes::Bare, Sizes::Mixed})
        if (const auto one = make(sizes)) {
          // Programs of other ranks are other operators: the edit was another one there.
          if (how >= 2 && kinds(one->second) != kinds(right[0])) continue;
          ++looked;
          EXPECT_TRUE(agree(one->first, one->second, rng))
              << print(one->first) << print(one->second);
        }
    }
  }
  EXPECT_GT(asked - proved, 500);  // wrong ones
  EXPECT_GT(looked, 1000);
  std::cout << asked << " asked, " << proved << " proved, " << looked << " looked\n";
}

}  // namespace
}  // namespace tessera
