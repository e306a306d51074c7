#include "search/mugraph/saturate.h"

#include <gtest/gtest.h>

#include "ir/text.h"
#include "search/numeric.h"
#include "search/programs.h"

namespace tessera::mugraph {
namespace {

struct Saturated {
  Region region;
  std::unique_ptr<NormalForms> forms;
  RegionForms region_forms;
  Hypergraph graph;
};

// All regions of a program under one formulation; `split` splits its longest axes of even extent.
std::vector<Saturated> saturate_all(const Graph& g, FormOptions options, bool split = false) {
  std::vector<Saturated> out;
  std::vector<bool> given(g.tensors().size(), false);
  for (TensorId t : g.inputs()) given[t.index] = true;
  for (const Step& s : partition(g)) {
    if (s.kept.valid()) {
      given[g.op(s.kept).result().index] = true;
      continue;
    }
    Saturated x;
    x.region = make_region(g, s.outputs, given);
    const size_t axes = split ? x.region.axes.size() : 0;
    for (size_t a = 0; a < axes; ++a) {
      if (x.region.axes[a].extent % 2 == 0 && x.region.axes[a].extent > 4) x.region.split(int(a));
    }
    x.forms = std::make_unique<NormalForms>(axis_extents(x.region), options);
    for (size_t a = 0; a < axes; ++a) {
      if (x.region.part_of(int(a)) >= 0) x.forms->split(int(a), x.region.part_of(int(a)));
    }
    x.region_forms = build_forms(x.region, *x.forms);
    std::map<std::string, int64_t> pruned;
    x.graph = saturate(x.region, *x.forms, x.region_forms, {}, pruned);
    for (TensorId t : s.outputs) given[t.index] = true;
    out.push_back(std::move(x));
  }
  return out;
}

// Every operation of every hypergraph, on signed random numbers: op(operands) = scale · result.
TEST(Saturate, EveryEdgeHoldsOnNumbers) {
  int64_t edges = 0, elements = 0, partial = 0;
  for (const TestProgram& p : test_programs()) {
    Graph g = parse(p.text, p.name);
    for (int variant = 0; variant < 8; ++variant) {
      const int cap = variant & 1 ? 2 : 16;
      const bool keep = (variant & 2) != 0, split = (variant & 4) != 0;
      {
        for (Saturated& s : saturate_all(g, {cap, keep}, split)) {
          ASSERT_FALSE(s.graph.targets.empty()) << p.name;
          for (const Value& v : s.graph.values) {
            for (size_t a = 0; a < s.region.part.size(); ++a) {
              int part = s.region.part[a];
              partial += part >= 0 && (v.axes & bit(part)) && !(v.axes & bit(int(a)));
            }
          }
          for (uint64_t seed : {1, 2, 3}) {
            Numbers numbers(s.region, *s.forms, s.region_forms, seed);
            for (const Edge& e : s.graph.edges) {
              Array got = numbers.edge(e, s.graph), want = numbers.form(s.graph.values[e.out].form);
              ASSERT_EQ(got.axes, want.axes)
                  << p.name << ": " << str(e, s.graph, *s.forms, s.region_forms);
              ++edges;
              for (size_t i = 0; i < got.data.size(); ++i) {
                double w = want.data[i] * e.scale.value(), x = got.data[i];
                if (!std::isfinite(x)) continue;  // a root of a negative number
                ++elements;
                ASSERT_NEAR(x, w, 1e-9 * std::max({1.0, std::fabs(w), std::fabs(x)}))
                    << p.name << " cap " << cap << ": "
                    << str(e, s.graph, *s.forms, s.region_forms);
              }
            }
          }
        }
      }
    }
  }
  EXPECT_GT(edges, 3000);
  EXPECT_GT(elements, 20000);
  EXPECT_GT(partial, 100);  // values of split sums
}

// The sizes the normal form is known for: pruning leaves almost only useful values.
TEST(Saturate, ValuesAreFew) {
  auto values = [](const char* name, int cap) {
    for (const TestProgram& p : test_programs()) {
      if (std::string(p.name) == name) {
        return saturate_all(parse(p.text, p.name), {cap, false})[0].graph.values.size();
      }
    }
    return size_t(0);
  };
  EXPECT_LE(values("rmsnorm_linear", 16), 21u);
  EXPECT_LE(values("attention", 16), 15u);
  EXPECT_LE(values("lora", 16), 18u);
  EXPECT_LE(values("layernorm", 2), 27u);
  EXPECT_LE(values("ntrans", 2), 50u);
}

TEST(Saturate, NothingIsToldAboutNorms) {
  // The numerator Σ x·g·w and the denominator Σ x² appear as values of their own.
  Graph g = parse(test_programs()[0].text, "rmsnorm_linear");
  Saturated s = std::move(saturate_all(g, {})[0]);
  bool numerator = false, denominator = false;
  for (const Value& v : s.graph.values) {
    std::string text = s.forms->str(v.form);
    numerator = numerator || text == "S{2}[t0*t1*t2]";
    denominator = denominator || text == "S{2}[t0^2]";
  }
  EXPECT_TRUE(numerator);
  EXPECT_TRUE(denominator);
}

}  // namespace
}  // namespace tessera::mugraph
