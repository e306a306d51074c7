// The device functions' GPU bodies: compiled by NVRTC for every architecture, without a GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "backend/block_programs.h"
#include "backend/cuda/nvrtc.h"
#include "backend/emulated.h"
#include "backend/written.h"
#include "base/error.h"
#include "ir/text.h"
#include "places.h"

namespace tessera {
namespace {

const std::filesystem::path kRoot = source_dir();

std::string text_of(const std::filesystem::path& path) {
  std::ifstream in(path);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
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
      const CudaObject object = compile_cuda_kernels(source, {kernel}, arch);
      EXPECT_EQ(object.cubin.substr(1, 3), "ELF");
      const CudaBinary& b = object.kernels[0];
      EXPECT_GT(b.registers, 8);
      EXPECT_LE(b.registers, 128) << kernel << " on " << arch;
      EXPECT_EQ(b.spilled_bytes + b.stack_bytes, 0) << kernel << " on " << arch;
      EXPECT_EQ(b.static_shared_bytes, 0);
    }
  const CudaBinary wide = compile_cuda_kernels(source, {"matmul_wide"}, "sm_90a").kernels[0];
  EXPECT_EQ(wide.spilled_bytes + wide.stack_bytes, 0);
}

// Asynchronous products that the compiler makes wait for one another: the kernel that has them is
// named with the reason.
TEST(CudaCompile, SerializedProductsAreTold) {
  if (!have_nvrtc()) GTEST_SKIP() << "needs NVRTC (pip install nvidia-cuda-nvrtc)";
  const auto kernel = [](const std::string& name, const std::string& between) {
    return "extern \"C\" __global__ void " + name + R"((float* out) {
  float sum[32] = {};
  ts::begin_products(sum);
  for (int k = 0; k < 4; ++k) {
    const auto a = ts::operand(ts::shared() + k * 32, 0, 1024);
    const auto b = ts::operand(ts::shared() + 8192 + k * 2048, 0, 1024);
    ts::multiply_add_wide<0, 1>(sum, a, b, ts::f16{}, true);
    )" + between +
           R"(
  }
  ts::commit_products();
  ts::wait_products<0>(sum);
  for (int i = 0; i < 32; ++i) out[i * 128 + ts::thread()] = sum[i];
}
)";
  };
  const std::string source =
      "#include \"device.cuh\"\n" + kernel("k", "") + kernel("k2", "out[k] = sum[k];");
  const CudaObject object = compile_cuda_kernels(source, {"k", "k2"}, "sm_90a");
  EXPECT_EQ(object.kernels[0].serialized, "");
  EXPECT_EQ(object.kernels[1].serialized.find("non wgmma instructions reading accumulator"), 0u)
      << object.kernels[1].serialized;
  EXPECT_EQ(object.kernels[1].serialized.find("in the"), std::string::npos);
}

// What a GPU is asked about fragments and boxes (tests/gpu/fragments.txt).
TEST(CudaCompile, FragmentsForHopper) {
  if (!have_nvrtc()) GTEST_SKIP() << "needs NVRTC (pip install nvidia-cuda-nvrtc)";
  std::vector<std::string> names;
  std::istringstream kept(text_of(kRoot / "tests/gpu/fragments.txt"));
  for (std::string row; std::getline(kept, row);) names.push_back(row.substr(0, row.find(' ')));
  const std::string source = text_of(kRoot / "tests/unit/backend/cuda_fragments.cuh");
  const CudaObject object = compile_cuda_kernels(source, names, "sm_90a");
  EXPECT_EQ(object.kernels.size(), names.size());
}

// Every kernel that is made of the corpus, and fused ones of the sizes of real models: as many
// registers as its sums take at least, next to none spilled, no shared memory but what is planned.
void compile_all(const Graph& all, const std::string& arch, bool tf32) {
  Target target = gpu();
  target.tf32 = tf32;
  const CudaProgram program = emit_cuda(all, parse_arch(arch), {}, target);
  EXPECT_EQ(program.source.find("tf32") != std::string::npos, tf32);
  std::vector<std::string> names;
  for (const CudaKernel& k : program.kernels) names.push_back(k.name);
  const CudaObject object = compile_cuda_kernels(program.source, names, arch);
  ASSERT_EQ(object.kernels.size(), program.kernels.size());
  int most = 0, spilling = 0;
  for (size_t i = 0; i < names.size(); ++i) {
    const CudaBinary& b = object.kernels[i];
    const CudaKernel& k = program.kernels[i];
    // ptxas gives up a register or two to have more blocks side by side.
    EXPECT_LE(b.spilled_bytes, 32) << names[i] << " on " << arch;
    spilling += b.spilled_bytes > 0;
    EXPECT_EQ(b.static_shared_bytes, 0) << names[i] << " on " << arch;
    EXPECT_GE(b.registers, k.sum_registers) << names[i] << " on " << arch;
    EXPECT_LE(b.registers * k.threads, 65536) << names[i] << " on " << arch;
    EXPECT_LE(k.shared_bytes, 227 << 10) << names[i] << " on " << arch;
    EXPECT_EQ(b.serialized, "") << names[i] << " on " << arch;
    most = std::max(most, b.registers);
  }
  std::printf("%s%s: %zu kernels, at most %d registers, %d spill a few bytes\n", arch.c_str(),
              tf32 ? " in tf32" : "", names.size(), most, spilling);
  EXPECT_LE(spilling, int(names.size() / 20));
}

TEST(CudaCompile, GeneratedKernelsForEveryArchitecture) {
  if (!have_nvrtc()) GTEST_SKIP() << "needs NVRTC (pip install nvidia-cuda-nvrtc)";
  Graph all("together");
  for (const auto& file : std::filesystem::directory_iterator(kRoot / "tests/corpus"))
    if (file.path().extension() == ".ug") append(all, parse(text_of(file.path())));
  for (const std::string& text :
       {rms_norm_linear(16, 4096, 4096, 64, 64, "bf16"), rms_norm_linear(5, 100, 77, 3, 7),
        rms_norm_linear(128, 1024, 1024, 16, 16, "f16"),
        attention({8, 16, 128, 1024, 128, 1, 16, true, "f16"}),
        attention({1, 64, 64, 4096, 64, 1, 64, true, "bf16", true}),
        attention({3, 17, 19, 50, 21, 2, 4}),
        // Windows: a product, depthwise, transposed, pooled.
        std::string("graph g {\nx = input : f16[2,64,28,28]\nw = input : f16[64,64,3,3]\n"
                    "d = input : f16[64,1,3,3]\nt = input : f16[64,8,2,2]\n"
                    "a = conv x, w {low=[1,1], high=[1,1]}\nb = conv a, d {groups=64}\n"
                    "c = conv_transpose b, t {strides=[2,2]}\n"
                    "p = pool_max c {size=[2,2], strides=[2,2]}\n"
                    "q = pool_sum p {size=[3,3], low=[1,1]}\nreturn q\n}\n")})
    append(all, parse(text));
  // Operands that go to memory as matrices.
  append(all, parse(attention({1, 16, 64, 512, 64, 1, 4, true, "f16"})));
  Graph rounded("rounded");
  for (const std::string& text :
       {rms_norm_linear(16, 4096, 4096, 64, 64), rms_norm_linear(5, 100, 77, 3, 7),
        rms_norm_linear(128, 1024, 1024, 16, 16), attention({8, 16, 128, 1024, 128, 1, 16, true}),
        attention({3, 17, 19, 50, 21, 2, 4})})
    append(rounded, parse(text));
  for (const char* arch : {"sm_80", "sm_90a", "sm_100a"}) {
    compile_all(all, arch, false);
    compile_all(rounded, arch, true);
  }
}

TEST(CudaCompile, StandaloneSourceNeedsNothingElse) {
  if (!have_nvrtc()) GTEST_SKIP() << "needs NVRTC (pip install nvidia-cuda-nvrtc)";
  const Graph graph = parse(rms_norm_linear(16, 256, 512, 16, 4, "f16"));
  const CudaProgram program = emit_cuda(graph, parse_arch("sm_90a"), {}, gpu());
  const std::string source = standalone_source(program);
  EXPECT_EQ(source.find("#include \""), std::string::npos);
  const CudaObject object = compile_cuda_kernels(source, {program.kernels[0].name}, "sm_90a");
  EXPECT_GT(object.kernels[0].registers, 8);
}

TEST(CudaCompile, ErrorsSayWhatToDo) {
  if (!have_nvrtc()) GTEST_SKIP() << "needs NVRTC (pip install nvidia-cuda-nvrtc)";
  const auto message = [](const std::string& source, const std::string& arch) {
    try {
      compile_cuda_kernels(source, {"k"}, arch);
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
