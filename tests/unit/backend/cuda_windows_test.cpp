// Convolutions and pooling as CUDA without a library: in the emulator, against the interpreter.
#include <gtest/gtest.h>

#include "backend/block_programs.h"
#include "backend/emulated.h"
#include "backend/written.h"
#include "ir/text.h"
#include "ir/validate.h"

namespace tessera {
namespace {

// Programs of one line each, in one compilation; one by one where something is wrong.
void expect_right_windows(const std::vector<std::string>& texts) {
  Graph all("together");
  for (const std::string& text : texts) {
    const Graph graph = parse(text);
    validate(graph);
    append(all, graph);
  }
  if (emulated_fault(all).empty()) return;
  for (const std::string& text : texts) {
    const std::string what = emulated_fault(parse(text));
    EXPECT_TRUE(what.empty()) << what << text;
  }
}

std::string pool(const std::string& type, const std::string& shape, const std::string& how) {
  return "graph g {\nx = input : " + type + "[" + shape + "]\ny = pool_sum x {" + how +
         "}\nz = pool_max x {" + how + "}\nreturn y, z\n}\n";
}

std::string conv(const std::string& type, const std::string& x, const std::string& w,
                 const std::string& how, const std::string& kind = "conv") {
  return "graph g {\nx = input : " + type + "[" + x + "]\nw = input : " + type + "[" + w +
         "]\ny = " + kind + " x, w {" + how + "}\nreturn y\n}\n";
}

TEST(CudaWindows, Pooling) {
  expect_right_windows({
      pool("f16", "2,3,9,10", "size=[3,3], strides=[2,2], low=[1,1], high=[1,1]"),
      // Windows all of which lie outside, dilated.
      pool("f32", "2,13", "size=[3], dilations=[4], low=[9], high=[7]"),
      pool("i8", "2,13", "size=[3], dilations=[4], low=[9], high=[7]"),
      pool("i64", "1,5,6,7", "size=[2,3,2], strides=[1,2,3], low=[0,1,0]"),
      pool("f64", "3,7,7", "size=[7,7]"),
  });
}

TEST(CudaWindows, ConvolutionsByAThreadPerElement) {
  expect_right_windows({
      // Depthwise, few filters, and of whole numbers any.
      conv("bf16", "2,4,7,6", "4,1,3,3", "groups=4, low=[1,1], high=[1,1]"),
      conv("f32", "1,3,11", "5,3,4", "strides=[2], dilations=[2], low=[3]"),
      conv("i32", "1,4,5,5", "16,4,3,3", ""),
      conv("f32", "2,6,4,5", "6,2,3,2",
           "strides=[2,3], dilations=[1,2], low=[1,0], high=[0,1], groups=2", "conv_transpose"),
      conv("f16", "1,2,9", "2,3,3", "low=[1]", "conv_transpose"),
      // Enough windows for two filters of a thread.
      conv("f32", "1,1,6001", "6,1,2", ""),
  });
}

TEST(CudaWindows, ConvolutionsAsProducts) {
  expect_right_windows({
      conv("f16", "1,16,10,9", "24,16,3,3", "low=[1,1], high=[1,1]"),
      conv("f32", "3,8,12", "16,8,5", "strides=[2], low=[2], high=[1]"),
      conv("bf16", "2,16,6,7", "24,8,3,2", "dilations=[2,1], groups=2"),
      conv("f16", "2,32,4,6", "16,32,1,1", ""),  // columns as they are
      conv("f32", "2,16,9,5", "16,16,1,1", "strides=[2,1]"),
      conv("f64", "1,4,3,4,5", "8,4,2,2,2", "low=[1,0,1]"),
  });
}

TEST(CudaWindows, WhichWay) {
  const auto source = [](const std::string& text) {
    return emit_cuda(parse(text), parse_arch("sm_90a"), {}, gpu()).source;
  };
  const std::string product = source(conv("f16", "2,64,28,28", "64,64,3,3", ""));
  EXPECT_NE(product.find("the columns of y = conv"), std::string::npos);
  EXPECT_NE(product.find("ts::multiply_add"), std::string::npos) << product;
  const std::string view = source(conv("f16", "2,64,28,28", "64,64,1,1", ""));
  EXPECT_EQ(view.find("the columns of"), std::string::npos);
  EXPECT_NE(view.find("ts::multiply_add"), std::string::npos) << view;
  // 784 windows in parts that whole pieces of 16 bytes make up.
  EXPECT_EQ(view.find("? ts::load_global"), std::string::npos) << view;
  // 2·64·9·512·512 columns of two bytes are 604 MB.
  const std::string large = source(conv("f16", "2,64,514,514", "64,64,3,3", ""));
  EXPECT_EQ(large.find("the columns of"), std::string::npos);
  EXPECT_NE(large.find("s7"), std::string::npos);  // eight filters of a thread
}

}  // namespace
}  // namespace tessera
