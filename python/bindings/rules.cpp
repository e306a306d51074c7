// search/rules: rules as plain records, checking them, learning them from programs.
#include <nanobind/stl/pair.h>

#include "bindings.h"
#include "long_call.h"
#include "search/rules/check.h"
#include "search/rules/generalise.h"
#include "search/rules/learn.h"
#include "search/rules/library.h"
#include "search/rules/rewrite.h"

namespace tessera::python {
namespace {

using rules::Rule;

nb::dict record(const Rule& r) {
  const auto condition = [&](const rules::Condition& c) {
    const char* const is = c.kind == rules::Condition::Kind::Positive      ? "> 0"
                           : c.kind == rules::Condition::Kind::NonNegative ? ">= 0"
                                                                           : "!= 0";
    return dict_of("of", print(r, c.value), "is", is, "assumed", c.implied);
  };
  return dict_of("name", r.name, "text", print(r), "left", print(r, r.left), "right",
                 print(r, r.right), "conditions", list_of(r.conditions, condition), "real", r.real,
                 "integer", r.integer, "learned", r.learned, "checked", r.checked, "line", r.line,
                 "operations", nb::make_tuple(size(r, r.left), size(r, r.right)));
}

nb::list records(const std::vector<Rule>& all) {
  return list_of(
      all, [](const Rule& r) { return record(r); });
}

nb::list check_rules(const std::string& text, const std::string& file, int instances, uint64_t seed,
                     bool second_opinion, const std::string& z3, nb::object progress) {
  const std::vector<Rule> all = rules::parse_rules(text, file);
  LongCall call;
  using Results = std::vector<rules::CheckResult>;
  const Results results = call.run(
      [&] {
        Results found;
        rules::CheckOptions options;
        options.instances = instances;
        options.seed = seed;
        options.second_opinion = second_opinion;
        options.z3 = z3;
        options.cancel = &call.cancel;
        for (const Rule& r : all) {
          found.push_back(rules::check(r, options));
          call.publish([n = found.size()]() -> nb::object { return nb::cast(n); });
        }
        return found;
      },
      progress);
  nb::list list;
  for (size_t i = 0; i < all.size(); ++i) {
    list.append(dict_of("name", all[i].name, "line", all[i].line, "holds", results[i].holds, "why",
                        results[i].why, "instances", results[i].instances, "agreed",
                        results[i].agreed, "all_sizes", results[i].all_sizes));
  }
  return list;
}

nb::dict learn_rules(const std::vector<std::pair<Graph, std::string>>& programs,
                     const std::string& known, const std::string& stated, int instances,
                     uint64_t seed, double seconds, bool second_opinion, const std::string& z3,
                     nb::object progress) {
  rules::LearnOptions options;
  options.instances = instances;
  options.seed = seed;
  options.seconds = seconds;
  options.second_opinion = second_opinion;
  options.z3 = z3;
  LongCall call;
  options.cancel = &call.cancel;
  rules::Learner learner(options, rules::parse_rules(known, "<known>"));
  const std::vector<Rule> by_people = rules::parse_rules(stated, "<stated>");
  const std::vector<Rule> learnt = call.run(
      [&] {
        std::vector<Rule> all;
        size_t done = 0;
        for (const Rule& raw : by_people)
          for (Rule& r : learner.learn(raw, "")) all.push_back(std::move(r));
        for (const auto& [graph, source] : programs) {
          if (call.cancel) break;
          for (Rule& r : learner.learn(graph, source)) all.push_back(std::move(r));
          call.publish(
              [n = ++done, k = all.size()]() -> nb::object { return nb::make_tuple(n, k); });
        }
        return all;
      },
      progress);
  const auto& c = learner.counts();
  const nb::dict counts =
      dict_of("programs", c.programs, "discoveries", c.discoveries, "candidates", c.candidates,
              "refused", c.refused, "derived", c.derived, "kept", c.kept);
  return dict_of("rules", records(learnt), "refused", learner.refusals(), "counts", counts,
                 "interrupted", call.interrupted);
}

}  // namespace

void bind_rules(nb::module_& m) {
  m.def(
      "parse_rules",
      [](const std::string& text, const std::string& file) {
        return records(rules::parse_rules(text, file));
      },
      nb::arg("text"), nb::arg("file"));
  m.def("check_rules", &check_rules, nb::arg("text"), nb::arg("file"), nb::arg("instances") = 32,
        nb::arg("seed") = 1, nb::arg("second_opinion") = false, nb::arg("z3") = "",
        nb::arg("progress") = nb::none());
  m.def("learn_rules", &learn_rules, nb::arg("programs"), nb::arg("known") = "",
        nb::arg("stated") = "", nb::arg("instances") = 64, nb::arg("seed") = 0,
        nb::arg("seconds") = 2.0, nb::arg("second_opinion") = false, nb::arg("z3") = "",
        nb::arg("progress") = nb::none());
  m.def("rule_exercise", &rules::exercise, nb::arg("seed"));
}

}  // namespace tessera::python
