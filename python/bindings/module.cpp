// The extension module `tessera._core`: one entry point that gathers the bindings.
// Each file of this folder binds one folder of src/ and is called from here.
#include "bindings.h"

NB_MODULE(_core, m) {
  m.doc() = "The C++ core of Tessera.";
  // Functions that still exist when the interpreter ends are no leak that users could mend.
  nanobind::set_leak_warnings(false);
  m.attr("version") = TESSERA_VERSION;
  tessera::python::bind_errors(m);
  tessera::python::bind_ir(m);
  tessera::python::bind_eval(m);
  tessera::python::bind_verify(m);
  tessera::python::bind_backend(m);
  tessera::python::bind_call(m);
  tessera::python::bind_hosts(m);
  tessera::python::bind_cuda(m);
  tessera::python::bind_driver(m);
  tessera::python::bind_patterns(m);
  tessera::python::bind_rules(m);
}
