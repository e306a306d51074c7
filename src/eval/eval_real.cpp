// Evaluation over floats, and with magnitudes.
#include "eval/eval.h"
#include "eval/interpreter.h"

namespace tessera {
namespace {

void check_inputs(const Graph& g, const std::vector<NDArray>& inputs) {
  auto bad = [](const std::string& what) { bad_input("eval: " + what); };
  if (g.level() != Level::Kernel) bad("only kernel graphs can be evaluated");
  if (inputs.size() != g.inputs().size()) {
    bad(std::to_string(inputs.size()) + " inputs for a graph that takes " +
        std::to_string(g.inputs().size()));
  }
  for (const Tensor& t : g.tensors())
    if (!is_static(t.type.shape)) bad("the graph has symbolic shapes; bind them first");
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Type& type = g.type(g.inputs()[i]);
    if (inputs[i].dtype != type.dtype || inputs[i].shape != extents(type.shape))
      bad("input " + std::to_string(i) + " must be " + type.str());
    const size_t n = is_float(type.dtype) ? inputs[i].reals.size() : inputs[i].ints.size();
    if (int64_t(n) != inputs[i].size()) bad("input " + std::to_string(i) + " lacks elements");
  }
}

bool has_f64(const Graph& g) {
  for (const Tensor& t : g.tensors())
    if (t.type.dtype == DType::F64) return true;
  for (const Graph& body : g.bodies())
    if (has_f64(body)) return true;
  return false;
}

template <class T> void from_array(const NDArray& a, const View& v, int plane, bool magnitude) {
  if (!is_float(a.dtype)) {
    if (plane == 0) std::ranges::copy(a.ints, v.as<int64_t>(0));
    return;
  }
  T* to = v.as<T>(plane);
  for (size_t i = 0; i < a.reals.size(); ++i)
    to[i] = T(magnitude ? std::abs(a.reals[i]) : a.reals[i]);
}

template <class T> NDArray to_array_of(const View& v, int plane) {
  NDArray a;
  a.dtype = v.dtype;
  a.shape.assign(v.shape.begin(), v.shape.begin() + v.rank);
  const bool real = is_float(v.dtype);
  const size_t n = size_t(v.size());
  if (real)
    a.reals.resize(n);
  else
    a.ints.resize(n);
  Walker<1> walk(v, {&v});
  for (size_t i = 0; i < n;) {
    const size_t run = size_t(walk.run(int64_t(n - i)));
    for (size_t j = 0; j < run; ++j) {
      const int64_t at = walk.offset(0) + int64_t(j) * walk.step(0);
      if (real)
        a.reals[i + j] = double(v.as<const T>(plane)[at]);
      else
        a.ints[i + j] = v.as<const int64_t>(0)[at];
    }
    i += run;
    if (i < n) walk.advance(int64_t(run));
  }
  return a;
}

// Evaluates over domain D, whose planes hold T; calls take(output view) for each output.
template <class D, class T, class Take>
void evaluate(const Graph& g, const std::vector<NDArray>& inputs, const D& domain,
              const EvalOptions& options, Take take) {
  check_inputs(g, inputs);
  typename Interpreter<D>::Opaque opaque;
  if (options.opaque) {
    opaque = [&](const Op& op, const std::vector<View>& in, std::vector<View>& out) {
      auto arguments = mapped(
          in, [&](const View& v) { return to_array_of<T>(v, 0); });
      const std::vector<NDArray> results = options.opaque(op, arguments);
      CHECK(results.size() == out.size()) << "results of an opaque function";
      for (size_t i = 0; i < out.size(); ++i) {
        if (results[i].shape !=
            std::vector<int64_t>(out[i].shape.begin(), out[i].shape.begin() + out[i].rank))
          bad_input("opaque: a result has another shape than its type");
        for (int p = 0; p < 2; ++p)
          if (out[i].plane[size_t(p)] != nullptr) from_array<T>(results[i], out[i], p, p == 1);
      }
    };
  }
  Interpreter<D> interpreter(domain, options.pool, opaque);
  const Demand demand = find_demand(g, Components(1));
  std::vector<View> values(g.tensors().size());
  std::vector<Arena> arenas;
  std::vector<Arena> input_arenas(inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    const TensorId t = g.inputs()[i];
    const Type& type = g.type(t);
    View v = interpreter.allocate(input_arenas[i], type.dtype, type.rank(),
                                  to_array(extents(type.shape)), 1, false, false);
    for (int p = 0; p < 2; ++p)
      if (v.plane[size_t(p)] != nullptr) from_array<T>(inputs[i], v, p, p == 1);
    domain.round(v, Level::Kernel);
    values[t.index] = v;
  }
  interpreter.run(g, demand, values, arenas);
  for (TensorId t : g.outputs()) take(values[t.index]);
}

}  // namespace

std::vector<NDArray> eval(const Graph& graph, const std::vector<NDArray>& inputs,
                          const EvalOptions& options) {
  CHECK(options.precision != Precision::Wide) << "only with magnitudes";
  std::vector<NDArray> outputs;
  if (options.precision != Precision::Native || has_f64(graph)) {
    // Programs that mix f64 with less compute everything in f64 and round each result.
    RealDomain<double> domain;
    domain.precision = options.precision;
    domain.supposed = Supposed(options.supposed);
    evaluate<RealDomain<double>, double>(graph, inputs, domain, options, [&](const View& v) {
      outputs.push_back(to_array_of<double>(v, 0));
    });
  } else {
    RealDomain<float> domain;
    domain.precision = options.precision;
    domain.supposed = Supposed(options.supposed);
    evaluate<RealDomain<float>, float>(graph, inputs, domain, options, [&](const View& v) {
      outputs.push_back(to_array_of<float>(v, 0));
    });
  }
  return outputs;
}

namespace {

template <class T> std::vector<double> rest_of(const View& v, const NDArray& value) {
  std::vector<double> rest(value.reals.size());
  Walker<1> walk(v, {&v});
  for (double& r : rest) {
    const size_t i = size_t(&r - rest.data());
    r = double(v.as<const T>(0)[walk.offset(0)] - T(value.reals[i]));
    if (i + 1 < rest.size()) walk.advance(1);
  }
  return rest;
}

template <class T>
std::vector<WithMagnitude> with_magnitude(const Graph& graph, const std::vector<NDArray>& inputs,
                                          const EvalOptions& options) {
  static_assert(std::is_same_v<T, double> || (std::numeric_limits<T>::digits >= 64 &&
                                              std::numeric_limits<T>::max_exponent >= 16384),
                "f64 programs need a wider long double as their reference");
  std::vector<WithMagnitude> outputs;
  evaluate<MagnitudeDomain<T>, T>(graph, inputs, MagnitudeDomain<T>{}, options, [&](const View& v) {
    WithMagnitude r{to_array_of<T>(v, 0), {}, {}};
    if (is_float(v.dtype)) {
      r.magnitude = to_array_of<T>(v, 1);
      if (sizeof(T) > sizeof(double)) r.rest = rest_of<T>(v, r.value);
    }
    outputs.push_back(std::move(r));
  });
  return outputs;
}

}  // namespace

std::vector<WithMagnitude> eval_with_magnitude(const Graph& graph,
                                               const std::vector<NDArray>& inputs,
                                               const EvalOptions& options) {
  return options.precision == Precision::Wide && has_f64(graph)
             ? with_magnitude<long double>(graph, inputs, options)
             : with_magnitude<double>(graph, inputs, options);
}

}  // namespace tessera
