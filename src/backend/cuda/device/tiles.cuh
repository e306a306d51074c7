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

// Matrices of 16-bit elements as boxes: blocks of `width` columns, each with all `rows`, swizzled as
// the asynchronous proxy copies and reads them. Where the element lies that has `at` elements before
// it row by row.
template <int rows, int columns, int width> TS_DEVICE int boxed(int at) {
  const int row = at / columns, column = at % columns;
  return swizzled<3, width - 8>(row / rows * (rows * columns) +
                                (column / width * rows + row % rows) * width + column % width);
}

// A matrix of 16-bit elements in rows of `pitch`, perhaps swizzled; with `rows`, in boxes whose
// width is mask + 8. `transposed`: its rows in memory are the columns of the operand.
template <class T, int pitch, int shift, int mask, bool transposed, int rows = 0> struct Tile {
  const T* data;
  TS_DEVICE const T* at(int row, int column) const {
    if constexpr (rows > 0) return data + boxed<rows, pitch, mask + 8>(row * pitch + column);
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

// The same of f32, `row` and `column` elements from one row and column to the next, rounded to tf32.
template <int row, int column, int shift, int mask> struct Tile32 {
  const float* data;
  TS_DEVICE unsigned at(int y, int x TS_WHERE) const {
    return to_tf32(load_shared(data + swizzled<shift, mask>(y * row + x * column) TS_HERE));
  }
  // Rows first…first+15 and columns k…k+7 of a left operand.
  TS_DEVICE void left(unsigned (&a)[4], int first, int k TS_WHERE) const {
    TS_UNROLL
    for (int i = 0; i < 4; ++i)
      a[i] = at(first + lane() / 4 + i % 2 * 8, k + lane() % 4 + i / 2 * 4 TS_HERE);
  }
  // Rows k…k+7 and columns first…first+7 of a right operand.
  TS_DEVICE void right(unsigned (&b)[2], int k, int first TS_WHERE) const {
    TS_UNROLL
    for (int i = 0; i < 2; ++i) b[i] = at(k + lane() % 4 + i * 4, first + lane() / 4 TS_HERE);
  }
  // The rows in the order k, k+2, k+4, k+6, k+1, …: that of the columns of a left operand which
  // another product left in registers.
  TS_DEVICE void right_in_pairs(unsigned (&b)[2], int k, int first TS_WHERE) const {
    TS_UNROLL
    for (int i = 0; i < 2; ++i) b[i] = at(k + lane() % 4 * 2 + i, first + lane() / 4 TS_HERE);
  }
};

// Two neighbours of a row as a register of a left operand: of fragments that a product left in
// registers, numbers 2h and 2h + 1 of column j are what mma takes as register h + 2(j % 2).
template <class T> TS_DEVICE unsigned pair_of(float x, float y) {
  return from_float<T>(x).bits | static_cast<unsigned>(from_float<T>(y).bits) << 16;
}

// A matrix of 16-bit elements in boxes of `rows` × `width`, as an operand of products of four warps.
// `transposed`: its rows in memory are numbered by k.
template <class T, int rows, int width, bool transposed> struct WideTile {
  const T* data;
  // Rows (of a right operand: columns) `row` and on, k…k+15.
  TS_DEVICE unsigned long long at(int row, int k) const {
    const int y = transposed ? k : row, x = transposed ? row : k;
    return operand(data + (x / width * rows + y) * width + x % width,
                   transposed ? 2 * rows * width : 16, 16 * width, 2 * width);
  }
};

// What is moved as one: 16, 8, 4, 2 bytes or one.
template <int bytes> struct PieceOf;
template <> struct PieceOf<16> { using type = Vec16; };
template <> struct PieceOf<8> { using type = Vec8; };
template <> struct PieceOf<4> { using type = unsigned; };
template <> struct PieceOf<2> { using type = unsigned short; };
template <> struct PieceOf<1> { using type = unsigned char; };
// n neighbouring elements as pieces, and one by one.
template <class T, int n> union Vector {
  static constexpr int bytes = n * int(sizeof(T)) < 16 ? n * int(sizeof(T)) : 16;
  static constexpr int count = n * int(sizeof(T)) / bytes;
  using Piece = typename PieceOf<bytes>::type;
  Piece piece[count];
  T element[n];
};
template <class X> TS_DEVICE X number(X x) { return x; }
TS_DEVICE float number(f16 x) { return to_float(x); }
TS_DEVICE float number(bf16 x) { return to_float(x); }
template <class T, class X> struct Stored {
  TS_DEVICE static T of(X x) { return static_cast<T>(x); }
};
template <class X> struct Stored<f16, X> {
  TS_DEVICE static f16 of(X x) { return from_float<f16>(x); }
};
template <class X> struct Stored<bf16, X> {
  TS_DEVICE static bf16 of(X x) { return from_float<bf16>(x); }
};

// n neighbouring elements at an address that is a multiple of their bytes, or of 16.
template <int n, class T, class X> TS_DEVICE void load_global(X (&x)[n], const T* p TS_WHERE) {
  Vector<T, n> v;
  TS_UNROLL
  for (int i = 0; i < v.count; ++i)
    v.piece[i] = load_global(reinterpret_cast<const typename Vector<T, n>::Piece*>(p) + i TS_HERE);
  TS_UNROLL
  for (int i = 0; i < n; ++i) x[i] = number(v.element[i]);
}
template <int n, class T, class X> TS_DEVICE void load_shared(X (&x)[n], const T* p TS_WHERE) {
  Vector<T, n> v;
  TS_UNROLL
  for (int i = 0; i < v.count; ++i)
    v.piece[i] = load_shared(reinterpret_cast<const typename Vector<T, n>::Piece*>(p) + i TS_HERE);
  TS_UNROLL
  for (int i = 0; i < n; ++i) x[i] = number(v.element[i]);
}
template <int n, class T, class X> TS_DEVICE void store_global(T* p, const X (&x)[n] TS_WHERE) {
  Vector<T, n> v;
  TS_UNROLL
  for (int i = 0; i < n; ++i) v.element[i] = Stored<T, X>::of(x[i]);
  TS_UNROLL
  for (int i = 0; i < v.count; ++i)
    store_global(reinterpret_cast<typename Vector<T, n>::Piece*>(p) + i, v.piece[i] TS_HERE);
}
template <int n, class T, class X> TS_DEVICE void store_shared(T* p, const X (&x)[n] TS_WHERE) {
  Vector<T, n> v;
  TS_UNROLL
  for (int i = 0; i < n; ++i) v.element[i] = Stored<T, X>::of(x[i]);
  TS_UNROLL
  for (int i = 0; i < v.count; ++i)
    store_shared(reinterpret_cast<typename Vector<T, n>::Piece*>(p) + i, v.piece[i] TS_HERE);
}

}  // namespace ts
