#include "arrays.h"

#include <cstring>

#include "backend/cpu/buffer_list.h"
#include "base/error.h"

namespace tessera::python {
namespace {

// How NumPy asks for memory since 1.22 (NEP 49): numpy/ndarraytypes.h, PyDataMem_Handler.
struct MemoryHandler {
  char name[127];
  uint8_t version;
  struct {
    void* context;
    void* (*allocate)(void* context, size_t size);
    void* (*allocate_zeros)(void* context, size_t count, size_t size);
    void* (*reallocate)(void* context, void* memory, size_t size);
    void (*release)(void* context, void* memory, size_t size);
  } allocator;
};

// Below, memory of NumPy's own cache is as good.
constexpr size_t kLeastBytes = 2048;
constexpr Py_ssize_t kMostAxes = 32;

void* allocate(void*, size_t size) { return BufferList::shared().take(size); }

void* allocate_zeros(void*, size_t count, size_t size) {
  if (size != 0 && count > SIZE_MAX / size) return nullptr;
  void* memory = BufferList::shared().take(count * size);
  if (memory != nullptr) std::memset(memory, 0, count * size);
  return memory;
}

void* reallocate(void*, void* old, size_t size) {
  void* memory = BufferList::shared().take(size);
  if (memory == nullptr || old == nullptr) return memory;
  std::memcpy(memory, old, std::min(size, BufferList::capacity(old)));
  BufferList::shared().give_back(old);
  return memory;
}

void release(void*, void* memory, size_t) { BufferList::shared().give_back(memory); }

MemoryHandler handler = {"tessera", 1, {nullptr, allocate, allocate_zeros, reallocate, release}};

// Places in NumPy's table of functions, which never change (numpy/__multiarray_api.h).
constexpr size_t kNewFromDescr = 94, kFeatureVersion = 211, kSetHandler = 304;
constexpr unsigned kWithHandlers = 0xf;  // 1.22

// Takes over the reference to the dtype. Without data, the array has memory of NumPy's own.
using NewArray = PyObject* (*)(PyTypeObject*, PyObject* dtype, int rank, const Py_ssize_t* shape,
                               const Py_ssize_t* strides, void* data, int flags, PyObject* like);

// Objects that live as long as the process.
struct Numpy {
  PyObject *array, *empty;
  PyObject* memory = nullptr;                     // a capsule of `handler`; null: not supported
  PyObject* (*set_handler)(PyObject*) = nullptr;  // returns the one before
  NewArray make = nullptr;                        // null: arrays do not end as below
  bool known = false;
};

// An array object from 1.22 on, to the end.
struct WholeArray {
  ArrayHead head;
  PyObject* weak_references;
  void* buffer_info;
  PyObject* memory_handler;  // who releases the data, where the array owns them
};

PyObject* empty_with_handler(const Numpy& np, PyObject* shape, PyObject* dtype) {
  PyObject* arguments[2] = {shape, dtype};
  PyObject* before = np.set_handler(np.memory);
  if (before == nullptr) return nullptr;
  PyObject* array = PyObject_Vectorcall(np.empty, arguments, 2, nullptr);
  PyObject* ours = np.set_handler(before);
  Py_DECREF(before);
  Py_XDECREF(ours);
  return array;
}

bool look_as_promised(nb::handle numpy) {
  const auto agrees = [](nb::object array, Py_ssize_t rows, Py_ssize_t columns, int flags) {
    Py_buffer view;
    if (PyObject_GetBuffer(array.ptr(), &view, PyBUF_STRIDED_RO) != 0) throw nb::python_error();
    const ArrayHead& head = head_of(array.ptr());
    const bool same = head.data == view.buf && head.ndim == 2 && head.shape[0] == rows &&
                      head.shape[1] == columns && head.strides[0] == view.strides[0] &&
                      head.strides[1] == view.strides[1] &&
                      head.dtype == array.attr("dtype").ptr() &&
                      (head.flags & (kRowMajor | kColumnMajor | kAligned | kWriteable)) == flags;
    PyBuffer_Release(&view);
    return same;
  };
  nb::object a = numpy.attr("zeros")(nb::make_tuple(2, 3), "f4");
  if (!agrees(a, 2, 3, kRowMajor | kAligned | kWriteable)) return false;
  nb::object t = a.attr("T");
  t.attr("flags").attr("writeable") = false;
  return agrees(t, 3, 2, kColumnMajor | kAligned);
}

void find_handlers(nb::handle numpy, Numpy& found) {
  const char* core = nb::hasattr(numpy, "_core") ? "numpy._core._multiarray_umath"
                                                 : "numpy.core._multiarray_umath";
  nb::object table = nb::module_::import_(core).attr("_ARRAY_API");
  void** functions = static_cast<void**>(PyCapsule_GetPointer(table.ptr(), nullptr));
  if (functions == nullptr) throw nb::python_error();
  const auto version = reinterpret_cast<unsigned (*)()>(functions[kFeatureVersion]);
  if (version() < kWithHandlers) return;
  found.memory = PyCapsule_New(&handler, "mem_handler", nullptr);
  found.set_handler = reinterpret_cast<PyObject* (*)(PyObject*)>(functions[kSetHandler]);
  // To set a handler takes longer than to make an array; so it is given to the array itself.
  const nb::object shape = nb::make_tuple(kLeastBytes), dtype = numpy.attr("dtype")("u1");
  const nb::object array = nb::steal(empty_with_handler(found, shape.ptr(), dtype.ptr()));
  if (!array.is_valid()) throw nb::python_error();
  const WholeArray& whole = *reinterpret_cast<const WholeArray*>(array.ptr());
  const Py_ssize_t size = nb::cast<Py_ssize_t>(numpy.attr("ndarray").attr("__basicsize__"));
  if (size >= static_cast<Py_ssize_t>(sizeof whole) && whole.memory_handler == found.memory &&
      (whole.head.flags & kOwnsData) != 0)
    found.make = reinterpret_cast<NewArray>(functions[kNewFromDescr]);
}

const Numpy& numpy() {
  static const Numpy shared = [] {
    nb::module_ m = nb::module_::import_("numpy");
    Numpy found;
    found.array = nb::object(m.attr("ndarray")).release().ptr();
    found.empty = nb::object(m.attr("empty")).release().ptr();
    try {
      found.known = look_as_promised(m);
      if (found.known) find_handlers(m, found);
    } catch (nb::python_error&) {  // another NumPy: its own memory will do
    }
    return found;
  }();
  return shared;
}

}  // namespace

bool arrays_known() { return numpy().known; }

bool is_plain_array(PyObject* object) { return (PyObject*)Py_TYPE(object) == numpy().array; }

void* memory_at(nb::handle array, const Type& type, bool writable, const char* what,
                size_t number) {
  const int flags = kRowMajor | (writable ? kWriteable : 0);
  if (!is_plain_array(array.ptr()) || (head_of(array.ptr()).flags & flags) != flags ||
      nb::cast<int64_t>(array.attr("nbytes")) != type.bytes())
    throw Error(ErrorKind::BadInput, std::string(what) + " " + std::to_string(number) +
                                         " must be a row-major NumPy array of " + type.str());
  return head_of(array.ptr()).data;
}

std::vector<void*> memory_of(const nb::list& arrays, const std::vector<Type>& types, bool writable,
                             const char* what) {
  if (arrays.size() != types.size())
    throw Error(ErrorKind::BadInput, "expected " + std::to_string(types.size()) + " " + what +
                                         "s, got " + std::to_string(arrays.size()));
  return mapped(types.size(),
                [&](size_t i) { return memory_at(arrays[i], types[i], writable, what, i); });
}

PyObject* new_array(PyObject* shape, PyObject* dtype, size_t bytes) {
  const Numpy& np = numpy();
  const Py_ssize_t rank = NB_TUPLE_GET_SIZE(shape);
  const bool small = bytes < kLeastBytes;
  if (np.make == nullptr || rank > kMostAxes) {
    PyObject* arguments[2] = {shape, dtype};
    if (!small && np.memory != nullptr) return empty_with_handler(np, shape, dtype);
    return PyObject_Vectorcall(np.empty, arguments, 2, nullptr);
  }
  Py_ssize_t extents[kMostAxes];
  for (Py_ssize_t i = 0; i < rank; ++i) extents[i] = PyLong_AsSsize_t(NB_TUPLE_GET_ITEM(shape, i));
  void* data = small ? nullptr : BufferList::shared().take(bytes);
  if (!small && data == nullptr) return PyErr_NoMemory();
  Py_INCREF(dtype);
  PyObject* array = np.make(reinterpret_cast<PyTypeObject*>(np.array), dtype, int(rank), extents,
                            nullptr, data, small ? 0 : kRowMajor | kAligned | kWriteable, nullptr);
  if (small) return array;
  if (array == nullptr) {
    BufferList::shared().give_back(data);
    return nullptr;
  }
  WholeArray& whole = *reinterpret_cast<WholeArray*>(array);
  Py_INCREF(np.memory);
  whole.memory_handler = np.memory;
  whole.head.flags |= kOwnsData;
  return array;
}

}  // namespace tessera::python
