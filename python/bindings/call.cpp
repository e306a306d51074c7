// The way of a call from Python to what runs it, without the interpreter in between: `Call` is one
// way, for arguments of one form, and `Dispatch` a callable that tries several.
#include <nanobind/stl/shared_ptr.h>

#include <cstring>
#include <optional>

#include "arrays.h"
#include "backend/cpu/module.h"
#include "bindings.h"

namespace tessera::python {
namespace {

// 0: row-major, 1: column-major, 2: neither.
int layout_of(const ArrayHead& array) {
  if ((array.flags & kAligned) == 0) return 2;
  return (array.flags & kRowMajor) != 0 ? 0 : (array.flags & kColumnMajor) != 0 ? 1 : 2;
}

// The value of a scalar of NumPy's plain numbers, which lies behind the head of every object.
const void* scalar_data(PyObject* v) { return reinterpret_cast<const char*>(v) + sizeof(PyObject); }

// Plain constants of the same type and value; −0.0 is not 0.0. `bytes`: of a scalar of NumPy.
bool is_same(PyObject* v, PyObject* value, size_t bytes = 0) {
  if (v == value) return true;
  if (Py_TYPE(v) != Py_TYPE(value)) return false;
  if (bytes != 0) return std::memcmp(scalar_data(v), scalar_data(value), bytes) == 0;
  if (PyFloat_CheckExact(v)) {
    const double a = PyFloat_AsDouble(v), b = PyFloat_AsDouble(value);
    return std::memcmp(&a, &b, sizeof a) == 0;
  }
  if (!PyLong_CheckExact(v) && !PyUnicode_CheckExact(v)) return false;
  const int same = PyObject_RichCompareBool(v, value, Py_EQ);
  if (same < 0) PyErr_Clear();
  return same == 1;
}

// A list, tuple or dict of a call, and how far it was read.
struct Open {
  PyObject* object;
  Py_ssize_t cursor;
};

// What an argument must be, or an entry of one.
struct Slot {
  enum class Kind { Array, Float, Scalar, Constant, Container } kind = Kind::Constant;
  Py_ssize_t container = -1;  // that holds it, by its number; −1: the call's arguments do
  Py_ssize_t position = -1;   // among the positional ones; −1: by name, or `value` itself
  PyObject* name = nullptr;
  // Constant: this; Container: its type; Array without position and name: always this one.
  PyObject* value = nullptr;
  PyObject* dtype = nullptr;      // of an array, or of a scalar of NumPy
  size_t bytes = 0;               // of such a scalar
  std::vector<Py_ssize_t> shape;  // of a container its length
  int layout = 0;
  std::vector<Py_ssize_t> strides;  // of layout 2

  bool is_input() const { return kind != Kind::Constant && kind != Kind::Container; }
  // The value of a call, borrowed; null where there is none.
  PyObject* find(PyObject* args, PyObject* kwargs, Open* open) const {
    if (container >= 0) {
      PyObject* in = open[container].object;
      if (PyTuple_Check(in)) return NB_TUPLE_GET_ITEM(in, position);
      if (PyList_Check(in)) return NB_LIST_GET_ITEM(in, position);
      PyObject *key, *v;  // in order, which the function may ask for
      if (!PyDict_Next(in, &open[container].cursor, &key, &v)) return nullptr;
      return is_same(key, name) ? v : nullptr;
    }
    if (position >= 0) return NB_TUPLE_GET_ITEM(args, position);
    if (name == nullptr) return value;
    PyObject* v = PyDict_GetItemWithError(kwargs, name);
    if (v == nullptr) PyErr_Clear();
    return v;
  }
  bool takes_container(PyObject* v) const {
    return reinterpret_cast<PyObject*>(Py_TYPE(v)) == value &&
           (PyDict_Check(v) ? NB_DICT_GET_SIZE(v) : Py_SIZE(v)) == shape[0];
  }

  bool takes_array(PyObject* v) const {
    if (!is_plain_array(v)) return false;
    const ArrayHead& a = head_of(v);
    if (a.dtype != dtype || a.ndim != int(shape.size())) return false;
    for (size_t d = 0; d < shape.size(); ++d)
      if (a.shape[d] != shape[d]) return false;
    for (size_t d = 0; d < strides.size(); ++d)
      if (a.strides[d] != strides[d]) return false;
    return layout_of(a) == layout;
  }
};

// Something outside that must still be the same object, or a plain constant of the same value: an
// entry of a dict, or an attribute (of a closure's cell its contents); or a dict that stays empty.
struct Guard {
  PyObject* scope;
  PyObject* name;   // null: there are no entries
  PyObject* value;  // null: there is none
  bool holds() const {
    if (name == nullptr) return NB_DICT_GET_SIZE(scope) == 0;
    const bool entry = PyDict_CheckExact(scope);
    PyObject* now = entry ? PyDict_GetItemWithError(scope, name) : PyObject_GetAttr(scope, name);
    if (now == nullptr) PyErr_Clear();
    const bool same = fits(now);
    if (!entry) Py_XDECREF(now);
    return same;
  }
  bool fits(PyObject* now) const {
    return now == value || (now != nullptr && value != nullptr && is_same(now, value));
  }
};

// Under which conditions NumPy reports floating-point errors in no way that programs do not: those
// that Python found harmless last, of the state of `np.errstate` and of the filters of warnings.
struct Quiet {
  PyObject *state = nullptr, *filters = nullptr, *first = nullptr;
  Py_ssize_t count = -1;
  static Quiet now() {
    static PyObject* variable = [] {
      PyObject* umath = PyImport_ImportModule("numpy._core.umath");
      PyObject* v = umath ? PyObject_GetAttrString(umath, "_extobj_contextvar") : nullptr;
      PyErr_Clear();
      return v;
    }();
    static PyObject* const warnings = PyModule_GetDict(PyImport_ImportModule("warnings"));
    Quiet q;
    static PyObject* const get = PyUnicode_InternFromString("get");
    if (variable != nullptr) q.state = PyObject_VectorcallMethod(get, &variable, 1, nullptr);
    if (q.state == nullptr) PyErr_Clear();
    Py_XDECREF(q.state);  // the context keeps it
    q.filters = PyDict_GetItemString(warnings, "filters");
    if (q.filters != nullptr && PyList_CheckExact(q.filters)) {
      q.count = NB_LIST_GET_SIZE(q.filters);
      q.first = q.count > 0 ? NB_LIST_GET_ITEM(q.filters, 0) : nullptr;
    }
    return q;
  }
  bool operator==(const Quiet&) const = default;
};
Quiet quiet;  // guarded by the interpreter's lock; the objects are kept

void quiet_now() {
  const Quiet old = quiet;
  quiet = Quiet::now();
  for (PyObject* o : {quiet.state, quiet.filters, quiet.first}) Py_XINCREF(o);
  for (PyObject* o : {old.state, old.filters, old.first}) Py_XDECREF(o);
}

class Call {
 public:
  static constexpr size_t kMost = 256;  // arrays of a call, and containers

  // `slots`: (kind, where, value, dtype, shape, layout) per argument, in the order of the program's
  // inputs, constants anywhere; a dtype of constants where they are scalars of NumPy. Containers
  // come before what they hold, whose `where` is (number of the container, index or key).
  // `guards`: (scope, name, value), the value missing where there must be none, the name None where
  // a dict must stay empty. `unchanged`: asked
  // as well unless None.
  Call(nb::list slots, nb::list guards, nb::object unchanged) : unchanged_(own(unchanged)) {
    for (nb::handle s : slots) {
      const nb::tuple t = nb::cast<nb::tuple>(s);
      const std::string kind = nb::cast<std::string>(t[0]);
      Slot slot;
      slot.kind = kind == "array"       ? Slot::Kind::Array
                  : kind == "float"     ? Slot::Kind::Float
                  : kind == "scalar"    ? Slot::Kind::Scalar
                  : kind == "container" ? Slot::Kind::Container
                                        : Slot::Kind::Constant;
      if (nb::isinstance<nb::tuple>(t[1])) {
        slot.container = nb::cast<Py_ssize_t>(t[1][0]);
        if (nb::cast<bool>(t[1][2]))
          slot.name = own(t[1][1], true);
        else
          slot.position = nb::cast<Py_ssize_t>(t[1][1]);
      } else if (nb::isinstance<nb::str>(t[1])) {
        slot.name = own(t[1]);
        ++keywords_;
      } else if (!t[1].is_none()) {
        slot.position = nb::cast<Py_ssize_t>(t[1]);
        ++positional_;
      }
      slot.value = own(t[2], true);
      slot.dtype = own(t[3]);
      if (slot.kind != Slot::Kind::Array && slot.dtype != nullptr)
        slot.bytes = nb::cast<size_t>(nb::getattr(t[3], "itemsize"));
      slot.shape = nb::cast<std::vector<Py_ssize_t>>(t[4]);
      slot.layout = nb::cast<int>(t[5]);
      if (t.size() > 6) slot.strides = nb::cast<std::vector<Py_ssize_t>>(t[6]);
      containers_ += slot.kind == Slot::Kind::Container;
      arrays_ += slot.is_input();
      slots_.push_back(std::move(slot));
    }
    for (nb::handle g : guards) {
      const nb::tuple t = nb::cast<nb::tuple>(g);
      guards_.push_back({own(t[0]), own(t[1]), t.size() > 2 ? own(t[2], true) : nullptr});
    }
    if (std::max(arrays_, containers_) > kMost)
      throw nb::value_error("too many arrays for a direct call");
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  ~Call() { clear(); }

  // Runs a module and returns its first result, as a scalar if it has no axes, or what `finish`
  // makes of the list of all. `release`: other Python threads may run meanwhile.
  void run_module(std::shared_ptr<Module> module, nb::list outputs, nb::object finish,
                  bool release) {
    module_ = std::move(module);
    for (nb::handle o : outputs) {
      const nb::tuple t = nb::cast<nb::tuple>(o);
      outputs_.push_back({own(t[0]), own(t[1])});
    }
    for (const Type& type : module_->output_types()) output_bytes_.push_back(size_t(type.bytes()));
    if (outputs_.size() > kMost) throw nb::value_error("too many results for a direct call");
    finish_ = own(finish);
    release_ = release;
  }
  // Calls a function with the arrays, in order, or with the call's own arguments (`as_given`).
  void run_function(nb::object function, nb::object finish, bool as_given) {
    function_ = own(function);
    finish_ = own(finish);
    as_given_ = as_given;
  }

  // A new reference: the result, NotImplemented (nothing was done) where the call is of another
  // form, or null with an exception.
  PyObject* operator()(PyObject* args, PyObject* kwargs) const {
    Inputs inputs;
    PyObject** arrays = inputs.arrays;
    if (!fits(args, kwargs, inputs)) Py_RETURN_NOTIMPLEMENTED;
    if (module_) return run(inputs);
    if (function_ == nullptr) Py_RETURN_NOTIMPLEMENTED;
    PyObject* result = staying([&] {
      return as_given_ ? PyObject_Call(function_, args, kwargs)
                       : PyObject_Vectorcall(function_, arrays, arrays_, nullptr);
    });
    return result != nullptr && finish_ != nullptr ? finished(result) : result;
  }

  int visit(visitproc visit, void* arg) const {
    for (PyObject* o : owned_) Py_VISIT(o);
    return 0;
  }
  void clear() {
    module_.reset();
    slots_.clear();
    guards_.clear();
    outputs_.clear();
    positional_ = -1;  // fits nothing
    unchanged_ = finish_ = function_ = nullptr;
    std::vector<PyObject*> owned = std::move(owned_);
    owned_.clear();
    for (PyObject* o : owned) Py_DECREF(o);
  }

 private:
  // A reference that this keeps; null for None unless `none` is a value.
  PyObject* own(nb::handle object, bool none = false) {
    if (object.is_none() && !none) return nullptr;
    owned_.push_back(object.inc_ref().ptr());
    return object.ptr();
  }

  // The inputs of a call. Arrays of containers are kept: others may take them out meanwhile.
  struct Inputs {
    PyObject* arrays[kMost];
    double floats[kMost];
    size_t kept = 0;
    ~Inputs() {
      for (size_t i = 0; i < kept; ++i) Py_DECREF(arrays[i]);
    }
  };

  bool fits(PyObject* args, PyObject* kwargs, Inputs& inputs) const {
    if (NB_TUPLE_GET_SIZE(args) != positional_ ||
        (kwargs != nullptr ? NB_DICT_GET_SIZE(kwargs) : 0) != keywords_)
      return false;
    Open open[kMost];
    size_t n = 0, opened = 0;
    for (const Slot& slot : slots_) {
      PyObject* v = slot.find(args, kwargs, open);
      if (v == nullptr) return false;
      switch (slot.kind) {
      case Slot::Kind::Array:
        if (!slot.takes_array(v)) return false;
        break;
      case Slot::Kind::Float:
        if (!PyFloat_CheckExact(v)) return false;
        // Python's own arithmetic may raise for these, and NumPy's does not.
        inputs.floats[n] = PyFloat_AsDouble(v);
        if (inputs.floats[n] == 0 || inputs.floats[n] - inputs.floats[n] != 0) return false;
        break;
      case Slot::Kind::Scalar:
        if (Py_TYPE(v) != Py_TYPE(slot.value)) return false;
        break;
      case Slot::Kind::Constant:
        if (!is_same(v, slot.value, slot.bytes)) return false;
        break;
      case Slot::Kind::Container:
        if (!slot.takes_container(v)) return false;
        open[opened++] = {v, 0};
        break;
      }
      if (slot.is_input()) inputs.arrays[n++] = v;
    }
    if (containers_ > 0)
      for (; inputs.kept < n; ++inputs.kept) Py_INCREF(inputs.arrays[inputs.kept]);
    for (const Guard& guard : guards_)
      if (!guard.holds()) return false;
    if (unchanged_ == nullptr) return true;
    PyObject* same = staying([&] { return PyObject_CallNoArgs(unchanged_); });
    if (same == nullptr) PyErr_Clear();
    Py_XDECREF(same);
    return same == Py_True;
  }

  PyObject* run(const Inputs& given) const {
    const void* inputs[kMost];
    size_t n = 0;
    for (const Slot& slot : slots_) {
      if (!slot.is_input()) continue;
      inputs[n] = slot.kind == Slot::Kind::Float    ? static_cast<const void*>(given.floats + n)
                  : slot.kind == Slot::Kind::Scalar ? scalar_data(given.arrays[n])
                                                    : head_of(given.arrays[n]).data;
      ++n;
    }
    // One result, or a list of all.
    nb::object results =
        finish_ != nullptr ? nb::object(nb::steal(PyList_New(outputs_.size()))) : nb::object();
    void* outputs[kMost];
    for (size_t i = 0; i < outputs_.size(); ++i) {
      PyObject* array = new_array(outputs_[i].first, outputs_[i].second, output_bytes_[i]);
      if (array == nullptr) return nullptr;
      outputs[i] = head_of(array).data;
      if (finish_ != nullptr)
        NB_LIST_SET_ITEM(results.ptr(), i, array);
      else
        results = nb::steal(array);
    }
    try {
      const std::shared_ptr<Module> module = module_;  // `clear` may come meanwhile
      std::optional<Released> released;
      if (release_) released.emplace();
      module->run({inputs, n}, {outputs, outputs_.size()});
    } catch (nb::python_error& error) {  // Ctrl-C in an operator of the host
      error.restore();
      return nullptr;
    } catch (const std::exception&) {  // the way of all other calls tells what it was
      Py_RETURN_NOTIMPLEMENTED;
    }
    if (finish_ != nullptr) return finished(results.release().ptr());
    if (head_of(results.ptr()).ndim > 0) return results.release().ptr();
    static PyObject* const nothing = PyTuple_New(0);
    return PyObject_GetItem(results.ptr(), nothing);
  }

  // Of a reference that this takes over.
  PyObject* finished(PyObject* outputs) const {
    PyObject* result =
        staying([&] { return PyObject_CallFunctionObjArgs(finish_, outputs, nullptr); });
    Py_DECREF(outputs);
    return result;
  }

  std::vector<PyObject*> owned_;
  std::vector<Slot> slots_;
  std::vector<Guard> guards_;
  Py_ssize_t positional_ = 0, keywords_ = 0;
  size_t arrays_ = 0, containers_ = 0;
  PyObject* unchanged_ = nullptr;
  std::shared_ptr<Module> module_;
  std::vector<std::pair<PyObject*, PyObject*>> outputs_;  // shape and dtype
  std::vector<size_t> output_bytes_;
  PyObject* function_ = nullptr;
  PyObject* finish_ = nullptr;
  bool as_given_ = false, release_ = true;
};

// Tries the calls that it knows, the newest first; then its method `_call_slowly(args, kwargs)`.
class Dispatch {
 public:
  void prefer(nb::handle call) {
    constexpr size_t kMostCalls = 4;
    std::erase_if(calls_, [&](const nb::object& c) { return c.is(call); });
    calls_.insert(calls_.begin(), nb::borrow(call));
    if (calls_.size() > kMostCalls) calls_.pop_back();
  }
  void forget() {
    std::vector<nb::object> old;  // whose end may call Python
    old.swap(calls_);
  }
  const std::vector<nb::object>& calls() const { return calls_; }

 private:
  std::vector<nb::object> calls_;
};

PyObject* call_directly(PyObject* self, PyObject* args, PyObject* kwargs) {
  const nb::object alive = nb::borrow(self);
  return (*nb::inst_ptr<Call>(self))(args, kwargs);
}

PyObject* dispatch(PyObject* self, PyObject* args, PyObject* kwargs) {
  const Dispatch& d = *nb::inst_ptr<Dispatch>(self);
  const bool direct = Quiet::now() == quiet;
  for (size_t i = 0; direct && i < d.calls().size(); ++i) {
    const nb::object call = d.calls()[i];  // kept, whatever happens to the list meanwhile
    PyObject* result = (*nb::inst_ptr<Call>(call))(args, kwargs);
    if (result != Py_NotImplemented) return result;
    Py_DECREF(result);
  }
  static PyObject* const name = PyUnicode_InternFromString("_call_slowly");
  const nb::object named =
      kwargs != nullptr ? nb::borrow(kwargs) : nb::object(nb::steal(PyDict_New()));
  return staying(
      [&] { return PyObject_CallMethodObjArgs(self, name, args, named.ptr(), nullptr); });
}

int traverse_call(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  return nb::inst_ready(self) ? nb::inst_ptr<Call>(self)->visit(visit, arg) : 0;
}
int clear_call(PyObject* self) {
  if (nb::inst_ready(self)) nb::inst_ptr<Call>(self)->clear();
  return 0;
}
int traverse_dispatch(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  if (nb::inst_ready(self))
    for (const nb::object& call : nb::inst_ptr<Dispatch>(self)->calls()) Py_VISIT(call.ptr());
  return 0;
}
int clear_dispatch(PyObject* self) {
  if (nb::inst_ready(self)) nb::inst_ptr<Dispatch>(self)->forget();
  return 0;
}

PyType_Slot call_slots[] = {{Py_tp_call, (void*)call_directly},
                            {Py_tp_traverse, (void*)traverse_call},
                            {Py_tp_clear, (void*)clear_call},
                            {0, nullptr}};
PyType_Slot dispatch_slots[] = {{Py_tp_call, (void*)dispatch},
                                {Py_tp_traverse, (void*)traverse_dispatch},
                                {Py_tp_clear, (void*)clear_dispatch},
                                {0, nullptr}};

}  // namespace

void bind_call(nb::module_& m) {
  nb::class_<Call>(m, "Call", nb::type_slots(call_slots))
      .def(
          "__init__",
          [](Call* self, nb::list slots, nb::list guards, nb::object unchanged) {
            if (!arrays_known()) throw nb::value_error("arrays of this NumPy look otherwise");
            new (self) Call(std::move(slots), std::move(guards), std::move(unchanged));
          },
          nb::arg("slots"), nb::arg("guards"), nb::arg("unchanged").none())
      .def("run_module", &Call::run_module, nb::arg("module"), nb::arg("outputs"),
           nb::arg("finish").none(), nb::arg("release"))
      .def("run_function", &Call::run_function, nb::arg("function"), nb::arg("finish").none(),
           nb::arg("as_given"));
  nb::class_<Dispatch>(m, "Dispatch", nb::type_slots(dispatch_slots), nb::is_weak_referenceable())
      .def(nb::init<>())
      .def("prefer", &Dispatch::prefer, nb::arg("call"))
      .def("forget", &Dispatch::forget)
      .def_static("quiet_now", &quiet_now)
      .def("number_of_calls", [](const Dispatch& d) { return d.calls().size(); });
}

}  // namespace tessera::python
