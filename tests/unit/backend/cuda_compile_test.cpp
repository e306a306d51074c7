// The device functions' GPU bodies: compiled by NVRTC for every architecture, without a GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "backend/cuda/nvrtc.h"
#include "base/error.h"

namespace tessera {
namespace {

const std::filesystem::path kRoot = TESSERA_SOURCE_DIR;

std::string text_of(const std::filesystem::path& path) {
  std::ifstream in(path);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

// NVRTC as Python's packages bring it, else the system's.
bool have_nvrtc() {
  std::vector<std::string> folders;
  const std::filesystem::path lib = kRoot / ".venv/lib";
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

TEST(CudaCompile, DeviceHeadersAreThoseOfTheTree) {
  for (const char* name : {"device.cuh", "ptx.cuh", "host.cuh", "api.h", "tiles.cuh"})
    EXPECT_EQ(device_header(name), text_of(kRoot / "src/backend/cuda/device" / name)) << name;
}

TEST(CudaCompile, KernelsForEveryArchitecture) {
  if (!have_nvrtc()) GTEST_SKIP() << "needs NVRTC (pip install nvidia-cuda-nvrtc)";
  const std::string source = text_of(kRoot / "tests/unit/backend/cuda_kernels.cuh");
  for (const char* arch : {"sm_80", "sm_90a", "sm_100a"})
    for (const char* kernel : {"scale", "row_sums", "matmul", "hand_over"}) {
      const CudaBinary b = compile_cuda(source, kernel, arch);
      EXPECT_EQ(b.cubin.substr(1, 3), "ELF");
      EXPECT_GT(b.registers, 8);
      EXPECT_LE(b.registers, 128) << kernel << " on " << arch;
      EXPECT_EQ(b.spilled_bytes + b.stack_bytes, 0) << kernel << " on " << arch;
      EXPECT_EQ(b.static_shared_bytes, 0);
    }
  const CudaBinary wide = compile_cuda(source, "matmul_wide", "sm_90a");
  EXPECT_EQ(wide.spilled_bytes + wide.stack_bytes, 0);
}

TEST(CudaCompile, ErrorsSayWhatToDo) {
  if (!have_nvrtc()) GTEST_SKIP() << "needs NVRTC (pip install nvidia-cuda-nvrtc)";
  const auto message = [](const std::string& source, const std::string& arch) {
    try {
      compile_cuda(source, "k", arch);
    } catch (const Error& e) {
      return std::string(to_string(e.kind())) + ": " + e.message();
    }
    return std::string("none");
  };
  EXPECT_NE(message("", "sm_12").find("does not compile for 'sm_12', only for sm_"),
            std::string::npos);
  const std::string wrong = message("extern \"C\" __global__ void k() { x; }", "sm_80");
  EXPECT_NE(wrong.find("k.cu(1): error: identifier \"x\" is undefined"), std::string::npos)
      << wrong;
  const std::string none = message("extern \"C\" __global__ void other() {}", "sm_80");
  EXPECT_NE(none.find("no kernel k"), std::string::npos) << none;
}

}  // namespace
}  // namespace tessera
