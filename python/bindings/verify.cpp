// verify/: verdicts with their evidence, certificates, and the replay of a
// certificate.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>

#include "bindings.h"
#include "long_call.h"
#include "verify/all_sizes.h"
#include "verify/bitwise.h"
#include "verify/funnel.h"

namespace tessera::python {
namespace {

nb::dict record(const Certificate& c) {
  const auto draw = [](const FieldDraw& d) {
    return dict_of("field", d.field, "primes", d.primes, "seed", d.seed, "elements", d.elements,
                   "undefined", d.undefined);
  };
  const auto family = [](const GateFamily& f) {
    return dict_of("family", f.family, "seed", f.seed, "elements", f.elements, "not_finite",
                   f.not_finite, "special_differ", f.special_differ, "spec_error", f.spec_error,
                   "candidate_error", f.candidate_error, "spec_mean", f.spec_mean, "candidate_mean",
                   f.candidate_mean, "worst_ratio", f.worst_ratio);
  };
  return dict_of("spec", c.spec_name, "candidate", c.candidate_name, "seed", c.seed, "level",
                 name(c.level), "level_means", meaning(c.level), "inputs", c.inputs, "outputs",
                 c.outputs, "coverage", c.coverage, "all_sizes", c.all_sizes, "error_log2",
                 c.error_log2, "bound", c.bound, "basis", c.basis, "proved", c.proved(),
                 "assumptions", c.assumptions, "notes", c.notes, "second_opinion", c.second_opinion,
                 "draws", list_of(c.draws, draw), "gate", list_of(c.gate, family));
}

nb::dict record(const Counterexample& c) {
  const auto input = [](const ConcreteTensor& t) {
    return dict_of("name", t.name, "dtype", name(t.type.dtype), "shape", to_python(t.type.shape),
                   "reals", t.reals, "ints", t.ints);
  };
  return dict_of("kind", name(c.kind), "what", c.what, "inputs", list_of(c.inputs, input), "output",
                 c.output, "position", c.position, "spec", c.spec, "candidate", c.candidate,
                 "allowed", c.allowed);
}

nb::dict record(const Verdict& v) {
  nb::dict d = dict_of("verdict",
                       v.equal()     ? "equal"
                       : v.refuted() ? "refuted"
                                     : "unknown",
                       "text", v.str());
  if (v.equal()) d["certificate"] = v.certificate();
  if (v.refuted()) d["counterexample"] = record(v.counterexample());
  if (v.unknown()) {
    d["reason"] = name(v.why_unknown().reason);
    d["what"] = v.why_unknown().what;
  }
  return d;
}

VerifyOptions options_from(Accuracy level, std::optional<uint64_t> seed, int threads) {
  VerifyOptions options;
  options.level = level;
  options.seed = seed;
  if (threads > 0) options.threads = threads;
  return options;
}

}  // namespace

void bind_verify(nb::module_& m) {
  m.attr("verifier_version") = kVerifierVersion;
  nb::class_<Certificate>(m, "Certificate")
      .def_static(
          "parse",
          [](const std::string& text, const std::string& file) {
            return Certificate::parse(text, file);
          },
          nb::arg("text"), nb::arg("file") = "<certificate>")
      .def(
          "is_of",
          [](const Certificate& c, const Graph& spec, const Graph& candidate) {
            return c.spec_hash == structural_hash(spec) &&
                   c.candidate_hash == structural_hash(candidate);
          },
          nb::arg("spec"), nb::arg("candidate"))
      .def("__str__", &Certificate::str)
      .def(
          "__eq__",
          [](const Certificate& a, nb::handle b) {
            return nb::isinstance<Certificate>(b) && a == nb::cast<const Certificate&>(b);
          })
      .def(
          "record", [](const Certificate& c) { return record(c); });

  m.def(
      "verify",
      [](const Graph& spec, const Graph& candidate, const std::string& level,
         std::optional<uint64_t> seed, int threads, bool second_opinion, std::string z3,
         std::optional<double> budget, nb::object progress, bool accept_tested, bool special) {
        VerifyOptions options = options_from(accuracy_named(level), seed, threads);
        options.special = special;
        options.accept_tested = accept_tested;
        options.second_opinion = second_opinion;
        options.z3 = std::move(z3);
        options.seconds = budget;
        LongCall call;
        options.cancel = &call.cancel;
        options.progress = [&](const std::string& step) {
          call.publish([step]() -> nb::object { return nb::str(step.c_str()); });
        };
        return record(call.run([&] { return verify(spec, candidate, options); }, progress));
      },
      nb::arg("spec"), nb::arg("candidate"), nb::arg("level") = "close",
      nb::arg("seed") = nb::none(), nb::arg("threads") = 0, nb::arg("second_opinion") = false,
      nb::arg("z3") = "", nb::arg("budget") = nb::none(), nb::arg("progress") = nb::none(),
      nb::arg("accept_tested") = false, nb::arg("special") = false);

  // What is proved of all sizes, given by instances (verify/all_sizes.h), or nothing and why.
  m.def(
      "equal_for_all_sizes",
      [](const std::vector<Graph>& a, const std::vector<Graph>& b) {
        nb::gil_scoped_release release;
        const AllSizes found = equal_for_all_sizes(a, b);
        return std::pair(found.proved, found.what);
      },
      nb::arg("a"), nb::arg("b"));

  m.def("inexact_operator", &inexact_operator, nb::arg("graph"));
  m.def(
      "recheck",
      [](const Certificate& certificate, const Graph& spec, const Graph& candidate, int threads) {
        VerifyOptions options = options_from(certificate.level, std::nullopt, threads);
        options.accept_tested = !certificate.proved();
        LongCall call;
        options.cancel = &call.cancel;
        const Recheck result =
            call.run([&] { return recheck(certificate, spec, candidate, options); });
        return nb::make_tuple(result.ok, result.what);
      },
      nb::arg("certificate"), nb::arg("spec"), nb::arg("candidate"), nb::arg("threads") = 0);
}

}  // namespace tessera::python
