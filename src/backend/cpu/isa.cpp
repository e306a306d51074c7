#include "backend/cpu/isa.h"

#include <cstdlib>

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "base/check.h"
#include "base/error.h"
#include "base/names.h"

namespace tessera {
namespace {

// Whether this process may use AMX tiles of bf16.
bool may_use_tiles() {
#if defined(__x86_64__) && defined(__linux__)
  static const bool granted = [] {
    unsigned a = 0, b = 0, c = 0, d = 0;
    constexpr unsigned kBf16 = 1u << 22, kTile = 1u << 24;  // CPUID.(7, 0):EDX
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
    if ((d & kBf16) == 0 || (d & kTile) == 0) return false;
    constexpr long kRequestPermission = 0x1023, kTileData = 18;  // arch_prctl(2)
    return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  }();
  return granted;
#else
  return false;
#endif
}

}  // namespace

const char* to_string(CpuIsa isa) {
  return name_of<CpuIsa::Amx>(isa, {"generic", "avx2", "avx512", "amx"});
}

std::optional<CpuIsa> cpu_isa_from(std::string_view name) {
  for (CpuIsa isa : {CpuIsa::Generic, CpuIsa::Avx2, CpuIsa::Avx512, CpuIsa::Amx})
    if (name == to_string(isa)) return isa;
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
      if (may_use_tiles()) isas.push_back(CpuIsa::Amx);
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
    throw Error(ErrorKind::Usage, std::string("TESSERA_ISA is '") + wanted +
                                      "'; it must be generic, avx2, avx512 or amx");
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
  case CpuIsa::Avx512:
  case CpuIsa::Amx: return 64;
  }
  unreachable("CpuIsa");
}

int vector_registers(CpuIsa isa) { return isa >= CpuIsa::Avx512 ? 32 : 16; }

std::vector<std::string> compiler_flags(CpuIsa isa) {
  switch (isa) {
  case CpuIsa::Generic: return {};
  case CpuIsa::Avx2: return {"-mavx2", "-mfma", "-mf16c"};
  case CpuIsa::Avx512:
  case CpuIsa::Amx:  // tiles are written as assembly
    return {"-mavx2",     "-mfma",      "-mf16c",     "-mavx512f",
            "-mavx512dq", "-mavx512bw", "-mavx512vl", "-mprefer-vector-width=512"};
  }
  unreachable("CpuIsa");
}

}  // namespace tessera
