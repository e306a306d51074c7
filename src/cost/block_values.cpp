#include "cost/block_values.h"

namespace tessera {

int element_work(OpKind kind) {
  if (has(kind, algebra::Division)) return 3;
  if (has(kind, algebra::Call)) return 6;
  return has(kind, algebra::Pointwise) ? 1 : 0;
}

}  // namespace tessera
