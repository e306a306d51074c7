#include "cost/block_values.h"

#include <algorithm>
#include <array>

namespace tessera {

int element_work(OpKind kind) {
  if (kind == OpKind::Div || kind == OpKind::Sqrt || kind == OpKind::Rsqrt) return 3;
  static constexpr std::array heavy = {
      OpKind::Exp,   OpKind::Log,   OpKind::Sin,  OpKind::Cos,      OpKind::Erf,     OpKind::Tanh,
      OpKind::Pow,   OpKind::Silu,  OpKind::Gelu, OpKind::GeluTanh, OpKind::Sigmoid, OpKind::Log1p,
      OpKind::Expm1, OpKind::Power, OpKind::Mod,  OpKind::Atan2};
  if (std::find(heavy.begin(), heavy.end(), kind) != heavy.end()) return 6;
  return has(kind, algebra::Pointwise) ? 1 : 0;
}

}  // namespace tessera
