// Programs of two kernels each that can be one launch: the second puts together what blocks of the
// first have stored.
#pragma once

#include <string>

namespace tessera {

// A product whose depth is split over `parts` blocks; `rows` by `columns` blocks otherwise, of
// which the second kernel shares the rows and has `second` blocks for the columns.
inline std::string split_product(int m, int n, int k, int rows, int parts, int columns, int second,
                                 const std::string& t) {
  const auto i = [](int x) { return std::to_string(x); };
  const auto up = [](int a, int b) { return (a + b - 1) / b; };
  const std::string tm = i(up(m, rows)), tn = i(up(n, columns)), tk = i(up(k, parts)),
                    sn = i(up(n, second)), A = t + "[" + i(m) + "," + i(k) + "]",
                    B = t + "[" + i(k) + "," + i(n) + "]",
                    P = "f32[" + i(parts) + "," + i(m) + "," + i(n) + "]";
  return "graph split_product {\n  A = input : " + A + "\n  B = input : " + B +
         "\n  P = kernel A, B grid[x=" + i(rows) + ", y=" + i(parts) + ", z=" + i(columns) +
         "] {\n    A = input : " + A + "\n    B = input : " + B +
         "\n    a = iter A {imap={x:0, y:1}} : " + t + "[" + tm + "," + tk +
         "]\n    b = iter B {imap={y:0, z:1}} : " + t + "[" + tk + "," + tn +
         "]\n    p = matmul a, b\n    w = cast p {dtype=f32}\n    u = unsqueeze w {axes=[0]}\n" +
         "    P = save u {omap={x:1, y:0, z:2}} : " + P + "\n    return P\n  } : " + P +
         "\n  O = kernel P grid[x=" + i(rows) + ", y=" + i(second) + "] {\n    P = input : " + P +
         "\n    p = iter P {imap={x:1, y:2}} : f32[" + i(parts) + "," + tm + "," + sn +
         "]\n    s = sum p {axes=[0], keepdims=false}\n    o = cast s {dtype=" + t +
         "}\n    O = save o {omap={x:0, y:1}} : " + t + "[" + i(m) + "," + i(n) +
         "]\n    return O\n  } : " + t + "[" + i(m) + "," + i(n) + "]\n  return O\n}\n";
}

// Attention of grouped queries whose keys are split over `parts` blocks a head: maxima, sums and
// products of each part, rescaled to a common maximum in the second kernel.
inline std::string split_attention(int heads, int queries, int keys, int depth, int parts,
                                   int second, const std::string& t) {
  const auto i = [](int x) { return std::to_string(x); };
  const std::string h = i(heads), q = i(queries), p = i(parts), d = i(depth), k = i(keys),
                    part = i(keys / parts), sq = i(queries / second),
                    Q = t + "[" + h + "," + q + "," + d + "]",
                    K = t + "[" + h + "," + k + "," + d + "]",
                    M = "f32[" + p + "," + h + "," + q + ",1]",
                    P = "f32[" + p + "," + h + "," + q + "," + d + "]";
  const auto saved = [&](const std::string& name, const std::string& type) {
    return "    " + name + "f = cast " + name + " {dtype=f32}\n    " + name + "u = unsqueeze " +
           name + "f {axes=[0]}\n    " + name + "s = save " + name +
           "u {omap={x:1, y:0}} : " + type + "\n";
  };
  const auto read = [&](const std::string& name, const std::string& from, const std::string& last) {
    return "    " + name + " = iter " + from + " {imap={x:1, y:2}} : f32[" + p + ",1," + sq + "," +
           last + "]\n";
  };
  return "graph split_attention {\n  Q = input : " + Q + "\n  K = input : " + K +
         "\n  V = input : " + K + "\n  M, L, P = kernel Q, K, V grid[x=" + h + ", y=" + p +
         "] {\n    Q = input : " + Q + "\n    K = input : " + K + "\n    V = input : " + K +
         "\n    q = iter Q {imap={x:0}} : " + t + "[1," + q + "," + d +
         "]\n    k = iter K {imap={x:0, y:1}} : " + t + "[1," + part + "," + d +
         "]\n    v = iter V {imap={x:0, y:1}} : " + t + "[1," + part + "," + d +
         "]\n    kt = transpose k {perm=[0,2,1]}\n    s = matmul q, kt\n" +
         "    m = reduce_max s {axes=[2], keepdims=true}\n    e = sub s, m\n    x = exp e\n" +
         "    l = sum x {axes=[2], keepdims=true}\n    p = matmul x, v\n" + saved("m", M) +
         saved("l", M) + saved("p", P) + "    return ms, ls, ps\n  } : " + M + ", " + M + ", " + P +
         "\n  O = kernel M, L, P grid[x=" + h + ", y=" + i(second) + "] {\n    M = input : " + M +
         "\n    L = input : " + M + "\n    P = input : " + P + "\n" + read("m", "M", "1") +
         read("l", "L", "1") + read("p", "P", d) +
         "    top = reduce_max m {axes=[0], keepdims=true}\n    below = sub m, top\n" +
         "    r = exp below\n    lr = mul l, r\n    ls = sum lr {axes=[0], keepdims=false}\n" +
         "    pr = mul p, r\n    ps = sum pr {axes=[0], keepdims=false}\n    o = div ps, ls\n" +
         "    oc = cast o {dtype=" + t + "}\n    O = save oc {omap={x:0, y:1}} : " + Q +
         "\n    return O\n  } : " + Q + "\n  return O\n}\n";
}

}  // namespace tessera
