// What each thread holds after the device functions that move or multiply matrices: one kernel of one
// block per function, which writes its registers (or shared memory) to `out`; `in` is an array of
// whole numbers that boxes are copied from. Inputs are functions of their place, so that every wrong
// place shows. The emulator's answers are kept in tests/gpu/fragments.txt, and a GPU is held to them
// by tests/gpu.
#pragma once
#include "device.cuh"

// Small whole numbers: sums of products of them are exact.
TS_DEVICE float fragment_value(int place) { return static_cast<float>((place * 37 + 11) % 13 - 6); }

TS_DEVICE unsigned fragment_pair(ts::f16, int place) {
  return ts::from_float<ts::f16>(fragment_value(place)).bits |
         static_cast<unsigned>(ts::from_float<ts::f16>(fragment_value(place + 1)).bits) << 16;
}
TS_DEVICE unsigned fragment_pair(ts::bf16, int place) {
  return ts::from_float<ts::bf16>(fragment_value(place)).bits |
         static_cast<unsigned>(ts::from_float<ts::bf16>(fragment_value(place + 1)).bits) << 16;
}
TS_DEVICE unsigned fragment_pair(ts::tf32, int place) {
  return ts::as_bits(fragment_value(place));
}

// 8×8 matrices of 16-bit elements, which are their own numbers; rows come in no order.
template <int count, bool transposed> TS_DEVICE void fragment_load(unsigned* out) {
  unsigned* words = reinterpret_cast<unsigned*>(ts::shared());
  for (int i = ts::lane(); i < 128; i += 32)
    ts::store_shared(words + i, static_cast<unsigned>(2 * i | (2 * i + 1) << 16));
  ts::sync_warp();
  const char* row = ts::shared() + ts::lane() * 5 % 32 * 16;
  unsigned r[count];
  if constexpr (transposed)
    ts::load_matrices_transposed(r, row);
  else
    ts::load_matrices(r, row);
  for (int i = 0; i < count; ++i) ts::store_global(out + ts::lane() * count + i, r[i]);
}
extern "C" __global__ void fragment_load_1(const int*, unsigned* out) { fragment_load<1, false>(out); }
extern "C" __global__ void fragment_load_2(const int*, unsigned* out) { fragment_load<2, false>(out); }
extern "C" __global__ void fragment_load_4(const int*, unsigned* out) { fragment_load<4, false>(out); }
extern "C" __global__ void fragment_load_1_t(const int*, unsigned* out) { fragment_load<1, true>(out); }
extern "C" __global__ void fragment_load_2_t(const int*, unsigned* out) { fragment_load<2, true>(out); }
extern "C" __global__ void fragment_load_4_t(const int*, unsigned* out) { fragment_load<4, true>(out); }

template <class T> TS_DEVICE void fragment_product(unsigned* out) {
  unsigned a[4], b[2];
  float d[4];
  for (int i = 0; i < 4; ++i) a[i] = fragment_pair(T{}, ts::lane() * 8 + i * 2);
  for (int i = 0; i < 2; ++i) b[i] = fragment_pair(T{}, 1000 + ts::lane() * 4 + i * 2);
  for (int i = 0; i < 4; ++i) d[i] = fragment_value(2000 + ts::lane() * 4 + i);
  ts::multiply_add(d, a, b, T{});
  for (int i = 0; i < 4; ++i) ts::store_global(out + ts::lane() * 4 + i, ts::as_bits(d[i]));
}
extern "C" __global__ void fragment_product_f16(const int*, unsigned* out) { fragment_product<ts::f16>(out); }
extern "C" __global__ void fragment_product_bf16(const int*, unsigned* out) { fragment_product<ts::bf16>(out); }
extern "C" __global__ void fragment_product_tf32(const int*, unsigned* out) { fragment_product<ts::tf32>(out); }

// Rounded to tf32: ties away from zero, subnormal numbers, the largest, infinity.
extern "C" __global__ void fragment_round_tf32(const int*, unsigned* out) {
  const unsigned bits[] = {0x3f801000u, 0x3f800fffu, 0x3f801001u, 0xbf803000u, 0x00001000u, 0x80000fffu,
                           0x7f7fffffu, 0xff7fefffu, 0x7f800000u, 0xff800000u, 0x40490fdbu, 0u};
  for (int i = ts::lane(); i < 128; i += 32) {
    const float x = ts::as_float(i < 12 ? bits[i] : static_cast<unsigned>(i) * 0x01234567u & 0x7effffffu);
    ts::store_global(out + i, ts::to_tf32(x));
  }
}
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
template <int count, bool transposed> TS_DEVICE void fragment_store_of(unsigned* out) {
  unsigned* words = reinterpret_cast<unsigned*>(ts::shared());
  for (int i = ts::lane(); i < 128; i += 32) ts::store_shared(words + i, 0u);
  ts::sync_warp();
  unsigned r[count];
  for (int i = 0; i < count; ++i)
    r[i] = static_cast<unsigned>(ts::lane() * 4 + i) | static_cast<unsigned>(transposed ? 512 + ts::lane() : 0) << 16;
  char* row = ts::shared() + ts::lane() * 5 % 32 * 16;
  if constexpr (transposed)
    ts::store_matrices_transposed(row, r);
  else
    ts::store_matrices(row, r);
  ts::sync_warp();
  for (int i = ts::lane(); i < 128; i += 32) ts::store_global(out + i, ts::load_shared(words + i));
}
extern "C" __global__ void fragment_store(const int*, unsigned* out) { fragment_store_of<4, false>(out); }
extern "C" __global__ void fragment_store_2(const int*, unsigned* out) { fragment_store_of<2, false>(out); }
extern "C" __global__ void fragment_store_4_t(const int*, unsigned* out) { fragment_store_of<4, true>(out); }
extern "C" __global__ void fragment_store_2_t(const int*, unsigned* out) { fragment_store_of<2, true>(out); }

// A box of so many columns and 16 rows, some of both outside of the array, as it lies in shared
// memory, again and again.
template <int columns> TS_DEVICE void fragment_of_box(const ts::TensorMap& map, unsigned* out) {
  ts::Barrier* full = reinterpret_cast<ts::Barrier*>(ts::shared() + 2048);
  if (ts::thread() == 0) {
    ts::init_barrier(full, 1);
    ts::publish_barriers();
  }
  ts::sync();
  if (ts::thread() == 0) {
    ts::expect_bytes(full, 32 * columns);
    ts::copy_tile(ts::shared(), map, columns == 64 ? 24 : 72 - columns / 2, 5, full);
  }
  ts::wait(full, 0);
  const unsigned* words = reinterpret_cast<const unsigned*>(ts::shared());
  for (int i = ts::thread(); i < 512; i += 32)
    ts::store_global(out + i, ts::load_shared(words + i % (8 * columns)));
}
extern "C" __global__ void fragment_box(const int*, unsigned* out,
                                        const __grid_constant__ ts::TensorMap map) {
  fragment_of_box<64>(map, out);
}
extern "C" __global__ void fragment_box_swizzled(const int*, unsigned* out,
                                                 const __grid_constant__ ts::TensorMap map) {
  fragment_of_box<64>(map, out);
}
extern "C" __global__ void fragment_box_swizzled_32(const int*, unsigned* out,
                                                    const __grid_constant__ ts::TensorMap map) {
  fragment_of_box<32>(map, out);
}
extern "C" __global__ void fragment_box_swizzled_16(const int*, unsigned* out,
                                                    const __grid_constant__ ts::TensorMap map) {
  fragment_of_box<16>(map, out);
}
#endif

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
// The second 16 of 64 (in depth) of operands that fill 128-byte swizzled memory from end to end.
template <class T, int n, int ta, int tb> TS_DEVICE void fragment_wide(unsigned* out) {
  constexpr int kOperand = 16384;  // bytes
  unsigned* words = reinterpret_cast<unsigned*>(ts::shared());
  for (int i = ts::thread(); i < 2 * kOperand / 4; i += 128)
    ts::store_shared(words + i, fragment_pair(T{}, 2 * i));
  ts::fence_async();
  ts::sync();
  float d[n / 2];
  for (int i = 0; i < n / 2; ++i) d[i] = fragment_value(ts::thread() * n + i);
  ts::begin_products(d);
  const auto a = ts::operand(ts::shared() + (ta ? 2048 : 32), 0, 1024);
  const auto b = ts::operand(ts::shared() + kOperand + (tb ? 2048 : 32), tb ? 8192 : 0, 1024);
  ts::multiply_add_wide<ta, tb>(d, a, b, T{}, true);
  ts::commit_products();
  ts::wait_products<0>(d);
  for (int i = 0; i < n / 2; ++i)
    ts::store_global(out + ts::thread() * (n / 2) + i, ts::as_bits(d[i]));
}
// The same of boxes of `width` columns, 64 rows each, side by side, as generated code addresses them.
template <int width, bool ta, bool tb> TS_DEVICE void fragment_wide_boxes(unsigned* out) {
  constexpr int kOperand = 8192;  // bytes: 64 × 64
  unsigned* words = reinterpret_cast<unsigned*>(ts::shared());
  for (int i = ts::thread(); i < 2 * kOperand / 4; i += 128)
    ts::store_shared(words + i, fragment_pair(ts::f16{}, 2 * i));
  ts::fence_async();
  ts::sync();
  float d[32];
  for (int i = 0; i < 32; ++i) d[i] = fragment_value(ts::thread() * 64 + i);
  ts::begin_products(d);
  const ts::WideTile<ts::f16, 64, width, ta> a{reinterpret_cast<const ts::f16*>(ts::shared())};
  const ts::WideTile<ts::f16, 64, width, tb> b{
      reinterpret_cast<const ts::f16*>(ts::shared() + kOperand)};
  ts::multiply_add_wide<ta, tb>(d, a.at(0, 16), b.at(0, 16), ts::f16{}, true);
  ts::commit_products();
  ts::wait_products<0>(d);
  for (int i = 0; i < 32; ++i) ts::store_global(out + ts::thread() * 32 + i, ts::as_bits(d[i]));
}
#define FRAGMENT_WIDE_BOXES(width)                                                                 \
  extern "C" __global__ void fragment_wide_boxes_##width(const int*, unsigned* out) {              \
    fragment_wide_boxes<width, false, false>(out);                                                 \
  }                                                                                                \
  extern "C" __global__ void fragment_wide_boxes_##width##_t(const int*, unsigned* out) {          \
    fragment_wide_boxes<width, true, true>(out);                                                   \
  }
FRAGMENT_WIDE_BOXES(64)
FRAGMENT_WIDE_BOXES(32)
FRAGMENT_WIDE_BOXES(16)

#define FRAGMENT_WIDE(T, n)                                                                        \
  extern "C" __global__ void fragment_wide_##T##_##n(const int*, unsigned* out) {                              \
    fragment_wide<ts::T, n, 0, 0>(out);                                                            \
  }                                                                                                \
  extern "C" __global__ void fragment_wide_##T##_##n##_tb(const int*, unsigned* out) {                         \
    fragment_wide<ts::T, n, 0, 1>(out);                                                            \
  }
FRAGMENT_WIDE(f16, 8)
FRAGMENT_WIDE(f16, 16)
FRAGMENT_WIDE(f16, 32)
FRAGMENT_WIDE(f16, 64)
FRAGMENT_WIDE(f16, 128)
FRAGMENT_WIDE(bf16, 8)
FRAGMENT_WIDE(bf16, 64)
extern "C" __global__ void fragment_wide_f16_64_ta(const int*, unsigned* out) {
  fragment_wide<ts::f16, 64, 1, 1>(out);
}
#endif
