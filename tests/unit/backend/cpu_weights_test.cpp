#include <gtest/gtest.h>

#include <cstring>

#include "backend/arrays.h"
#include "backend/check.h"
#include "backend/cpu/emit.h"
#include "backend/cpu/module.h"
#include "backend/cpu/pack.h"
#include "base/rng.h"
#include "eval/eval.h"
#include "ir/text.h"
#include "plan/layout_offset.h"

namespace tessera {
namespace {

const char* const kFolded = R"(graph folded {
  X = input : f32[5,70]
  G = input {weight=true} : f32[70,1]
  W = input {weight=true} : f32[70,128]
  V = mul G, W : f32[70,128]
  Y = matmul X, V : f32[5,128]
  return Y
}
)";

TEST(Weights, AreFoldedPackedAndReused) {
  const Graph g = parse(kFolded);
  Cache cache;
  const auto module = Module::compile(g, cache);
  EXPECT_EQ(module->weights(), (std::vector<size_t>{1, 2}));
  EXPECT_GT(module->prepared_bytes(), 2 * 70 * 128 * 4 - 1);  // the product, and its panels
  EXPECT_NE(module->plan_text().find("panels of"), std::string::npos) << module->plan_text();
  EXPECT_EQ(module->plan().run.phases.size(), 1u);

  // Reading a weight to see whether it changed costs what panels are worth to few rows.
  ModuleOptions compared;
  compared.plan.compared = true;
  const auto plain = [&](const ModuleOptions& options) {
    return Module::compile(
               parse("graph plain {\n  X = input : f32[5,70]\n  W = input {weight=true} "
                     ": f32[70,128]\n  Y = matmul X, W : f32[5,128]\n  return Y\n}\n"),
               cache, options)
        ->prepared_bytes();
  };
  EXPECT_GT(plain({}), 0);
  EXPECT_EQ(plain(compared), 0);

  Rng rng(1);
  std::vector<float> x(5 * 70), gain(70), w(70 * 128), y(5 * 128), again(5 * 128);
  for (auto* v : {&x, &gain, &w})
    for (float& e : *v) e = static_cast<float>(rng.unit() - 0.5);
  const std::vector<const void*> in = {x.data(), gain.data(), w.data()};
  std::vector<void*> out = {y.data()};
  const auto prepared = module->prepare(in);
  module->run(in, out, prepared.get());
  for (int i = 0; i < 5; ++i) {
    for (int j = 0; j < 128; ++j) {
      double want = 0;
      for (int k = 0; k < 70; ++k)
        want += double(x[static_cast<size_t>(i * 70 + k)]) * gain[static_cast<size_t>(k)] *
                w[static_cast<size_t>(k * 128 + j)];
      ASSERT_NEAR(y[static_cast<size_t>(i * 128 + j)], want, 1e-5) << i << " " << j;
    }
  }
  // What was prepared is what is used: changed weights show only when prepared anew.
  for (float& e : w) e = 0;
  out = {again.data()};
  module->run(in, out, prepared.get());
  EXPECT_EQ(again, y);
  module->run(in, out);
  EXPECT_EQ(again, std::vector<float>(5 * 128, 0.0f));
}

TEST(Weights, CompiledCodeAgreesWithTheInterpreterWhateverIsOff) {
  const std::vector<const char*> programs = {
      kFolded,
      // Weights stored as rows of outputs, batches, tails that fill no vector, a mask of constants.
      R"(graph rows {
  X = input : f32[3,96]
  W = input {weight=true} : f32[200,96]
  T = transpose W {perm=[1,0]} : f32[96,200]
  Y = matmul X, T : f32[3,200]
  return Y
}
)",
      R"(graph batched {
  X = input : f32[4,9,33]
  W = input {weight=true} : f32[4,33,81]
  B = input {weight=true} : f32[81]
  Y = matmul X, W : f32[4,9,81]
  Z = add Y, B : f32[4,9,81]
  return Z, W
}
)",
      R"(graph two {
  X = input : f64[40,64]
  W = input {weight=true} : f64[64,64]
  A = matmul X, W : f64[40,64]
  B = matmul A, W : f64[40,64]
  return B
}
)",
      R"(graph masked {
  X = input : f32[48,48]
  i = iota {axis=0} : i32[48,48]
  j = iota {axis=1} : i32[48,48]
  m = ge i, j : bool[48,48]
  z = const {value=0} : f32[]
  Y = where m, X, z : f32[48,48]
  return Y
}
)"};
  Cache cache;
  for (const char* text : programs) {
    const Graph g = parse(text);
    for (int off = -1; off < 4; ++off) {
      ModuleOptions options;
      options.plan.layout = off != 0;
      options.plan.schedule = off != 1;
      options.plan.memory = off != 2;
      options.plan.weights = off != 3;
      const auto module = Module::compile(g, cache, options);
      CheckReport report;
      EXPECT_TRUE(check_compiled(
          g, [&](auto in, auto out) { module->run(in, out); }, {}, &report))
          << g.name() << " " << off << " " << report.what << "\n"
          << module->plan_text();
    }
  }
}

// A program of `rows` rows; `swapped`: its weights have each other's places.
std::string rows_program(int rows, bool swapped) {
  const std::string n = std::to_string(rows), g = "  G = input {weight=true} : f32[70,1]\n",
                    w = "  W = input {weight=true} : f32[70,128]\n";
  return "graph rows {\n  X = input : f32[" + n + ",70]\n" + (swapped ? w + g : g + w) +
         "  V = mul G, W : f32[70,128]\n  Y = matmul X, V : f32[" + n + ",128]\n  return Y\n}\n";
}

TEST(Weights, ArraysThatAreTheSameAreSharedByPrograms) {
  Cache cache;
  const auto few = Module::compile(parse(rows_program(8, false)), cache);
  const auto many = Module::compile(parse(rows_program(24, false)), cache);
  const auto other = Module::compile(parse(rows_program(24, true)), cache);
  std::vector<float> x(24 * 70), gain(70), w(70 * 128), y(24 * 128), want(24 * 128);
  Rng rng(3);
  for (auto* v : {&x, &gain, &w})
    for (float& e : *v) e = static_cast<float>(rng.unit() - 0.5);
  const std::vector<const void*> in = {x.data(), gain.data(), w.data()};
  const std::vector<void*> out = {y.data()}, expected = {want.data()};
  many->run(in, expected);
  std::vector<std::shared_ptr<const PreparedWeights>> others = {few->prepare(in)};
  EXPECT_GT(others[0]->bytes(), 70 * 128 * 4 - 1);
  const auto prepared = many->prepare(in, others);
  EXPECT_LT(prepared->bytes(), 70 * 128 * 4);
  others.clear();  // what is shared stays
  many->run(in, out, prepared.get());
  EXPECT_EQ(y, want);
  others = {prepared, few->prepare(in)};
  const std::vector<const void*> swapped = {x.data(), w.data(), gain.data()};
  EXPECT_GT(other->prepare(swapped, others)->bytes(), 70 * 128 * 4 - 1);
}

TEST(Weights, ConstantsAloneAreComputedAtLoading) {
  const Graph g = parse(R"(graph masked {
  X = input : f32[8,8]
  i = iota {axis=0} : f32[8,8]
  e = exp i : f32[8,8]
  Y = mul X, e : f32[8,8]
  return Y
}
)");
  Cache cache;
  const auto module = Module::compile(g, cache);
  EXPECT_TRUE(module->weights().empty());
  EXPECT_EQ(module->plan().run.phases.size(), 1u);
  EXPECT_GT(module->prepared_bytes(), 0);
}

TEST(Pack, FollowsTheFormula) {
  Rng rng(2);
  for (int trial = 0; trial < 100; ++trial) {
    PackJob job;
    const int rank = 2 + static_cast<int>(rng.below(2));
    int64_t elements = 1;
    std::vector<int> order;
    for (int i = 0; i < rank; ++i) {
      job.extents.push_back(1 + static_cast<int64_t>(rng.below(70)));
      elements *= job.extents.back();
      order.insert(order.begin() + static_cast<long>(rng.below(order.size() + 1)), i);
    }
    job.layout.order = order;
    job.layout.panel = rng.chance(0.7) ? 1 + static_cast<int64_t>(rng.below(20)) : 0;
    job.layout.group = job.layout.panel > 0 && rng.chance(0.5) ? 2 : 1;
    job.element_bytes = 2;
    std::vector<uint16_t> from(static_cast<size_t>(elements));
    for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<uint16_t>(i * 7 + 1);
    const size_t size = static_cast<size_t>(layout_elements(job.layout, job.extents));
    std::vector<uint16_t> to(size, 0xffff), want(size, 0);
    for (int64_t i = 0; i < elements; ++i) {
      std::vector<int64_t> index(job.extents.size());
      int64_t rest = i;
      for (size_t a = index.size(); a-- > 0;) {
        index[a] = rest % job.extents[a];
        rest /= job.extents[a];
      }
      want[static_cast<size_t>(layout_offset(job.layout, job.extents, index))] =
          from[static_cast<size_t>(i)];
    }
    const int64_t half = job.units() / 2;
    job.run(from.data(), to.data(), half, job.units());
    job.run(from.data(), to.data(), 0, half);
    ASSERT_EQ(to, want) << job.layout.str();
  }
}

}  // namespace
}  // namespace tessera
