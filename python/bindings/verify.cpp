// verify/: verdicts with their evidence, certificates, and the replay of a
// certificate.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>

#include "base/thread_pool.h"
#include "bindings.h"
#include "long_call.h"
#include "verify/all_sizes.h"
#include "verify/bitwise.h"
#include "verify/filter.h"
#include "verify/funnel.h"

namespace tessera::python {
namespace {

nb::dict record(const Certificate& c) {
  nb::dict d =
      dict_of("spec", c.spec_name, "candidate", c.candidate_name, "seed", c.seed, "level",
              name(c.level), "level_means", meaning(c.level), "inputs", c.inputs, "outputs",
              c.outputs, "coverage", c.coverage, "all_sizes", c.all_sizes, "error_log2",
              c.error_log2, "bound", c.bound, "basis", c.basis, "proved", c.proved(), "assumptions",
              c.assumptions, "notes", c.notes, "second_opinion", c.second_opinion);
  nb::list draws;
  for (const FieldDraw& draw : c.draws) {
    nb::dict row = dict_of("field", draw.field, "primes", draw.primes, "seed", draw.seed,
                           "elements", draw.elements, "undefined", draw.undefined);
    draws.append(row);
  }
  d["draws"] = draws;
  nb::list gate;
  for (const GateFamily& family : c.gate) {
    nb::dict row = dict_of(
        "family", family.family, "seed", family.seed, "elements", family.elements, "not_finite",
        family.not_finite, "special_differ", family.special_differ, "spec_error", family.spec_error,
        "candidate_error", family.candidate_error, "spec_mean", family.spec_mean, "candidate_mean",
        family.candidate_mean, "worst_ratio", family.worst_ratio);
    gate.append(row);
  }
  d["gate"] = gate;
  return d;
}

nb::dict record(const Counterexample& c) {
  nb::dict d;
  d["kind"] = name(c.kind);
  d["what"] = c.what;
  nb::list inputs;
  for (const ConcreteTensor& tensor : c.inputs) {
    nb::dict row =
        dict_of("name", tensor.name, "dtype", name(tensor.type.dtype), "shape",
                to_python(tensor.type.shape), "reals", tensor.reals, "ints", tensor.ints);
    inputs.append(row);
  }
  d["inputs"] = inputs;
  d["output"] = c.output;
  d["position"] = c.position;
  d["spec"] = c.spec;
  d["candidate"] = c.candidate;
  d["allowed"] = c.allowed;
  return d;
}

nb::dict record(const Verdict& v) {
  nb::dict d;
  d["verdict"] = v.equal() ? "equal" : v.refuted() ? "refuted" : "unknown";
  d["text"] = v.str();
  if (v.equal()) d["certificate"] = v.certificate();
  if (v.refuted()) d["counterexample"] = record(v.counterexample());
  if (v.unknown()) {
    d["reason"] = name(v.why_unknown().reason);
    d["what"] = v.why_unknown().what;
  }
  return d;
}

VerifyOptions options_from(Accuracy level, std::optional<uint64_t> seed, int threads,
                           int64_t max_macs) {
  VerifyOptions options;
  options.level = level;
  options.seed = seed;
  if (threads > 0) options.threads = threads;
  if (max_macs > 0) options.max_macs = max_macs;
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
         std::optional<uint64_t> seed, int threads, int64_t max_macs, bool second_opinion,
         std::string z3, std::optional<double> budget, nb::object progress, bool accept_tested,
         bool special) {
        VerifyOptions options = options_from(accuracy_named(level), seed, threads, max_macs);
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
        bool interrupted = false;
        Verdict verdict =
            call.run([&] { return verify(spec, candidate, options); }, progress, interrupted);
        return record(verdict);
      },
      nb::arg("spec"), nb::arg("candidate"), nb::arg("level") = "close",
      nb::arg("seed") = nb::none(), nb::arg("threads") = 0, nb::arg("max_macs") = 0,
      nb::arg("second_opinion") = false, nb::arg("z3") = "", nb::arg("budget") = nb::none(),
      nb::arg("progress") = nb::none(), nb::arg("accept_tested") = false,
      nb::arg("special") = false);

  // What is proved of all sizes, given by instances (verify/all_sizes.h), or nothing and why.
  m.def(
      "equal_for_all_sizes",
      [](const std::vector<Graph>& a, const std::vector<Graph>& b) {
        nb::gil_scoped_release release;
        const AllSizes found = equal_for_all_sizes(a, b);
        return std::pair(found.proved, found.what);
      },
      nb::arg("a"), nb::arg("b"));

  m.def(
      "inexact_operator", [](const Graph& graph) { return inexact_operator(graph); },
      nb::arg("graph"));
  // Which candidates the cheap field filter lets pass, in order.
  m.def(
      "filter",
      [](const Graph& spec, const std::vector<Graph>& candidates, uint64_t seed, int threads) {
        nb::gil_scoped_release release;
        Filter filter(spec, seed, threads);
        std::vector<char> passed(candidates.size());
        ThreadPool pool(threads);
        pool.parallel_for(
            int64_t(candidates.size()), 1,
            [&](int64_t begin, int64_t end) {
              for (int64_t i = begin; i < end; ++i)
                passed[size_t(i)] = filter.may_equal(candidates[size_t(i)]);
            });
        return std::vector<bool>(passed.begin(), passed.end());
      },
      nb::arg("spec"), nb::arg("candidates"), nb::arg("seed") = 1, nb::arg("threads") = 0);
  m.def(
      "recheck",
      [](const Certificate& certificate, const Graph& spec, const Graph& candidate, int threads) {
        VerifyOptions options = options_from(certificate.level, std::nullopt, threads, 0);
        options.accept_tested = !certificate.proved();
        LongCall call;
        options.cancel = &call.cancel;
        bool interrupted = false;
        Recheck result = call.run([&] { return recheck(certificate, spec, candidate, options); },
                                  nb::none(), interrupted);
        return nb::make_tuple(result.ok, result.what);
      },
      nb::arg("certificate"), nb::arg("spec"), nb::arg("candidate"), nb::arg("threads") = 0);
}

}  // namespace tessera::python
