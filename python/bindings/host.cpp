// Hosts of this process: PyTorch's and onnxruntime's operators, called by way of the module
// tessera.host_calls, which imports them when they are asked for and not before.
#include "backend/host_calls.h"

#include "base/error.h"
#include "bindings.h"

namespace tessera::python {
namespace {

// What tessera.host_calls makes of the arguments. Its errors become the core's; what ends a process
// (Ctrl-C) stays as it is.
template <class... Arguments> nb::object ask(const char* function, const Arguments&... arguments) {
  try {
    return nb::module_::import_("tessera.host_calls").attr(function)(arguments...);
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_Exception)) throw;
    const nb::object missing = nb::module_::import_("tessera.errors").attr("ToolMissingError");
    throw Error(error.matches(missing) ? ErrorKind::ToolMissing : ErrorKind::BadInput,
                nb::cast<std::string>(nb::str(error.value())));
  }
}

// (memory, dtype, shape) for each; the memory may not be touched after the call.
nb::list arrays_of(const std::vector<Type>& types, void* const* data) {
  nb::list list;
  for (size_t i = 0; i < types.size(); ++i) {
    nb::list shape;
    for (const Dim& d : types[i].shape) shape.append(d.extent);
    nb::object memory = nb::steal(
        PyMemoryView_FromMemory(static_cast<char*>(data[i]), types[i].bytes(), PyBUF_WRITE));
    list.append(nb::make_tuple(memory, name(types[i].dtype), nb::tuple(shape)));
  }
  return list;
}

}  // namespace

void bind_hosts(nb::module_&) {
  for (const char* const host : {"onnx", "torch"}) {
    const std::string name = host;
    set_host(name, {[name] {
                      nb::gil_scoped_acquire hold;
                      return nb::cast<std::string>(ask("version", name));
                    },
                    [name](const std::string& text) {
                      nb::gil_scoped_acquire hold;
                      return nb::cast<std::string>(ask("problem", name, text));
                    },
                    [name](const HostStep& step, void* const* arguments, int threads) {
                      nb::gil_scoped_acquire hold;
                      ask("run", name, step.text, arrays_of(step.operands, arguments),
                          arrays_of(step.results, arguments + step.operands.size()), threads);
                    }});
  }
}

}  // namespace tessera::python
