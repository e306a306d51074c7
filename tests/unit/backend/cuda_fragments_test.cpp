// Which thread holds which element: the emulator's answers, frozen in tests/gpu/fragments.txt, to
// which a GPU is held by tests/gpu. TESSERA_WRITE_GOLDEN=1 writes that file anew.
#include "cuda_fragments.cuh"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <functional>
#include <sstream>

#include "backend/cuda/driver.h"
#include "backend/cuda/emulator.h"
#include "backend/fragments.h"
#include "backend/testing.h"
#include "places.h"
#include "stand_in.h"

namespace tessera {
namespace {

using FragmentWords = std::vector<unsigned>;

class CudaFragments : public testing::Test {
 protected:
  void SetUp() override { ts::host::api = emulator_api(); }
};

FragmentWords run(int threads, int words,
                  const std::function<void(const int*, unsigned*)>& kernel) {
  FragmentWords out(size_t(words), 0xdeadbeefu);
  EmulatedLaunch launch;
  launch.threads = threads;
  launch.shared_bytes = 1 << 15;
  launch.buffers = {{out.data(), int64_t(words) * 4, true, false}};
  const auto fault = emulate(launch, [&] { kernel(nullptr, out.data()); });
  EXPECT_FALSE(fault) << fault->str();
  return out;
}

template <class Kernel> FragmentWords run_box(Kernel kernel, int box_columns, bool swizzled) {
  constexpr int rows = 13, columns = 72;
  std::vector<uint16_t> data(rows * columns);
  for (size_t i = 0; i < data.size(); ++i) data[i] = uint16_t(i);
  const ts::TensorMap map =
      ts::host::tensor_map(data.data(), rows, columns, columns * 2, 2, 16, box_columns, swizzled);
  FragmentWords out(512, 0xdeadbeefu);
  EmulatedLaunch launch;
  launch.shared_bytes = 4096;
  launch.buffers = {{data.data(), int64_t(data.size()) * 2},
                    {out.data(), int64_t(out.size()) * 4, true, false}};
  const auto fault = emulate(launch, [&] { kernel(nullptr, out.data(), map); });
  EXPECT_FALSE(fault) << fault->str();
  return out;
}

// "name threads words hash first…": the hash (FNV-1a, 64 bits) is of all words, the first 32
// follow.
std::string line(const std::string& name, int threads, const FragmentWords& words) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (unsigned w : words)
    for (int byte = 0; byte < 4; ++byte) hash = (hash ^ (w >> 8 * byte & 0xff)) * 0x100000001b3u;
  std::ostringstream out;
  out << name << " " << threads << " " << words.size() << std::hex << " " << hash;
  for (size_t i = 0; i < std::min<size_t>(words.size(), 32); ++i) out << " " << words[i];
  return out.str();
}

TEST_F(CudaFragments, AreThoseThatAreKept) {
  std::string text;
  const auto add = [&](const std::string& name, int threads, const FragmentWords& words) {
    text += line(name, threads, words) + "\n";
  };
#define WARP(kernel, words) add(#kernel, 32, run(32, words, kernel))
  WARP(fragment_load_1, 32);
  WARP(fragment_load_2, 64);
  WARP(fragment_load_4, 128);
  WARP(fragment_load_1_t, 32);
  WARP(fragment_load_2_t, 64);
  WARP(fragment_load_4_t, 128);
  WARP(fragment_product_f16, 128);
  WARP(fragment_product_bf16, 128);
  WARP(fragment_product_tf32, 128);
  WARP(fragment_round_tf32, 128);
  WARP(fragment_store, 128);
  WARP(fragment_store_2, 128);
  WARP(fragment_store_4_t, 128);
  WARP(fragment_store_2_t, 128);
  add("fragment_box", 32, run_box(fragment_box, 64, false));
  add("fragment_box_swizzled", 32, run_box(fragment_box_swizzled, 64, true));
  add("fragment_box_swizzled_32", 32, run_box(fragment_box_swizzled_32, 32, true));
  add("fragment_box_swizzled_16", 32, run_box(fragment_box_swizzled_16, 16, true));
#define WIDE(T, n)                                                                                 \
  add("fragment_wide_" #T "_" #n, 128, run(128, 64 * n, fragment_wide_##T##_##n));                 \
  add("fragment_wide_" #T "_" #n "_tb", 128, run(128, 64 * n, fragment_wide_##T##_##n##_tb))
  WIDE(f16, 8);
  WIDE(f16, 16);
  WIDE(f16, 32);
  WIDE(f16, 64);
  WIDE(f16, 128);
  WIDE(bf16, 8);
  WIDE(bf16, 64);
  add("fragment_wide_f16_64_ta", 128, run(128, 64 * 64, fragment_wide_f16_64_ta));
#define BOXES(width)                                                                               \
  add("fragment_wide_boxes_" #width, 128, run(128, 64 * 64, fragment_wide_boxes_##width));         \
  add("fragment_wide_boxes_" #width "_t", 128, run(128, 64 * 64, fragment_wide_boxes_##width##_t))
  BOXES(64);
  BOXES(32);
  BOXES(16);

  const std::string path = source_dir() + "/tests/gpu/fragments.txt";
  if (std::getenv("TESSERA_WRITE_GOLDEN") != nullptr) std::ofstream(path) << text;
  std::ifstream in(path);
  std::ostringstream kept;
  kept << in.rdbuf();
  EXPECT_EQ(kept.str(), text);
}

// The way in which a GPU is asked, on a stand-in for one.
TEST_F(CudaFragments, AreReadFromADevice) {
  void* library = dlopen(stand_in_cuda(), RTLD_NOW);
  ASSERT_NE(library, nullptr) << dlerror();
  const auto reset = reinterpret_cast<decltype(&stand_in_reset)>(dlsym(library, "stand_in_reset"));
  ASSERT_NE(reset, nullptr);
  reset(1, 9, 0, 64 << 20, 100 << 10);
  CudaDriver::use_library(stand_in_cuda());
  const std::string folder = source_dir() + "/tests/";
  std::ifstream kept(folder + "gpu/fragments.txt");
  std::ifstream text(folder + "unit/backend/cuda_fragments.cuh");
  std::ostringstream source;
  source << text.rdbuf();
  std::vector<FragmentKernel> kernels;
  std::vector<std::string> expected;
  for (std::string row; std::getline(kept, row);) {
    std::istringstream in(row);
    FragmentKernel k;
    in >> k.name >> k.threads >> k.words;
    if (k.name != "fragment_load_4_t" && k.name.rfind("fragment_box", 0) != 0 &&
        k.name != "fragment_wide_bf16_8_tb")
      continue;
    const auto ends = [&](const char* with) { return k.name.find(with) != std::string::npos; };
    if (k.name.rfind("fragment_box", 0) == 0)
      k.box_columns = ends("_32") ? 32 : ends("_16") ? 16 : 64;
    k.swizzled = k.name.find("swizzled") != std::string::npos;
    kernels.push_back(k);
    expected.push_back(row);
  }
  ASSERT_EQ(kernels.size(), 6u);
  const auto found = read_fragments(source.str(), kernels, 0, test_cache());
  for (size_t i = 0; i < kernels.size(); ++i)
    EXPECT_EQ(line(kernels[i].name, kernels[i].threads, found[i]), expected[i]);
  CudaDriver::use_library("");
}

// The answers themselves, from the PTX manual's tables: m16n8k16 as the product of its matrices.
TEST_F(CudaFragments, ProductIsThatOfTheMatricesInTheManual) {
  const FragmentWords d = run(32, 128, fragment_product_f16);
  float a[16][16], b[16][8], c[16][8];
  for (int lane = 0; lane < 32; ++lane) {
    const int group = lane / 4, within = lane % 4;
    for (int i = 0; i < 8; ++i)  // a0…a7
      a[group + (i / 2 % 2 ? 8 : 0)][within * 2 + i % 2 + (i >= 4 ? 8 : 0)] =
          fragment_value(lane * 8 + i);
    for (int i = 0; i < 4; ++i)  // b0…b3
      b[within * 2 + i % 2 + (i >= 2 ? 8 : 0)][group] = fragment_value(1000 + lane * 4 + i);
    for (int i = 0; i < 4; ++i)
      c[group + (i >= 2 ? 8 : 0)][within * 2 + i % 2] = fragment_value(2000 + lane * 4 + i);
  }
  for (int lane = 0; lane < 32; ++lane)
    for (int i = 0; i < 4; ++i) {
      const int row = lane / 4 + (i >= 2 ? 8 : 0), column = lane % 4 * 2 + i % 2;
      float sum = c[row][column];
      for (int k = 0; k < 16; ++k) sum += a[row][k] * b[k][column];
      EXPECT_EQ(ts::as_float(d[size_t(lane * 4 + i)]), sum) << lane << " " << i;
    }
}

}  // namespace
}  // namespace tessera
