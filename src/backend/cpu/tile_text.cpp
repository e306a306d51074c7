#include "backend/cpu/tile_text.h"

#include "base/check.h"

namespace tessera {

std::string vector_typedef(const std::string& type, const std::string& name, int bytes,
                           int aligned) {
  return "typedef " + type + " " + name + " __attribute__((vector_size(" + num(bytes) +
         "), aligned(" + num(aligned) + "), may_alias));\n";
}

std::string widening_load(CpuIsa isa, DType stored, const std::string& name,
                          const std::string& vector, int lanes) {
  std::string out = "static inline __attribute__((always_inline)) " + vector + " " + name +
                    "(const unsigned short* p) {\n  " +
                    vector_typedef("short", "stored", 2 * lanes, 2);
  const auto plain = [&](const std::string& type, const std::string& of, int bytes) {
    return "  typedef " + type + " " + of + " __attribute__((vector_size(" + num(bytes) + ")));\n";
  };
  if (stored == DType::BF16) {
    out += plain("unsigned short", "halves", 2 * lanes) + plain("unsigned", "words", 4 * lanes);
    return out + "  return (" + vector +
           ")(__builtin_convertvector((halves)*(const stored*)p, words) << 16);\n}\n";
  }
  CHECK(isa != CpuIsa::Generic) << "f16 elements need conversions in registers";
  out += plain("short", "halves", 2 * lanes);
  if (isa < CpuIsa::Avx512)
    return out + "  return (" + vector +
           ")__builtin_ia32_vcvtph2ps256((halves)*(const stored*)p);\n}\n";
  return out + plain("float", "v", 4 * lanes) + "  const v z = {};\n  return (" + vector +
         ")__builtin_ia32_vcvtph2ps512_mask((halves)*(const stored*)p, z, (unsigned short)-1, "
         "4);\n}\n";
}

}  // namespace tessera
