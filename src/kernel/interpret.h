// Runs kernels over a domain: over the reals (f64, nothing rounded) and over finite fields, with
// the meaning of operators that eval/ has. Parallel and vector loops without loops inside run in
// runs of elements, statement by statement.
#pragma once
#include <vector>

#include "eval/eval.h"
#include "kernel/ir.h"

namespace tessera::kernel {

// The results of a function on its arguments that are not results and its weights, in the order of
// its buffers. Throws Error(BadInput) where an element is touched that a buffer does not have or an
// index is out of its range.
std::vector<NDArray> interpret(const Function& function, const std::vector<NDArray>& inputs);
// The same over a field; inputs hold all components. Throws Error(Unsupported) where the function
// has no meaning there.
std::vector<FieldArray> interpret(const Function& function, const FieldModel& model,
                                  const std::vector<FieldArray>& inputs);
// Elements that a run computes, roughly: scalars times iterations.
double work_of(const Function& function);

}  // namespace tessera::kernel
