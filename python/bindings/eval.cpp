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

}  // namespace

void bind_eval(nb::module_& m) {
  m.def(
      "evaluate",
      [](const Graph& graph, const nb::list& inputs, bool exact) {
        if (inputs.size() != graph.inputs().size()) {
          throw Error(ErrorKind::BadInput, "expected " + std::to_string(graph.inputs().size()) +
                                               " inputs, got " + std::to_string(inputs.size()));
        }
        std::vector<NDArray> arrays;
        for (size_t i = 0; i < inputs.size(); ++i) {
          arrays.push_back(array_from(inputs[i], graph.type(graph.inputs()[i]), i));
        }
        std::vector<NDArray> outputs;
        {
          nb::gil_scoped_release release;
          EvalOptions options;
          options.precision = exact ? Precision::Exact : Precision::Native;
          ThreadPool pool;
          options.pool = &pool;
          outputs = eval(graph, arrays, options);
        }
        nb::list results;
        for (NDArray& array : outputs) {
          results.append(is_float(array.dtype) ? to_numpy(std::move(array.reals), array.shape)
                                               : to_numpy(std::move(array.ints), array.shape));
        }
        return results;
      },
      nb::arg("graph"), nb::arg("inputs"), nb::arg("exact") = false);
}

}  // namespace tessera::python
