#include "plan/block.h"

namespace tessera {

bool inside(const Block& block, int loop, int outer) {
  while (loop >= 0 && loop != outer) loop = block.loops[size_t(loop)].around;
  return loop == outer;
}

int64_t BlockValue::elements() const {
  int64_t n = 1;
  for (int64_t e : extents) n *= e;
  return n;
}

}  // namespace tessera
