// NumPy's arrays as C sees them, without its headers: what its C interface has promised since
// version 1, looked at once before it is relied on.
#pragma once
#include "bindings.h"

namespace tessera::python {

// The head of an array object.
struct ArrayHead {
  PyObject_HEAD char* data;
  int ndim;
  Py_ssize_t* shape;
  Py_ssize_t* strides;
  PyObject* base;
  PyObject* dtype;
  int flags;
};
constexpr int kRowMajor = 0x1, kColumnMajor = 0x2, kOwnsData = 0x4, kAligned = 0x100,
              kWriteable = 0x400;

inline const ArrayHead& head_of(PyObject* array) {
  return *reinterpret_cast<const ArrayHead*>(array);
}

// Whether arrays of this NumPy look as above.
bool arrays_known();
// Exactly numpy.ndarray, no subclass.
bool is_plain_array(PyObject* object);
// Where a plain row-major array lies that takes as many bytes as the type does; throws
// Error(BadInput) for others, with `what` and the number in the message.
void* memory_at(nb::handle array, const Type& type, bool writable, const char* what, size_t number);
// The same of as many arrays as there are types.
std::vector<void*> memory_of(const nb::list& arrays, const std::vector<Type>& types, bool writable,
                             const char* what);
// Uninitialised, row-major, owning memory of BufferList unless it is small; a new reference, or
// null with an exception. `shape`: a tuple; `dtype`: a numpy.dtype; `bytes`: what both say.
PyObject* new_array(PyObject* shape, PyObject* dtype, size_t bytes);

}  // namespace tessera::python
