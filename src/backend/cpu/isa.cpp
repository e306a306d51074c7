#include "backend/cpu/isa.h"

#include <cstdlib>

#include "base/check.h"
#include "base/error.h"

namespace tessera {

const char* to_string(CpuIsa isa) {
  switch (isa) {
  case CpuIsa::Generic: return "generic";
  case CpuIsa::Avx2: return "avx2";
  case CpuIsa::Avx512: return "avx512";
  }
  unreachable("CpuIsa");
}

std::optional<CpuIsa> cpu_isa_from(std::string_view name) {
  for (CpuIsa isa : {CpuIsa::Generic, CpuIsa::Avx2, CpuIsa::Avx512}) {
    if (name == to_string(isa)) return isa;
  }
  return std::nullopt;
}

std::vector<CpuIsa> runnable_isas() {
  std::vector<CpuIsa> isas = {CpuIsa::Generic};
#if defined(__x86_64__) || defined(__i386__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    isas.push_back(CpuIsa::Avx2);
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl")) {
      isas.push_back(CpuIsa::Avx512);
    }
  }
#endif
  return isas;
}

CpuIsa best_isa() {
  const std::vector<CpuIsa> isas = runnable_isas();
  const char* wanted = std::getenv("TESSERA_ISA");
  if (wanted == nullptr || *wanted == '\0') return isas.back();
  const std::optional<CpuIsa> isa = cpu_isa_from(wanted);
  if (!isa) {
    throw Error(ErrorKind::Usage,
                std::string("TESSERA_ISA is '") + wanted + "'; it must be generic, avx2 or avx512");
  }
  return *isa < isas.back() ? *isa : isas.back();
}

bool has_bf16_dot(CpuIsa isa) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  return isa == CpuIsa::Avx512 && __builtin_cpu_supports("avx512bf16") != 0;
#else
  return false;
#endif
}

int vector_bytes(CpuIsa isa) {
  switch (isa) {
  case CpuIsa::Generic: return 16;
  case CpuIsa::Avx2: return 32;
  case CpuIsa::Avx512: return 64;
  }
  unreachable("CpuIsa");
}

int vector_registers(CpuIsa isa) { return isa == CpuIsa::Avx512 ? 32 : 16; }

std::vector<std::string> compiler_flags(CpuIsa isa) {
  switch (isa) {
  case CpuIsa::Generic: return {};
  case CpuIsa::Avx2: return {"-mavx2", "-mfma", "-mf16c"};
  case CpuIsa::Avx512:
    return {"-mavx2",     "-mfma",      "-mf16c",     "-mavx512f",
            "-mavx512dq", "-mavx512bw", "-mavx512vl", "-mprefer-vector-width=512"};
  }
  unreachable("CpuIsa");
}

}  // namespace tessera
