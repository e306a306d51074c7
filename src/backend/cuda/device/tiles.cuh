// What generated kernels compute addresses with, and matrices in shared memory as tensor cores read
// them; one body for the GPU and the emulator.
#pragma once

namespace ts {

TS_DEVICE int least(int a, int b) { return a < b ? a : b; }
// x, but at least 0 and at most `most`.
TS_DEVICE int clamped(int x, int most) { return x < 0 ? 0 : x > most ? most : x; }
// 16-byte pieces change places, so that eight rows have theirs in different banks: of an offset in
// 16-bit elements, the bits of the row change those of the piece.
template <int shift, int mask> TS_DEVICE int swizzled(int at) { return at ^ (at >> shift & mask); }

// A matrix of 16-bit elements in rows of `pitch`, perhaps swizzled. `transposed`: its rows in
// memory are the columns of the operand.
template <class T, int pitch, int shift, int mask, bool transposed> struct Tile {
  const T* data;
  TS_DEVICE const T* at(int row, int column) const {
    return data + swizzled<shift, mask>(row * pitch + column);
  }
  // Rows row…row+15 and columns k…k+15 of a left operand.
  TS_DEVICE void left(unsigned (&a)[4], int row, int k TS_WHERE) const {
    if (transposed)
      load_matrices_transposed(a, at(k + lane() / 16 * 8 + lane() % 8, row + lane() / 8 % 2 * 8)
                                      TS_HERE);
    else
      load_matrices(a, at(row + lane() % 16, k + lane() / 16 * 8) TS_HERE);
  }
  // Rows k…k+15 and columns column…column+7 of a right operand.
  TS_DEVICE void right(unsigned (&b)[2], int k, int column TS_WHERE) const {
    if (transposed)
      load_matrices(b, at(column + lane() % 8, k + lane() / 8 % 2 * 8) TS_HERE);
    else
      load_matrices_transposed(b, at(k + lane() % 16, column) TS_HERE);
  }
};

}  // namespace ts
