// Tests only: small programs of every kind the search should handle, as text.
#pragma once
#include <string>
#include <vector>

namespace tessera {

struct TestProgram {
  const char* name;
  const char* text;
};

inline const std::vector<TestProgram>& test_programs() {
  static const std::vector<TestProgram> programs = {
      {"rmsnorm_linear", R"(graph g {
  X = input : f32[4,6]
  G = input : f32[6]
  W = input : f32[6,10]
  x2 = sqr X
  ms = mean x2 {axes=[1], keepdims=true}
  r = sqrt ms
  n = div X, r
  y = mul n, G
  O = matmul y, W
  return O
})"},
      {"rmsnorm_linear_eps", R"(graph g {
  X = input : f32[4,7]
  G = input : f32[7]
  W = input : f32[7,10]
  e = const {value=1e-05} : f32[]
  x2 = mul X, X
  ms = mean x2 {axes=[1], keepdims=true}
  me = add ms, e
  r = rsqrt me
  n = mul X, r
  y = mul n, G
  O = matmul y, W
  return O
})"},
      {"attention", R"(graph g {
  Q = input : f32[4,5]
  K = input : f32[5,8]
  V = input : f32[8,6]
  s = matmul Q, K
  e = exp s
  d = sum e {axes=[1], keepdims=true}
  p = div e, d
  O = matmul p, V
  return O
})"},
      {"attention_safe", R"(graph g {
  Q = input : f32[2,4,5]
  K = input : f32[2,8,5]
  V = input : f32[2,8,6]
  k = const {value=0.25} : f32[]
  T = transpose K {perm=[0,2,1]}
  s = matmul Q, T
  c = mul s, k
  m = reduce_max c {axes=[2], keepdims=true}
  z = sub c, m
  e = exp z
  d = sum e {axes=[2], keepdims=true}
  p = div e, d
  O = matmul p, V
  return O
})"},
      {"self_attention", R"(graph g {
  X = input : f32[6,4]
  T = transpose X {perm=[1,0]}
  s = matmul X, T
  e = exp s
  d = sum e {axes=[1], keepdims=true}
  p = div e, d
  O = matmul p, X
  return O
})"},
      {"softmax", R"(graph g {
  X = input : f32[4,9]
  m = reduce_max X {axes=[1], keepdims=true}
  c = sub X, m
  e = exp c
  d = sum e {axes=[1], keepdims=true}
  O = div e, d
  return O
})"},
      {"softmax_twice", R"(graph g {
  X = input : f32[4,9]
  two = const {value=2} : f32[]
  m = reduce_max X {axes=[1], keepdims=true}
  c = sub X, m
  e = exp c
  d = sum e {axes=[1], keepdims=true}
  s = div e, d
  O = mul s, two
  return O
})"},
      {"layernorm", R"(graph g {
  X = input : f32[4,9]
  G = input : f32[9]
  B = input : f32[9]
  e = const {value=1e-05} : f32[]
  m = mean X {axes=[1], keepdims=true}
  c = sub X, m
  c2 = sqr c
  v = mean c2 {axes=[1], keepdims=true}
  ve = add v, e
  r = sqrt ve
  n = div c, r
  g = mul n, G
  O = add g, B
  return O
})"},
      {"layernorm_linear", R"(graph g {
  X = input : f32[4,9]
  G = input : f32[9]
  B = input : f32[9]
  W = input : f32[9,5]
  e = const {value=1e-05} : f32[]
  m = mean X {axes=[1], keepdims=true}
  c = sub X, m
  c2 = sqr c
  v = mean c2 {axes=[1], keepdims=true}
  ve = add v, e
  r = sqrt ve
  n = div c, r
  g = mul n, G
  y = add g, B
  O = matmul y, W
  return O
})"},
      {"gated_mlp", R"(graph g {
  X = input : f32[4,6]
  A = input : f32[6,8]
  B = input : f32[6,8]
  a = matmul X, A
  b = matmul X, B
  s = silu a
  O = mul s, b
  return O
})"},
      {"lora", R"(graph g {
  X = input : f32[4,6]
  W = input : f32[6,8]
  A = input : f32[6,3]
  B = input : f32[3,8]
  w = matmul X, W
  a = matmul X, A
  b = matmul a, B
  O = add w, b
  return O
})"},
      {"add_linear_bias_silu", R"(graph g {
  A = input : f32[4,6]
  B = input : f32[4,6]
  C = input : f32[6,8]
  b = input : f32[8]
  s = add A, B
  m = matmul s, C
  a = add m, b
  O = silu a
  return O
})"},
      {"ntrans", R"(graph g {
  H = input : f32[4,6]
  X = input : f32[4,6]
  A = input : f32[6]
  h2 = sqr H
  hs = sum h2 {axes=[1], keepdims=true}
  hr = sqrt hs
  h = div H, hr
  d = sub h, X
  a = mul A, d
  y = add X, a
  y2 = sqr y
  ys = sum y2 {axes=[1], keepdims=true}
  yr = sqrt ys
  O = div y, yr
  return O
})"},
      {"residual_norm", R"(graph g {
  X = input : f32[4,6]
  R = input : f32[4,6]
  G = input : f32[6]
  e = const {value=1e-05} : f32[]
  s = add X, R
  s2 = sqr s
  ms = mean s2 {axes=[1], keepdims=true}
  me = add ms, e
  r = rsqrt me
  n = mul s, r
  O = mul n, G
  return s, O
})"},
      {"chain", R"(graph g {
  X = input : f32[4,6]
  Y = input : f32[4,6]
  two = const {value=2} : f32[]
  a = add X, Y
  b = mul a, two
  c = tanh b
  O = sub c, X
  return O
})"},
      {"qk_norm", R"(graph g {
  Q = input : f32[4,5]
  K = input : f32[8,5]
  V = input : f32[8,6]
  q2 = sqr Q
  qm = mean q2 {axes=[1], keepdims=true}
  qr = rsqrt qm
  q = mul Q, qr
  k2 = sqr K
  km = mean k2 {axes=[1], keepdims=true}
  kr = rsqrt km
  k = mul K, kr
  T = transpose k {perm=[1,0]}
  s = matmul q, T
  e = exp s
  d = sum e {axes=[1], keepdims=true}
  p = div e, d
  O = matmul p, V
  return O
})"},
      {"qkv", R"(graph g {
  X = input : f32[4,6]
  A = input : f32[6,5]
  B = input : f32[6,7]
  x2 = sqr X
  ms = mean x2 {axes=[1], keepdims=true}
  r = rsqrt ms
  n = mul X, r
  P = matmul n, A
  R = matmul n, B
  return P, R
})"},
      {"log_sum_exp", R"(graph g {
  Z = input : f32[4,9]
  m = reduce_max Z {axes=[1], keepdims=true}
  c = sub Z, m
  e = exp c
  s = sum e {axes=[1], keepdims=true}
  l = log s
  O = add l, m
  return O
})"},
      {"where_mask", R"(graph g {
  X = input : f32[4,9]
  M = input : f32[4,9]
  z = const {value=0} : f32[]
  c = gt M, z
  w = where c, X, z
  s = sum w {axes=[1], keepdims=true}
  O = div w, s
  return O
})"},
      {"unit_rows", R"(graph g {
  X = input : f32[1,6]
  W = input : f32[6,8]
  x2 = sqr X
  ms = mean x2 {axes=[1], keepdims=true}
  r = sqrt ms
  n = div X, r
  O = matmul n, W
  return O
})"},
      {"batched", R"(graph g {
  X = input : f32[2,3,4,6]
  W = input : f32[3,6,5]
  y = matmul X, W
  r = relu y
  O = sum r {axes=[1]}
  return O
})"},
      {"mixed_with_movement", R"(graph g {
  X = input : f32[4,6]
  Y = input : f32[4,6]
  a = add X, Y
  r = reshape a {shape=[6,4]}
  s = silu r
  t = sum s {axes=[1], keepdims=true}
  O = div s, t
  return O
})"},
      {"variance_times_constant", R"(graph g {
  X = input : f32[4,6]
  c = const {value=0.3} : f32[]
  m = mean X {axes=[0,1]}
  d = sub X, m
  d2 = sqr d
  v = mean d2 {axes=[0,1]}
  O = mul v, c
  return O
})"},
  };
  return programs;
}

}  // namespace tessera
