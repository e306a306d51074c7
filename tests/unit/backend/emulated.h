// Generated CUDA, run by the emulator against the interpreter.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "backend/check.h"
#include "backend/cuda/emit.h"
#include "backend/cuda/emulate_program.h"
#include "backend/cuda/nvrtc.h"
#include "backend/written.h"
#include "base/error.h"
#include "places.h"

namespace tessera {

// NVRTC as Python's packages bring it, else the system's.
inline bool have_nvrtc() {
  std::vector<std::string> folders;
  const std::filesystem::path lib = std::filesystem::path(source_dir()) / ".venv/lib";
  if (std::filesystem::exists(lib))
    for (const auto& python : std::filesystem::directory_iterator(lib)) {
      const auto nvidia = python.path() / "site-packages/nvidia";
      if (!std::filesystem::exists(nvidia)) continue;
      for (const auto& package : std::filesystem::directory_iterator(nvidia))
        folders.push_back((package.path() / "lib").string());
    }
  set_cuda_folders(folders);
  try {
    nvrtc_version();
    return true;
  } catch (const Error&) {
    return false;
  }
}

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
