// search/patterns: experts' kernels as plain records, and checking them.
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "backend/body_check.h"
#include "backend/cpu/module.h"
#include "bindings.h"
#include "driver/code.h"
#include "driver/optimize.h"
#include "long_call.h"
#include "search/patterns/check.h"
#include "search/patterns/learn.h"
#include "search/patterns/warehouse.h"

namespace tessera::python {
namespace {

using patterns::Pattern;

nb::list texts(const std::vector<patterns::Condition>& all) {
  return list_of(
      all, [](const patterns::Condition& c) { return c.str(); });
}

nb::dict record(const Pattern& p) {
  const auto input = [&](TensorId t) {
    return nb::make_tuple(p.def.tensor(t).name, p.def.type(t).str());
  };
  const auto loops = [](const patterns::LoopGraph& l) { return patterns::print(l); };
  const auto body = [](const patterns::Body& b) {
    return dict_of("target", b.target, "library", b.library, "when", texts(b.when), "line", b.line,
                   "language", name(b.language));
  };
  return dict_of("name", p.name, "text", print(p), "inputs", list_of(p.def.inputs(), input),
                 "output", p.def.type(p.def.outputs()[0]).str(), "loops", list_of(p.loops, loops),
                 "keys", p.keys, "prologue", p.prologues, "epilogue", p.epilogue, "when",
                 texts(p.when), "bodies", list_of(p.bodies, body), "settings", settings(p).size());
}

nb::dict check_pattern(const std::string& text, const std::string& file, uint64_t seed, int sizes,
                       nb::object progress) {
  const Pattern p = patterns::parse_pattern(text, file);
  LongCall call;
  const patterns::CheckResult result = call.run(
      [&] {
        patterns::CheckOptions options;
        options.seed = seed;
        options.sizes = sizes;
        options.cancel = &call.cancel;
        return patterns::check(p, options);
      },
      progress);
  return dict_of("name", p.name, "holds", result.ok(), "why", result.why, "instances",
                 result.instances);
}

nb::dict record(const std::optional<BodyRecord>& r) {
  return dict_of("state", r ? name(r->state) : "unchecked", "runs", r ? r->runs : 0, "instances",
                 r ? r->instances : 0, "what", r ? r->what : std::string(), "machine",
                 r ? r->machine : std::string(), "source", r ? r->source : std::string());
}

// Runs a body in a language against its meaning, and records what came of it.
nb::dict check_body(const std::string& text, const std::string& file, size_t body, uint64_t seed,
                    int sizes, double timeout_s, const std::string& target,
                    const std::string& folder, nb::object progress) {
  const Pattern p = patterns::parse_pattern(text, file);
  LongCall call;
  const BodyRecord r = call.run(
      [&] {
        BodyCheckOptions options;
        options.seed = seed;
        options.sizes = sizes;
        options.timeout_s = timeout_s;
        options.cancel = &call.cancel;
        if (p.bodies.at(body).target == "cuda") {
          OptimizeOptions described;
          described.target = target;
          described.target_directory = folder;
          options.gpu = resolve_target(described);
          const CodePlace place = place_of(target, folder);
          options.arch = place.arch;
          options.context = place.context;
        }
        Cache cache;
        return tessera::check_body(p, body, cache, options);
      },
      progress);
  return record(r);
}

}  // namespace

void bind_patterns(nb::module_& m) {
  m.def(
      "parse_pattern",
      [](const std::string& text, const std::string& file) {
        return record(patterns::parse_pattern(text, file));
      },
      nb::arg("text"), nb::arg("file"));
  m.def("pattern_meaning", &patterns::meaning, nb::arg("program"), nb::arg("inputs"),
        nb::arg("symbols"));
  m.def("check_pattern", &check_pattern, nb::arg("text"), nb::arg("file"), nb::arg("seed") = 1,
        nb::arg("sizes") = 2, nb::arg("progress") = nb::none());
  m.def("check_body", &check_body, nb::arg("text"), nb::arg("file"), nb::arg("body"),
        nb::arg("seed"), nb::arg("sizes"), nb::arg("timeout_s"), nb::arg("target"),
        nb::arg("target_directory"), nb::arg("progress") = nb::none());
  m.def(
      "body_record",
      [](const std::string& text, const std::string& file, size_t body) {
        const Pattern p = patterns::parse_pattern(text, file);
        const patterns::Body& b = p.bodies.at(body);
        Cache cache;
        return record(record_of(
            p, b, cache, best_isa(),
            b.language == patterns::Language::Raw ? place_of("cuda", "").device() : std::string()));
      },
      nb::arg("text"), nb::arg("file"), nb::arg("body"));
  m.def(
      "pattern_example",
      [](const std::string& text, const std::string& file, size_t body) {
        return patterns::example(patterns::parse_pattern(text, file), body);
      },
      nb::arg("text"), nb::arg("file"), nb::arg("body"));
}

}  // namespace tessera::python
