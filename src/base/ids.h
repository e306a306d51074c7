// Strong 32-bit ids: an index into one vector, not convertible to an index into another.
// Used for tensors, operators and bodies of a Graph, and for values of the search.
#pragma once
#include <compare>
#include <cstdint>
#include <functional>

namespace tessera {

template <class Tag> struct StrongId {
  uint32_t index = UINT32_MAX;
  constexpr StrongId() = default;
  constexpr explicit StrongId(size_t i) : index(uint32_t(i)) {}
  constexpr bool valid() const { return index != UINT32_MAX; }
  constexpr auto operator<=>(const StrongId&) const = default;
};

struct TensorTag;
struct OpTag;
struct BodyTag;
using TensorId = StrongId<TensorTag>;
using OpId = StrongId<OpTag>;
using BodyId = StrongId<BodyTag>;

}  // namespace tessera

template <class Tag> struct std::hash<tessera::StrongId<Tag>> {
  size_t operator()(tessera::StrongId<Tag> id) const noexcept {
    return std::hash<uint32_t>()(id.index);
  }
};
