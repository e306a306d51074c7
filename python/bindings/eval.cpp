// eval/: the reference interpreter. Arrays cross as f64 and int64, which hold every dtype exactly.
#include "eval/eval.h"

#include <nanobind/ndarray.h>

#include "base/error.h"
#include "bindings.h"

namespace tessera::python {
namespace {

using Reals = nb::ndarray<const double, nb::c_contig, nb::device::cpu>;
using Ints = nb::ndarray<const int64_t, nb::c_contig, nb::device::cpu>;

NDArray array_from(nb::handle object, const Type& type, size_t index) {
  NDArray array;
  array.dtype = type.dtype;
  auto fill = [&](const auto& view, auto& values) {
    for (size_t d = 0; d < view.ndim(); ++d) array.shape.push_back(int64_t(view.shape(d)));
    values.assign(view.data(), view.data() + view.size());
  };
  Reals reals;
  Ints ints;
  if (is_float(type.dtype) && nb::try_cast(object, reals)) {
    fill(reals, array.reals);
  } else if (!is_float(type.dtype) && nb::try_cast(object, ints)) {
    fill(ints, array.ints);
  } else {
    throw Error(ErrorKind::BadInput,
                "input " + std::to_string(index) + " is not a contiguous f64 or int64 array");
  }
  return array;
}

template <class T> nb::object to_numpy(std::vector<T> values, const std::vector<int64_t>& shape) {
  auto* owned = new std::vector<T>(std::move(values));
  nb::capsule owner(owned, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  std::vector<size_t> extents(shape.begin(), shape.end());
  return nb::cast(nb::ndarray<nb::numpy, T>(owned->data(), extents.size(), extents.data(), owner));
}

nb::object to_numpy(NDArray array) {
  return is_float(array.dtype) ? to_numpy(std::move(array.reals), array.shape)
                               : to_numpy(std::move(array.ints), array.shape);
}

// Gives opaque operators the meaning of a Python function of (function, payload, arrays).
OpaqueFunction calling(const nb::object& function) {
  return [&function](const Op& op, const std::vector<NDArray>& in) {
    const auto& a = std::get<OpaqueAttrs>(op.attrs);
    nb::gil_scoped_acquire hold;
    const nb::list arrays = list_of(
        in, [](const NDArray& x) { return to_numpy(x); });
    const nb::list given = nb::cast<nb::list>(function(a.function, a.payload, arrays));
    if (given.size() != a.results.size())
      throw Error(ErrorKind::BadInput, a.function + " gave " + std::to_string(given.size()) +
                                           " results, not " + std::to_string(a.results.size()));
    std::vector<NDArray> results;
    for (size_t i = 0; i < a.results.size(); ++i)
      results.push_back(array_from(given[i], a.results[i], i));
    return results;
  };
}

}  // namespace

void bind_eval(nb::module_& m) {
  m.def(
      "evaluate",
      [](const Graph& graph, const nb::list& inputs, bool exact, const nb::object& opaque) {
        if (inputs.size() != graph.inputs().size())
          throw Error(ErrorKind::BadInput, "expected " + std::to_string(graph.inputs().size()) +
                                               " inputs, got " + std::to_string(inputs.size()));
        std::vector<NDArray> arrays;
        for (size_t i = 0; i < inputs.size(); ++i)
          arrays.push_back(array_from(inputs[i], graph.type(graph.inputs()[i]), i));
        std::vector<NDArray> outputs;
        {
          Released release;
          EvalOptions options;
          options.precision = exact ? Precision::Exact : Precision::Native;
          ThreadPool pool;
          options.pool = &pool;
          if (!opaque.is_none()) options.opaque = calling(opaque);
          outputs = eval(graph, arrays, options);
        }
        nb::list results;
        for (NDArray& array : outputs) results.append(to_numpy(std::move(array)));
        return results;
      },
      nb::arg("graph"), nb::arg("inputs"), nb::arg("exact") = false,
      nb::arg("opaque") = nb::none());
}

}  // namespace tessera::python
