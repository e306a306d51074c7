// Names of the values of enumerations, as tables.
#pragma once
#include "base/check.h"

namespace tessera {

// The name of a value of an enumeration; `last`: its last one. The names are in its order.
template <auto last, size_t n>
const char* name_of(decltype(last) value, const char* const (&names)[n]) {
  static_assert(n == size_t(last) + 1, "each value has a name");
  CHECK(size_t(value) < n) << "a value without a name";
  return names[size_t(value)];
}

}  // namespace tessera
