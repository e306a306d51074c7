// Convolutions and attention by cuDNN, on stand-ins for it and for the driver: what is recognised,
// what the library is told, and that it runs.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include "backend/cuda/emulate_program.h"
#include "backend/cuda/library.h"
#include "backend/cuda_code.h"
#include "backend/testing.h"
#include "base/error.h"
#include "ir/text.h"
#include "places.h"

namespace tessera {
namespace {

class Cudnn : public ::testing::Test {
 protected:
  void SetUp() override {
    void* driver = dlopen(stand_in_cuda(), RTLD_NOW);
    ASSERT_NE(driver, nullptr) << dlerror();
    reinterpret_cast<void (*)(int, int, int, int64_t, int64_t)>(dlsym(driver, "stand_in_reset"))(
        1, 9, 0, 1 << 30, 227 << 10);
    void* library = dlopen(stand_in_cudnn(), RTLD_NOW);
    ASSERT_NE(library, nullptr) << dlerror();
    last_ = reinterpret_cast<const char* (*)()>(dlsym(library, "stand_in_cudnn_last"));
    version_ = reinterpret_cast<void (*)(int)>(dlsym(library, "stand_in_cudnn_version"));
    version_(90500);
    descriptors_ = reinterpret_cast<int (*)()>(dlsym(library, "stand_in_cudnn_descriptors"));
    CudaDriver::use_library(stand_in_cuda());
    use_cudnn(stand_in_cudnn());
  }
  void TearDown() override {
    use_cudnn("");
    CudaDriver::use_library("");
  }

  static std::shared_ptr<CudaCode> code(const Graph& g, bool tf32 = false) {
    const auto context = CudaContext::of(0);
    const CudaArch arch = parse_arch(context->device().arch());
    Target target =
        fitted_target(find_target("h100", source_dir() + "/targets"), arch, &context->device());
    target.tf32 = tf32;
    return make_cuda_code(g, test_cache(), {arch, target, {}, context});
  }
  // Runs the program on the device and in the emulator: the calls, and what cuDNN was told.
  std::string runs(const std::string& text, bool tf32 = false) const {
    SCOPED_TRACE(text);
    const Graph g = parse("graph g {\n" + text + "}");
    const auto made = code(g, tf32);
    CheckReport report;
    CheckOptions options;
    if (tf32) options.least_unit = 0x1p-11;
    check_compiled(
        g, [&](auto in, auto out) { made->module->run_on_host_arrays(in, out); }, options, &report);
    EXPECT_TRUE(report.passed) << report.what;
    const EmulatedProgram program(g, made->program);
    std::optional<KernelFault> fault;
    CheckReport emulated;
    check_compiled(
        g, [&](auto in, auto out) { fault = program.run(in, out); }, options, &emulated);
    EXPECT_FALSE(fault.has_value()) << fault->str();
    EXPECT_TRUE(emulated.passed) << emulated.what;
    std::string calls;
    for (const CudaKernel& k : made->program.kernels) {
      if (!calls.empty()) calls += ", ";
      calls += k.call ? std::string(k.call->library()) + ": " + k.call->str() : "kernel";
    }
    return calls;
  }

  const char* (*last_)() = nullptr;
  int (*descriptors_)() = nullptr;
  void (*version_)(int) = nullptr;
};

TEST_F(Cudnn, ConvolutionsAreDescribedAsTheyAre) {
  EXPECT_EQ(runs("x = input : f32[2,4,9,8]\nw = input : f32[6,2,3,2]\n"
                 "y = conv x, w {strides=[2,1], dilations=[1,2], low=[1,0], high=[1,0], groups=2}\n"
                 "return y\n"),
            "cuDNN: conv f32 2x4x9x8 by 6x3x2 strides 2,1 dilations 1,2 low 1,0 high 1,0 groups 2");
  EXPECT_STREQ(last_(),
               "conv f32[2,4,9,8][288,72,8,1] f32[6,2,3,2][12,6,2,1] -> f32[2,6,5,6][180,30,6,1] "
               "strides [2,1] dilations [1,2] zeros [1,0][1,0]; engine 3");
  // One axis is two to cuDNN; three are three.
  EXPECT_EQ(runs("x = input : f16[2,4,9]\nw = input : f16[8,4,3]\n"
                 "y = conv x, w {strides=[2], low=[1], high=[1]}\nreturn y\n"),
            "cuDNN: conv f16 2x4x9 by 8x3 strides 2 low 1 high 1");
  EXPECT_STREQ(last_(), "conv f16[2,4,1,9][36,9,9,1] f16[8,4,1,3][12,3,3,1] -> "
                        "f16[2,8,1,5][40,5,5,1] strides [1,2] dilations [1,1] zeros [0,1][0,1]; "
                        "engine 2");
  EXPECT_EQ(runs("x = input : f64[1,2,4,3,5]\nw = input : f64[3,2,2,2,2]\n"
                 "y = conv x, w\nreturn y\n"),
            "cuDNN: conv f64 1x2x4x3x5 by 3x2x2x2");
}

TEST_F(Cudnn, UnevenZerosComeFirstWhereTheyChangeTheResult) {
  // Behind the last window there may be as many zeros as before the first: nobody sees them.
  EXPECT_EQ(runs("x = input : f32[1,2,6,6]\nw = input : f32[2,2,3,3]\n"
                 "y = conv x, w {strides=[2,2], low=[1,1], high=[0,0]}\nreturn y\n"),
            "cuDNN: conv f32 1x2x6x6 by 2x3x3 strides 2,2 low 1,1");
  EXPECT_EQ(runs("x = input : f32[1,2,6,7]\nw = input : f32[2,2,3,3]\n"
                 "y = conv x, w {low=[0,1], high=[2,0]}\nreturn y\n"),
            "kernel, cuDNN: conv f32 1x2x8x8 by 2x3x3");
  EXPECT_EQ(runs("x = input : f16[1,2,6,7]\nw = input : f16[2,2,3,3]\nb = input : f16[2,1,1]\n"
                 "y = conv x, w {low=[0,1], high=[2,0]}\nz = add y, b\nr = relu z\nreturn r\n"),
            "kernel, cuDNN: conv f16 1x2x8x8 by 2x3x3 bias relu");
}

TEST_F(Cudnn, BiasAndActivationAreItsOwn) {
  const std::string conv = "x = input : f16[1,8,6,6]\nw = input : f16[4,8,3,3]\n"
                           "b = input : f16[4]\nc = reshape b {shape=[4,1,1]}\ny = conv x, w\n";
  EXPECT_EQ(runs(conv + "z = add c, y\nr = gelu_tanh z\nreturn r\n"),
            "cuDNN: conv f16 1x8x6x6 by 4x3x3 bias gelu_tanh");
  EXPECT_STREQ(last_(), "conv f16[1,8,6,6][288,36,6,1] f16[4,8,3,3][72,9,3,1] -> "
                        "f32[1,4,4,4][64,16,4,1] strides [1,1] dilations [1,1] zeros [0,0][0,0]; "
                        "pointwise 0 f16[1,4,1,1][4,1,1,1]; pointwise 107; engine 2");
  EXPECT_EQ(runs(conv + "r = relu y\nreturn r\n"), "cuDNN: conv f16 1x8x6x6 by 4x3x3 relu");
  // Somebody else reads what it computes, or the bias is of another axis.
  EXPECT_EQ(runs("x = input : f32[1,8,6,6]\nw = input : f32[4,8,3,3]\ny = conv x, w\n"
                 "r = relu y\nreturn r, y\n"),
            "cuDNN: conv f32 1x8x6x6 by 4x3x3, kernel");
  EXPECT_EQ(runs(conv + "z = add y, b\nreturn z\n"), "cuDNN: conv f16 1x8x6x6 by 4x3x3, kernel");
}

TEST_F(Cudnn, TransposedConvolutions) {
  const std::string conv = "x = input : f32[2,4,3,5]\nw = input : f32[4,3,3,2]\n";
  EXPECT_EQ(runs(conv + "y = conv_transpose x, w {strides=[2,1], low=[1,0], high=[1,0], "
                        "groups=2}\nreturn y\n"),
            "cuDNN: conv_transpose f32 2x4x3x5 by 6x3x2 strides 2,1 low 1,0 high 1,0 groups 2");
  EXPECT_STREQ(last_(), "back f32[2,6,5,6][180,30,6,1] f32[4,3,3,2][18,6,2,1] -> "
                        "f32[2,4,3,5][60,15,5,1] strides [2,1] dilations [1,1] zeros [1,0][1,0]; "
                        "engine 3");
  // Nothing is fused behind these: the operator alone is a call.
  EXPECT_EQ(runs(conv + "y = conv_transpose x, w\nr = relu y\nreturn r\n"),
            "cuDNN: conv_transpose f32 2x4x3x5 by 3x3x2, kernel");
}

TEST_F(Cudnn, RoundsFactorsOnlyWhereAskedTo) {
  const std::string conv = "x = input : f32[1,8,6,6]\nw = input : f32[4,8,3,3]\ny = conv x, w\n"
                           "return y\n";
  EXPECT_EQ(runs(conv), "cuDNN: conv f32 1x8x6x6 by 4x3x3");
  EXPECT_NE(std::string(last_()).find("engine 3"), std::string::npos) << last_();
  EXPECT_EQ(runs(conv, true), "cuDNN: conv f32 1x8x6x6 by 4x3x3 tf32");
  EXPECT_NE(std::string(last_()).find("engine 2"), std::string::npos) << last_();
}

// softmax(scale·Q·Kᵀ + mask)·V for so many batches.
std::string attention_text(const std::string& q, const std::string& k, const std::string& v,
                           const std::string& perm, const std::string& mask,
                           const std::string& last = "2") {
  return "Q = input : f16[" + q + "]\nK = input : f16[" + k + "]\nV = input : f16[" + v + "]\n" +
         (perm.empty() ? "" : "kt = transpose K {perm=[" + perm + "]}\n") +
         "f = const {value=0.25} : f16[]\ns = matmul Q, " + (perm.empty() ? "K" : "kt") +
         "\nz = mul s, f\n" + mask + "m = reduce_max z" + (mask.empty() ? "" : "m") + " {axes=[" +
         last + "], keepdims=true}\nc = sub z" + (mask.empty() ? "" : "m") +
         ", m\ne = exp c\nd = sum e {axes=[" + last +
         "], keepdims=true}\np = div e, d\nO = matmul p, V\nreturn O\n";
}

TEST_F(Cudnn, AttentionIsOneCall) {
  EXPECT_EQ(runs(attention_text("2,12,16", "2,20,16", "2,20,8", "0,2,1", "")),
            "cuDNN: attention f16 2x1x12x20x16 values 8 scale 0.25");
  EXPECT_STREQ(last_(),
               "matmul f16[2,1,12,16][192,192,16,1] f16[2,1,16,20][320,320,1,16]; "
               "pointwise 1 f32[1,1,1,1][1,1,1,1]; reduce 3; pointwise 9 f32[2,1,12,1][12,12,1,1]; "
               "pointwise 13; reduce 0; pointwise 15; pointwise 0 f32[2,1,12,1][12,12,1,1]; "
               "pointwise 6 f32[2,1,12,1][12,12,1,1]; "
               "matmul f16[2,1,12,20][240,240,20,1] f16[2,1,20,8][160,160,8,1]; engine 2");
}

TEST_F(Cudnn, AttentionIsDescribedAsTheVersionKnowsIt) {
  version_(92801);
  EXPECT_EQ(cudnn_version(), "9.28.1");
  EXPECT_EQ(runs(attention_text("2,12,16", "2,20,16", "2,20,16", "0,2,1", "")),
            "cuDNN: attention f16 2x1x12x20x16 scale 0.25");
  EXPECT_STREQ(last_(), "matmul f16[2,1,12,16][192,192,16,1] f16[2,1,16,20][320,320,1,16]; "
                        "pointwise 1 f32[1,1,1,1][1,1,1,1]; softmax; "
                        "matmul f16[2,1,12,20][240,240,20,1] f16[2,1,20,16][320,320,16,1]; "
                        "engine 2");
}

TEST_F(Cudnn, AttentionOfGroupsAndWithAMask) {
  // Three heads of queries share keys and values.
  EXPECT_EQ(runs(attention_text("2,3,6,16", "2,1,10,16", "2,1,10,16", "0,1,3,2", "", "3")),
            "cuDNN: attention f16 2x3x6x10x16 scale 0.25");
  const std::string added = "big = const {value=-10000} : f16[8,8]\nup = triu big {k=1}\n"
                            "zm = add z, up\n";
  EXPECT_EQ(runs(attention_text("2,8,16", "2,8,16", "2,8,16", "0,2,1", added)).substr(0, 60),
            "cuDNN: attention f16 2x1x8x8x16 causal scale 0.25");
  EXPECT_NE(std::string(last_()).find("pointwise 501; pointwise 501; pointwise 303 "
                                      "i32[2,1,8,8][64,64,8,1]; pointwise 601 "),
            std::string::npos)
      << last_();
  const std::string chosen = "yes = const {value=1} : bool[8,8]\nlow = tril yes {k=0}\n"
                             "big = const {value=-60000} : f16[]\nzm = where low, z, big\n";
  EXPECT_EQ(runs(attention_text("2,8,16", "2,8,16", "2,8,16", "0,2,1", chosen)),
            "cuDNN: attention f16 2x1x8x8x16 causal scale 0.25");
  // Another mask is not causal.
  const std::string other = "big = const {value=-10000} : f16[8,8]\nup = triu big {k=2}\n"
                            "zm = add z, up\n";
  EXPECT_EQ(runs(attention_text("2,8,16", "2,8,16", "2,8,16", "0,2,1", other)).find("attention"),
            std::string::npos);
}

TEST_F(Cudnn, KernelsWhereItHasNoWay) {
  // Keys that lie by columns, and heads of a size that its attention does not take.
  EXPECT_EQ(runs(attention_text("2,12,16", "2,16,20", "2,20,16", "", "")).find("cuDNN"),
            std::string::npos);
  EXPECT_EQ(runs(attention_text("2,6,12", "2,10,12", "2,10,12", "0,2,1", "")).find("cuDNN"),
            std::string::npos);
}

TEST_F(Cudnn, WhatIsMissingIsTold) {
  use_cudnn("/nowhere/libcudnn.so.9");
  EXPECT_FALSE(has_cudnn());
  try {
    cudnn_version();
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::ToolMissing);
    EXPECT_NE(e.message().find("pip install nvidia-cudnn-cu13"), std::string::npos) << e.message();
  }
  // Kernels do it then.
  EXPECT_EQ(runs("x = input : f32[1,2,6,6]\nw = input : f32[2,2,3,3]\ny = conv x, w\nreturn y\n")
                .find("cuDNN"),
            std::string::npos);
}

TEST_F(Cudnn, WaysAreSharedAndGivenBack) {
  const auto context = CudaContext::of(0);
  const Graph g = parse("graph g {\nx = input : f32[1,2,6,6]\nw = input : f32[2,2,3,3]\n"
                        "y = conv x, w\nreturn y\n}");
  const LibraryCall call = *library_call(g, OpId(2));
  EXPECT_TRUE(library_has_way(context, call));
  auto one = library_callable(context, call);
  const int built = descriptors_();
  const auto two = library_callable(context, call);
  EXPECT_EQ(one, two);
  EXPECT_EQ(descriptors_(), built);
  EXPECT_EQ(one->workspace_bytes(), 1024);
  // Each way takes more than that.
  EXPECT_THROW(make_library_callable(context, call, 512), Error);
  EXPECT_EQ(descriptors_(), built);
}

}  // namespace
}  // namespace tessera
