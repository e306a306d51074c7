// Generated CUDA, run by the emulator against the interpreter.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>

#include "backend/check.h"
#include "backend/cuda/emit.h"
#include "backend/cuda/emulate_program.h"
#include "places.h"

namespace tessera {

inline Target gpu() { return find_target("h200", source_dir() + "/targets"); }

// What is wrong with the generated kernels; empty if nothing is.
inline std::string emulated_fault(const Graph& graph, const std::string& arch = "sm_80",
                                  const CheckOptions& options = {}, const Target& target = gpu()) {
  const EmulatedProgram program(graph, emit_cuda(graph, parse_arch(arch), {}, target));
  if (std::getenv("TESSERA_SHOW_CUDA") != nullptr) std::puts(program.program().source.c_str());
  std::string fault;
  uint64_t seed = 1;
  CheckReport report;
  const auto checked = check_compiled(
      graph,
      [&](auto in, auto out) {
        if (!fault.empty()) return;
        if (const auto found = program.run(in, out, seed++)) fault = found->str();
      },
      options, &report);
  if (!fault.empty()) return fault + "\n" + program.program().source;
  return checked ? "" : report.what + "\n" + program.program().source;
}

}  // namespace tessera
