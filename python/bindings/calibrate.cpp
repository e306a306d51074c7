// backend/calibrate: measures this machine.
#include "backend/calibrate.h"

#include "bindings.h"

namespace tessera::python {

void bind_calibrate(nb::module_& m) {
  m.def("calibrate", [] {
    nb::gil_scoped_release release;
    Cache cache;
    return calibrate(cache, KernelPool::shared()).str();
  });
}

}  // namespace tessera::python
