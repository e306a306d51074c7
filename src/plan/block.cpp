#include "plan/block.h"

namespace tessera {

bool inside(const Block& block, int loop, int outer) {
  while (loop >= 0 && loop != outer) loop = block.loops[size_t(loop)].around;
  return loop == outer;
}

}  // namespace tessera
