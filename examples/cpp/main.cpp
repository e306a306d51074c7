// Two products and a sigmoid, made faster from C++: read, search, prove, run; and two programs that
// look alike, told apart. It uses the public header alone. Build and run it: docs/cpp.md.
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

// A graph of one expression over x : f32[4,4].
tessera::Graph program_of(const std::string& lines) {
  return tessera::Graph::parse("graph g {\n  x = input : f32[4,4]\n" + lines + "  return y\n}\n");
}

int main() try {
  const tessera::Graph program = tessera::Graph::parse(kProgram, "scores");
  tessera::Options options;
  options.budget_seconds = 20;
  const tessera::Result result = tessera::optimize(program, options);
  std::printf("%.1f µs as written, %.1f µs now: %.2f times as fast\n",
              1e6 * result.original_seconds(), 1e6 * result.seconds(), result.speedup());
  std::printf("%s", result.graph().text().c_str());
  if (result.improved()) {
    const tessera::Certificate certificate = result.certificate();
    std::printf("equal, but for a chance of 2^%.0f: certificate.text() tells how\n",
                certificate.error_log2());
    const std::string wrong = certificate.recheck(program, result.graph());
    std::printf("replayed: %s\n", wrong.empty() ? "it holds" : wrong.c_str());
  }

  std::vector<float> a(512 * 384), b(384 * 512), v(512 * 8), s(512 * 8);
  for (size_t i = 0; i < a.size(); ++i) a[i] = std::sin(0.1f * float(i));
  for (size_t i = 0; i < b.size(); ++i) b[i] = std::cos(0.3f * float(i));
  for (size_t i = 0; i < v.size(); ++i) v[i] = std::sin(0.7f * float(i)) / 100;
  const tessera::Function function = result.function();
  function.run({{a, {512, 384}}, {b, {384, 512}}, {v, {512, 8}}}, {{s, {512, 8}}});

  double y = 0;  // the first element, by hand
  for (size_t k = 0; k < 384; ++k)
    for (size_t j = 0; j < 512; ++j) y += double(a[k]) * b[512 * k + j] * v[8 * j];
  const double expected = 1 / (1 + std::exp(-y));
  std::printf("s[0,0] = %.5f, by hand %.5f\n", s[0], expected);

  // x - (-x) is x + x; the square of x is not.
  const tessera::Graph twice = program_of("  y = add x, x\n");
  const tessera::Verdict equal =
      tessera::verify(twice, program_of("  n = neg x\n  y = sub x, n\n"));
  const tessera::Verdict other = tessera::verify(twice, program_of("  y = mul x, x\n"));
  std::printf("x + x and x - (-x): %s",
              equal.text().substr(0, equal.text().find('\n') + 1).c_str());
  std::printf("x + x and x * x: %s", other.text().c_str());
  return std::abs(s[0] - expected) < 1e-3 && equal.equal() && other.refuted() ? 0 : 1;
} catch (const tessera::Error& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
