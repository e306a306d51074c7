// The instruction sets that generated CPU code is written for, and which of them this machine has.
// The level fixes the vector width and the compiler flags; it is part of every cache key.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

enum class CpuIsa {
  Generic,  // 128-bit vectors, whatever the compiler's default target offers
  Avx2,     // 256-bit vectors with FMA
  Avx512,   // 512-bit vectors (F, DQ, BW, VL)
  Amx,      // the same, and products of bf16 tiles (AMX_TILE, AMX_BF16)
};

const char* to_string(CpuIsa isa);
std::optional<CpuIsa> cpu_isa_from(std::string_view name);

// The widest level that this machine can run (TESSERA_ISA=generic|avx2|avx512|amx lowers it).
CpuIsa best_isa();
// All levels this machine can run, narrowest first. Asks the system once for the use of tiles,
// which Linux grants to a whole process.
std::vector<CpuIsa> runnable_isas();

// Whether code of this level uses dot products of bf16 pairs (AVX512_BF16) on this machine. Level
// amx does not: processors with tiles run vdpbf16ps at half the rate of multiply-adds of f32
// (measured).
bool has_bf16_dot(CpuIsa isa);

int vector_bytes(CpuIsa isa);
int vector_registers(CpuIsa isa);
// Code-generation flags for g++ and clang++.
std::vector<std::string> compiler_flags(CpuIsa isa);

}  // namespace tessera
