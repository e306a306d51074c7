// Operator attributes to and from Python dicts, driven by the field lists of ir/op.h, so that a
// new attribute needs nothing here.
#include "base/error.h"
#include "bindings.h"

namespace tessera::python {
namespace {

[[noreturn]] void fail(const std::string& message) { throw Error(ErrorKind::BadInput, message); }

template <class T> T integer_from(nb::handle object, const char* what) {
  int64_t value = 0;
  if (nb::isinstance<nb::bool_>(object) || !nb::try_cast<int64_t>(object, value) ||
      value != int64_t(T(value)))
    fail(std::string(what) + " must be an integer, not " + nb::repr(object).c_str());
  return T(value);
}

// --- one overload per field type
nb::object field_to(const Rational& v) { return nb::str(v.str().c_str()); }
nb::object field_to(int v) { return nb::int_(v); }
nb::object field_to(int64_t v) { return nb::int_(v); }
nb::object field_to(bool v) { return nb::bool_(v); }
nb::object field_to(DType v) { return nb::str(name(v)); }
nb::object field_to(AccumKind v) { return nb::str(name(v)); }
nb::object field_to(const std::string& v) { return nb::str(v.c_str()); }
nb::object field_to(const Shape& v) { return to_python(v); }
template <class T> nb::object field_to(const std::vector<T>& v) {
  return list_of(
      v, [](T x) { return nb::int_(int64_t(x)); });
}
template <size_t N> nb::object field_to(const std::array<int8_t, N>& v) {
  return list_of(
      v, [](int8_t x) { return nb::int_(int(x)); });
}

void field_from(nb::handle o, const char* what, Rational& v) {
  if (nb::isinstance<nb::str>(o)) {
    auto parsed = Rational::parse(nb::cast<std::string>(o));
    if (!parsed) fail(std::string(what) + ": " + nb::repr(o).c_str() + " is not a number");
    v = *parsed;
  } else if (nb::isinstance<nb::bool_>(o)) {
    v = Rational(nb::cast<bool>(o) ? 1 : 0);
  } else if (int64_t integer; nb::isinstance<nb::int_>(o) && nb::try_cast(o, integer)) {
    v = Rational(integer);
  } else if (double real; nb::try_cast(o, real)) {
    v = Rational::from_double(real);
  } else {
    fail(std::string(what) + " must be a number, not " + nb::repr(o).c_str());
  }
}
void field_from(nb::handle o, const char* what, int& v) { v = integer_from<int>(o, what); }
void field_from(nb::handle o, const char* what, int64_t& v) { v = integer_from<int64_t>(o, what); }
void field_from(nb::handle o, const char* what, bool& v) {
  if (!nb::try_cast(o, v)) fail(std::string(what) + " must be True or False");
}
void field_from(nb::handle o, const char* what, std::string& v) {
  if (!nb::try_cast(o, v)) fail(std::string(what) + " must be a string");
}
void field_from(nb::handle o, const char* what, DType& v) {
  std::string text;
  field_from(o, what, text);
  v = dtype_from(text);
}
void field_from(nb::handle o, const char* what, AccumKind& v) {
  std::string text;
  field_from(o, what, text);
  for (AccumKind kind : {AccumKind::Sum, AccumKind::Max, AccumKind::Min, AccumKind::Concat}) {
    if (text == name(kind)) {
      v = kind;
      return;
    }
  }
  fail(std::string(what) + " must be sum, max, min or concat, not " + text);
}
void field_from(nb::handle o, const char*, Shape& v) { v = shape_from(o); }
template <class T> void field_from(nb::handle o, const char* what, std::vector<T>& v) {
  v.clear();
  if (!nb::isinstance<nb::sequence>(o)) fail(std::string(what) + " must be a list of integers");
  for (nb::handle item : o) v.push_back(integer_from<T>(item, what));
}
template <size_t N> void field_from(nb::handle o, const char* what, std::array<int8_t, N>& v) {
  std::vector<int8_t> list;
  field_from(o, what, list);
  if (list.size() > N) fail(std::string(what) + " has more than " + std::to_string(N) + " entries");
  v.fill(-1);
  std::ranges::copy(list, v.begin());
}

Type type_from(nb::handle object) {
  nb::tuple pair;
  if (!nb::try_cast(object, pair) || pair.size() != 2) fail("a type is a pair (dtype, shape)");
  return python::type_from(nb::cast<std::string>(pair[0]), pair[1]);
}

// Fields that the text format prints as the result's type, and which `fields` therefore skips.
template <class A> nb::object extra_to(const A& attrs) {
  if constexpr (requires { attrs.results; })
    return to_python(attrs.results);
  else if constexpr (requires { attrs.type; })
    return to_python(attrs.type);
  else
    return nb::none();
}
template <class A> constexpr const char* extra_name() {
  if constexpr (requires(A a) { a.results; }) return "results";
  if constexpr (requires(A a) { a.type; }) return "type";
  return nullptr;
}
template <class A> void extra_from(nb::handle object, A& attrs) {
  if constexpr (requires { attrs.results; })
    for (nb::handle item : object) attrs.results.push_back(type_from(item));
  else if constexpr (requires { attrs.type; })
    attrs.type = type_from(object);
}

}  // namespace

nb::list to_python(const Shape& shape) {
  nb::list list;
  for (const Dim& dim : shape)
    if (dim.symbolic())
      list.append(nb::str(dim.symbol.c_str()));
    else
      list.append(nb::int_(dim.extent));
  return list;
}

nb::list to_python(const std::vector<Type>& types) {
  return list_of(
      types, [](const Type& type) { return to_python(type); });
}

nb::tuple to_python(const Type& type) {
  return nb::make_tuple(nb::str(name(type.dtype)), to_python(type.shape));
}

Shape shape_from(nb::handle object) {
  Shape shape;
  if (!nb::isinstance<nb::sequence>(object)) fail("a shape must be a list of extents");
  for (nb::handle item : object)
    if (std::string symbol; nb::try_cast(item, symbol))
      shape.emplace_back(std::move(symbol));
    else
      shape.emplace_back(integer_from<int64_t>(item, "an extent"));
  return shape;
}

DType dtype_from(const std::string& text) {
  auto dtype = dtype_from_name(text);
  if (!dtype) fail("unknown dtype '" + text + "'; Tessera has f64 f32 f16 bf16 i64 i32 i8 u8 bool");
  return *dtype;
}

Type type_from(const std::string& dtype, nb::handle shape) {
  return Type{dtype_from(dtype), shape_from(shape)};
}

nb::dict to_python(const Attrs& attrs) {
  nb::dict dict;
  std::visit(
      [&](const auto& a) {
        using A = std::decay_t<decltype(a)>;
        A::fields(a, [&](const char* field, const auto& value) { dict[field] = field_to(value); });
        if (extra_name<A>()) dict[extra_name<A>()] = extra_to(a);
      },
      attrs);
  return dict;
}

Attrs attrs_from(OpKind kind, const nb::dict& fields) {
  Attrs attrs = info(kind).default_attrs;
  size_t used = 0;
  std::visit(
      [&](auto& a) {
        using A = std::decay_t<decltype(a)>;
        A::fields(a, [&](const char* field, auto& value) {
          if (!fields.contains(field)) return;
          ++used;
          field_from(fields[field], field, value);
        });
        const char* extra = extra_name<A>();
        if (extra && fields.contains(extra)) {
          ++used;
          extra_from(fields[extra], a);
        }
        if (used == fields.size()) return;
        std::string known;
        A::fields(a, [&](const char* field, auto&) { known += std::string(" ") + field; });
        if (extra) known += std::string(" ") + extra;
        fail(std::string(name(kind)) + ": unknown attribute among " +
             nb::repr(fields.keys()).c_str() + "; it takes" + (known.empty() ? " none" : known));
      },
      attrs);
  return attrs;
}

}  // namespace tessera::python
