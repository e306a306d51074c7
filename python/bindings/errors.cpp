// tessera::Error becomes one Python class per kind (tessera/errors.py), with its location.
#include "base/error.h"

#include "bindings.h"

namespace tessera::python {
namespace {

const char* class_name(ErrorKind kind) {
  switch (kind) {
  case ErrorKind::Usage: return "UsageError";
  case ErrorKind::BadInput: return "BadInputError";
  case ErrorKind::NotFound: return "NotFoundError";
  case ErrorKind::Unsupported: return "UnsupportedError";
  case ErrorKind::ToolMissing: return "ToolMissingError";
  case ErrorKind::Io: return "IoError";
  case ErrorKind::Cancelled: return "CancelledError";
  case ErrorKind::OutOfMemory: return "OutOfMemoryError";
  case ErrorKind::Device: return "DeviceError";
  case ErrorKind::Internal: return "InternalError";
  }
  return "Error";
}

void raise(const Error& error) {
  nb::module_ errors = nb::module_::import_("tessera.errors");
  nb::object type = errors.attr(class_name(error.kind()));
  nb::object location = nb::none();
  if (error.location()) {
    const SourceLocation& at = *error.location();
    location = errors.attr("Location")(readable(at.file), at.line, at.col);
  }
  nb::object instance = type(readable(error.message()), location);
  PyErr_SetObject(type.ptr(), instance.ptr());
}

}  // namespace

void bind_errors(nb::module_&) {
  nb::register_exception_translator([](const std::exception_ptr& pointer, void*) {
    try {
      std::rethrow_exception(pointer);
    } catch (const Error& error) {
      try {
        raise(error);
      } catch (nb::python_error& failed) {  // the package itself is broken: say so
        failed.restore();
      }
    }
  });
}

}  // namespace tessera::python
