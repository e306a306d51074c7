// tessera::Error becomes one Python class per kind (tessera/errors.py), with its location.
#include "base/error.h"

#include "base/names.h"
#include "bindings.h"

namespace tessera::python {
namespace {

const char* class_name(ErrorKind kind) {
  return name_of<ErrorKind::Internal>(
      kind, {"UsageError", "BadInputError", "NotFoundError", "UnsupportedError", "ToolMissingError",
             "IoError", "CancelledError", "OutOfMemoryError", "DeviceError", "InternalError"});
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
