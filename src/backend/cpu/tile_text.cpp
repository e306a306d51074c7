#include "backend/cpu/tile_text.h"

#include "backend/fmt.h"
#include "base/check.h"

namespace tessera {

std::string vector_typedef(const std::string& type, const std::string& name, int bytes,
                           int aligned) {
  return fmt("typedef $0 $1 __attribute__((vector_size($2), aligned($3), may_alias));\n", type,
             name, bytes, aligned);
}

std::string widening_load(CpuIsa isa, DType stored, const std::string& name,
                          const std::string& vector, int lanes) {
  std::string out =
      fmt("static inline __attribute__((always_inline)) $0 $1(const unsigned short* p) {\n  $2",
          vector, name, vector_typedef("short", "stored", 2 * lanes, 2));
  const auto plain = [&](const std::string& type, const std::string& of, int bytes) {
    return fmt("  typedef $0 $1 __attribute__((vector_size($2)));\n", type, of, bytes);
  };
  if (stored == DType::BF16) {
    out += plain("unsigned short", "halves", 2 * lanes) + plain("unsigned", "words", 4 * lanes);
    return fmt(
        "$0  return ($1)(__builtin_convertvector((halves)*(const stored*)p, words) << 16);\n}\n",
        out, vector);
  }
  CHECK(isa != CpuIsa::Generic) << "f16 elements need conversions in registers";
  out += plain("short", "halves", 2 * lanes);
  if (isa < CpuIsa::Avx512)
    return fmt("$0  return ($1)__builtin_ia32_vcvtph2ps256((halves)*(const stored*)p);\n}\n", out,
               vector);
  return fmt("$0$1  const v z = {};\n  return ($2)__builtin_ia32_vcvtph2ps512_mask((halves)*(const "
             "stored*)p, z, (unsigned short)-1, 4);\n}\n",
             out, plain("float", "v", 4 * lanes), vector);
}

}  // namespace tessera
