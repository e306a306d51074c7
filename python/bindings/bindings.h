// What the files of this folder share: one function per folder of src/ that binds it, and the
// conversions between C++ values and the plain Python objects that the package's Python side uses.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "ir/graph.h"

namespace tessera::python {

namespace nb = nanobind;

void bind_errors(nb::module_& m);
void bind_backend(nb::module_& m);
void bind_call(nb::module_& m);
void bind_cuda(nb::module_& m);
void bind_driver(nb::module_& m);
void bind_eval(nb::module_& m);
void bind_hosts(nb::module_& m);
void bind_ir(nb::module_& m);
void bind_patterns(nb::module_& m);
void bind_rules(nb::module_& m);
void bind_verify(nb::module_& m);

// A shape is a list of int and str (a symbol), a type the pair (dtype name, shape).
nb::list to_python(const Shape& shape);
nb::tuple to_python(const Type& type);
Shape shape_from(nb::handle object);
DType dtype_from(const std::string& name);
Type type_from(const std::string& dtype, nb::handle shape);

// Of text for people that may name a path, which is bytes.
inline nb::object readable(const std::string& s) {
  return nb::steal(PyUnicode_DecodeUTF8(s.data(), Py_ssize_t(s.size()), "replace"));
}

// Of names and values in turn.
inline void fill(nb::dict&) {}
template <class T, class... Rest>
void fill(nb::dict& d, const char* name, const T& value, const Rest&... rest) {
  d[name] = value;
  fill(d, rest...);
}
template <class... Fields> nb::dict dict_of(const Fields&... fields) {
  nb::dict d;
  fill(d, fields...);
  return d;
}

// What `convert` makes of each element.
template <class Range, class F> nb::list list_of(const Range& range, F convert) {
  nb::list list;
  for (const auto& x : range) list.append(convert(x));
  return list;
}
nb::list to_python(const std::vector<Type>& types);

// Attributes as a dict by field name; tensors of axes as lists, constants as their exact text.
nb::dict to_python(const Attrs& attrs);
Attrs attrs_from(OpKind kind, const nb::dict& fields);

}  // namespace tessera::python
