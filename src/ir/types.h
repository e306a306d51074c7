// Tensor types: element type and shape. A dimension is a positive extent or a symbol such as N,
// which stands for any positive extent, or what follows from symbols as a text (ir/extent.h).
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/mapped.h"

namespace tessera {

enum class DType : uint8_t { F64, F32, F16, BF16, I64, I32, I8, U8, Bool };
inline constexpr int kNumDTypes = 9;

const char* name(DType);  // "f32"
std::optional<DType> dtype_from_name(std::string_view);
int size_in_bytes(DType);
bool is_float(DType);
inline bool is_sixteen(DType d) { return d == DType::F16 || d == DType::BF16; }
bool is_integer(DType);  // i64 i32 i8 u8; bool is neither float nor integer

struct Dim {
  int64_t extent = 0;  // > 0; 0 when symbolic
  std::string symbol;  // empty when the extent is known

  Dim() = default;
  Dim(int64_t n) : extent(n) {}                 // NOLINT: a number is a dimension
  Dim(int n) : extent(n) {}                     // NOLINT
  Dim(std::string s) : symbol(std::move(s)) {}  // NOLINT
  bool symbolic() const { return !symbol.empty(); }
  bool is_one() const { return extent == 1; }
  std::string str() const { return symbolic() ? symbol : std::to_string(extent); }
  friend bool operator==(const Dim&, const Dim&) = default;
};

using Shape = std::vector<Dim>;
inline constexpr int kMaxRank = 8;
inline constexpr int64_t kMaxElements = int64_t(1) << 40;

std::string str(const Shape&);  // "[16,1024]"
bool is_static(const Shape&);
int64_t num_elements(const Shape&);          // requires is_static
std::vector<int64_t> extents(const Shape&);  // requires is_static
int64_t product_of(const std::vector<int64_t>& extents);
// NumPy broadcasting; nullopt when the shapes do not fit. A symbol fits itself and 1.
std::optional<Shape> broadcast(const Shape& a, const Shape& b);

struct Type {
  DType dtype = DType::F32;
  Shape shape;
  int rank() const { return int(shape.size()); }
  int64_t bytes() const { return num_elements(shape) * size_in_bytes(dtype); }
  std::string str() const;  // "f32[16,1024]"
  friend bool operator==(const Type&, const Type&) = default;
};

}  // namespace tessera
