// Between the interpreter's arrays (f64 and int64 inside) and the memory that compiled programs
// read and write.
#pragma once

#include <cstddef>
#include <vector>

#include "base/rational.h"
#include "eval/ndarray.h"
#include "ir/types.h"

namespace tessera {

// `x` in the memory format of its dtype: contiguous, 16-bit floats as words, bools as bytes.
std::vector<std::byte> to_memory(const NDArray& x);
NDArray from_memory(const Type& type, const void* data);
// Fills `to`, memory for a `type`, with a constant.
void fill_constant(const Type& type, const Rational& value, void* to);

}  // namespace tessera
