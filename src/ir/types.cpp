#include "ir/types.h"

#include <algorithm>
#include <array>
#include <functional>
#include <numeric>

#include "base/check.h"

namespace tessera {
namespace {
struct DTypeRow {
  const char* name;
  int bytes;
};
constexpr std::array<DTypeRow, kNumDTypes> kDTypes = {{
    {"f64", 8},
    {"f32", 4},
    {"f16", 2},
    {"bf16", 2},
    {"i64", 8},
    {"i32", 4},
    {"i8", 1},
    {"u8", 1},
    {"bool", 1},
}};
}  // namespace

const char* name(DType t) { return kDTypes[size_t(t)].name; }
int size_in_bytes(DType t) { return kDTypes[size_t(t)].bytes; }

std::optional<DType> dtype_from_name(std::string_view text) {
  for (size_t i = 0; i < kDTypes.size(); i++)
    if (text == kDTypes[i].name) return DType(i);
  return std::nullopt;
}

bool is_float(DType t) {
  return t == DType::F64 || t == DType::F32 || t == DType::F16 || t == DType::BF16;
}
bool is_integer(DType t) { return !is_float(t) && t != DType::Bool; }

std::string str(const Shape& shape) {
  std::string s = "[";
  for (size_t i = 0; i < shape.size(); i++) s += (i ? "," : "") + shape[i].str();
  return s + "]";
}

bool is_static(const Shape& shape) {
  return std::ranges::none_of(
      shape, [](const Dim& d) { return d.symbolic(); });
}

int64_t product_of(const std::vector<int64_t>& extents) {
  return std::accumulate(extents.begin(), extents.end(), int64_t{1}, std::multiplies<>());
}

int64_t num_elements(const Shape& shape) {
  int64_t n = 1;
  for (const Dim& d : shape) {
    CHECK(!d.symbolic()) << "the number of elements of " << str(shape) << " is not known";
    n *= d.extent;
  }
  return n;
}

std::vector<int64_t> extents(const Shape& shape) {
  std::vector<int64_t> result;
  for (const Dim& d : shape) {
    CHECK(!d.symbolic()) << "extents of symbolic shape " << str(shape);
    result.push_back(d.extent);
  }
  return result;
}

std::optional<Shape> broadcast(const Shape& a, const Shape& b) {
  Shape result(std::max(a.size(), b.size()));
  for (size_t i = 0; i < result.size(); i++) {
    const Dim one(1);
    const Dim& x = i < a.size() ? a[a.size() - 1 - i] : one;
    const Dim& y = i < b.size() ? b[b.size() - 1 - i] : one;
    if (!(x == y) && !x.is_one() && !y.is_one()) return std::nullopt;
    result[result.size() - 1 - i] = x.is_one() ? y : x;
  }
  return result;
}

std::string Type::str() const { return std::string(name(dtype)) + tessera::str(shape); }

}  // namespace tessera
