// Programs that the tests of both back ends run: fused kernels of any size, and several programs as
// one.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "ir/graph.h"

namespace tessera {

inline std::string replaced(std::string text,
                            const std::vector<std::pair<std::string, std::string>>& pairs) {
  for (const auto& [from, to] : pairs) {
    for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
      text.replace(at, from.size(), to);
  }
  return text;
}

inline std::string replaced(std::string text, const std::string& from, const std::string& to) {
  return replaced(std::move(text), {{from, to}});
}

inline int64_t up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// A program whose types are written T[M,K], T[Mt,Kt] for tiles of a grid [x=X, y=Y] and loops
// [i=L], and so on: M rows and N columns are cut over the grid, the depth K over the loop.
inline std::string in_tiles(const std::string& text, const std::string& dtype,
                            std::array<int64_t, 3> mnk, std::array<int64_t, 2> grid,
                            int64_t loops) {
  const auto [m, n, k] = mnk;
  const auto s = [](int64_t i) { return std::to_string(i); };
  return replaced(text, {{"T[", dtype + "["},
                         {"Mt", s(up(m, grid[0]))},
                         {"Nt", s(up(n, grid[1]))},
                         {"Kt", s(up(k, loops))},
                         {"=X", "=" + s(grid[0])},
                         {"=Y", "=" + s(grid[1])},
                         {"=L", "=" + s(loops)},
                         {"M,", s(m) + ","},
                         {"[K,", "[" + s(k) + ","},
                         {",K]", "," + s(k) + "]"},
                         {"[N]", "[" + s(n) + "]"},
                         {",N]", "," + s(n) + "]"}});
}

// Mirage's Fig. 3b for RMSNorm + Linear, for any shape, grid and loop.
inline std::string rms_norm_linear(int64_t m, int64_t k, int64_t n, int64_t grid, int64_t loops,
                                   const std::string& dtype = "f32") {
  const auto s = [](int64_t i) { return std::to_string(i); };
  return replaced(R"(graph fused {
  X = input : T[M,K]
  G = input : T[K]
  W = input : T[K,N]
  O = kernel X, G, W grid[x=GRID] loops[i=LOOPS] {
    X = input : T[M,K]
    G = input : T[K]
    W = input : T[K,N]
    x = iter X {fmap={i:1}} : T[M,Kt]
    g = iter G {fmap={i:0}} : T[Kt]
    w = iter W {imap={x:1}, fmap={i:0}} : T[Kt,Nt]
    xg = mul x, g : T[M,Kt]
    p = matmul xg, w : T[M,Nt]
    a = accum p {loops=[0]} : T[M,Nt]
    x2 = sqr x : T[M,Kt]
    s = sum x2 {axes=[1], keepdims=true} : T[M,1]
    b = accum s {loops=[0]} : T[M,1]
    c = const {value=1/K} : T[]
    m = mul b, c : T[M,1]
    e = const {value=1e-05} : T[]
    f = add m, e : T[M,1]
    r = sqrt f : T[M,1]
    d = div a, r : T[M,Nt]
    o = save d {omap={x:1}} : T[M,N]
    return o
  } : T[M,N]
  return O
}
)",
                  {{"GRID", s(grid)},
                   {"LOOPS", s(loops)},
                   {"T[", dtype + "["},
                   {"Kt", s(up(k, loops))},
                   {"Nt", s(up(n, grid))},
                   {"M,", s(m) + ","},
                   {"[K]", "[" + s(k) + "]"},
                   {"[K,", "[" + s(k) + ","},
                   {",K]", "," + s(k) + "]"},
                   {"/K}", "/" + s(k) + "}"},
                   {",N]", "," + s(n) + "]"}});
}

struct Shape4 {
  int64_t b, m, d, s, e;  // batch, queries, depth, keys, depth of the values
  int64_t rows, loops;    // parts of the queries and of the keys
  bool transposed = false;
  const char* dtype = "f32";
  bool mask = false;
};

inline std::string attention(const Shape4& p) {
  const auto n = [](int64_t i) { return std::to_string(i); };
  const std::string t = p.dtype;
  const auto type = [&](std::initializer_list<int64_t> dims) {
    std::string s;
    for (int64_t d : dims) s += (s.empty() ? "" : ",") + n(d);
    return t + "[" + s + "]";
  };
  const int64_t mt = up(p.m, p.rows), st = up(p.s, p.loops);
  std::string g = "graph attention {\n";
  const std::string q = "Q = input : " + type({p.b, p.m, p.d}) + "\n";
  const std::string k =
      "K = input : " + (p.transposed ? type({p.b, p.s, p.d}) : type({p.b, p.d, p.s})) + "\n";
  const std::string v = "V = input : " + type({p.b, p.s, p.e}) + "\n";
  const std::string mask = p.mask ? "M = input : " + type({p.m, p.s}) + "\n" : "";
  g += q + k + v + mask + "O = kernel Q, K, V" + (p.mask ? ", M" : "") + " grid[x=" + n(p.b) +
       ", y=" + n(p.rows) + "] loops[i=" + n(p.loops) + "] {\n";
  g += q + "q = iter Q {imap={x:0, y:1}} : " + type({1, mt, p.d}) + "\n" + k;
  if (p.transposed) {
    g += "kr = iter K {imap={x:0}, fmap={i:1}} : " + type({1, st, p.d}) + "\n" +
         "k = transpose kr {perm=[0,2,1]}\n";
  } else {
    g += "k = iter K {imap={x:0}, fmap={i:2}} : " + type({1, p.d, st}) + "\n";
  }
  g += v + "v = iter V {imap={x:0}, fmap={i:1}} : " + type({1, st, p.e}) + "\n";
  g += "s0 = matmul q, k\n";
  if (p.mask) {
    g += mask + "mi = iter M {imap={y:0}, fmap={i:1}} : " + type({mt, st}) + "\ns = add s0, mi\n";
  } else {
    g += "c = const {value=1/2} : " + t + "[]\ns = mul s0, c\n";
  }
  g += R"(m = reduce_max s {axes=[2], keepdims=true}
lo = const {value=-16777215*2^104} : T[]
mm = max m, lo
z = sub s, mm
e = exp z
r = sum e {axes=[2], keepdims=true}
R = accum_rescale r, mm {loops=[0]}
p = matmul e, v
P = accum_rescale p, mm {loops=[0]}
o = div P, R
O = save o {omap={x:0, y:1}} : )" +
       type({p.b, p.m, p.e}) + "\nreturn O\n} : " + type({p.b, p.m, p.e}) + "\nreturn O\n}\n";
  for (size_t at = 0; (at = g.find("T[]", at)) != std::string::npos;) g.replace(at, 1, t);
  return g;
}

// Appends the operators of `g`: the inputs and outputs of several programs side by side.
inline void append(Graph& all, const Graph& g) {
  std::vector<TensorId> to(g.tensors().size());
  for (const Op& op : g.ops()) {
    std::vector<TensorId> inputs;
    for (TensorId t : op.inputs) inputs.push_back(to[t.index]);
    const TensorId first(uint32_t(all.tensors().size()));
    if (op.kind == OpKind::Input)
      all.add_input(g.type(op.result()));
    else if (op.body.valid())
      all.add_graph_op(op.kind, inputs, g.body(op));
    else
      all.add_op(op.kind, inputs, op.attrs);
    for (uint32_t r = 0; r < op.num_results; r++)
      to[op.result(r).index] = TensorId(first.index + r);
  }
  for (TensorId t : g.outputs()) all.add_output(to[t.index]);
}

}  // namespace tessera
