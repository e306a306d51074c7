// Two products and a sigmoid, made faster from C++: read, search, prove, run.
// Build and run it: docs/cpp.md.
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "tessera/tessera.h"

constexpr const char* kProgram = R"(
graph scores {
  A = input : f32[512,384]
  B = input : f32[384,512]
  V = input : f32[512,8]
  P = matmul A, B
  y = matmul P, V
  s = sigmoid y
  return s
}
)";

int main() try {
  const tessera::Graph program = tessera::parse(kProgram, "scores");
  tessera::OptimizeOptions options;
  options.budget_seconds = 20;
  const tessera::OptimizeResult result = tessera::optimize(program, options);
  std::printf("%.1f µs as written, %.1f µs now: %.2f times as fast\n", 1e6 * result.original_s,
              1e6 * result.seconds, result.speedup);
  std::printf("%s", tessera::print(result.graph()).c_str());
  if (result.improved())
    std::printf("equal, but for a chance of 2^%.0f: result.certificate()->str() tells how\n",
                result.certificate()->error_log2);

  std::vector<float> a(512 * 384), b(384 * 512), v(512 * 8), s(512 * 8);
  for (size_t i = 0; i < a.size(); ++i) a[i] = std::sin(0.1f * float(i));
  for (size_t i = 0; i < b.size(); ++i) b[i] = std::cos(0.3f * float(i));
  for (size_t i = 0; i < v.size(); ++i) v[i] = std::sin(0.7f * float(i)) / 100;
  const void* inputs[] = {a.data(), b.data(), v.data()};  // contiguous, row-major
  void* outputs[] = {s.data()};
  result.module()->run(inputs, outputs);

  double y = 0;  // the first element, by hand
  for (size_t k = 0; k < 384; ++k)
    for (size_t j = 0; j < 512; ++j) y += double(a[k]) * b[512 * k + j] * v[8 * j];
  const double expected = 1 / (1 + std::exp(-y));
  std::printf("s[0,0] = %.5f, by hand %.5f\n", s[0], expected);
  return std::abs(s[0] - expected) < 1e-3 ? 0 : 1;
} catch (const tessera::Error& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
